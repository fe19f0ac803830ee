"""Files become one array on threads: in order, bad ones left out, no further than the deadline, and no further than there is room."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from time import perf_counter
from typing import TypeVar

import numpy as np
import pytest
from PIL import Image

from serving import errors
from serving.gateway.classify import images
from serving.gateway.classify.images import JOB_BYTES, Batch, prepare
from serving.gateway.threads import MAX_WAITING_PER_THREAD, Threads
from serving.protocol.classify import Image as Given
from tests.gateway.classify.conftest import COLOURS, png

T = TypeVar("T")
GREYS = [png(Image.new("L", (6, 4), value)) for value in range(0, 250, 5)]
LARGE = [png(np.random.default_rng(seed).integers(0, 256, (150, 150, 3), np.uint8)) for seed in range(6)]


def prepared(files: Sequence[Given], *, first: int = 0, wait_s: float = 9.0, num_threads: int = 2) -> Batch:
    async def run() -> Batch:
        threads = Threads(num_threads)
        try:
            return await prepare(
                files, first, COLOURS, max_pixels=10**6, deadline=perf_counter() + wait_s, threads=threads
            )
        finally:
            threads.stop()

    return asyncio.run(run())


def test_rows_are_in_the_order_of_the_files_whichever_thread_was_first() -> None:
    files = [file for pair in zip(GREYS, LARGE * 9, strict=False) for file in pair][:24]
    batch = prepared(files, num_threads=4)
    alone = [prepared([file]).pixels[0] for file in files]
    assert batch.pixels.dtype == np.float32
    assert batch.places == list(range(24))
    np.testing.assert_array_equal(batch.pixels, np.stack(alone))
    assert batch.pixels.flags.c_contiguous


def test_bad_files_leave_no_row_and_say_why_by_their_place_in_the_request() -> None:
    batch = prepared([b"x", GREYS[3], None, GREYS[5], "http://x"], first=10)
    assert batch.places == [11, 13]
    assert sorted(batch.problems) == [10, 12, 14]
    np.testing.assert_array_equal(batch.pixels, prepared([GREYS[3], GREYS[5]]).pixels)
    assert prepared([b"x"]).pixels.shape == (0, 3, 4, 6)


def test_small_files_share_a_job_and_large_ones_have_their_own() -> None:
    assert len(LARGE[0]) > JOB_BYTES
    assert list(images._jobs(GREYS)) == [range(len(GREYS))]
    assert list(images._jobs(LARGE)) == [range(place, place + 1) for place in range(6)]
    assert list(images._jobs([GREYS[0], LARGE[0], GREYS[0], None])) == [range(2), range(2, 4)]


def test_nothing_is_decoded_for_a_deadline_that_has_passed() -> None:
    with pytest.raises(errors.DeadlineExpired, match=r"images.*decoded"):
        prepared(LARGE, wait_s=-1.0)


def test_one_request_takes_no_more_than_its_turn() -> None:
    """Another's image is decoded next, not behind all of a large request."""

    async def run() -> list[str]:
        threads, ended = Threads(1), list[str]()
        start = threading.Event()
        first = asyncio.create_task(threads.run(start.wait))
        await asyncio.sleep(0.05)

        async def ask(name: str, files: Sequence[bytes]) -> None:
            await prepare(files, 0, COLOURS, max_pixels=10**6, deadline=perf_counter() + 9, threads=threads)
            ended.append(name)

        tasks = [asyncio.create_task(ask("large", LARGE * 3)), asyncio.create_task(ask("small", LARGE[:1]))]
        await asyncio.sleep(0.05)
        start.set()
        await asyncio.gather(first, *tasks)
        threads.stop()
        return ended

    assert asyncio.run(run()) == ["small", "large"]


def test_where_too_much_waits_a_request_is_shed_and_does_nothing_more() -> None:
    async def run() -> None:
        threads = Threads(1)
        stop = threading.Event()
        waiting = [
            asyncio.create_task(threads.run(stop.wait)) for _ in range(MAX_WAITING_PER_THREAD * threads.num_threads)
        ]
        await asyncio.sleep(0)
        with pytest.raises(errors.Overloaded):
            await prepare(LARGE, 0, COLOURS, max_pixels=10**6, deadline=perf_counter() + 9, threads=threads)
        stop.set()
        await asyncio.gather(*waiting)
        threads.stop()

    asyncio.run(run())


def test_decoding_leaves_the_event_loop_free() -> None:
    """One image of half a second: on the loop, or by a decoder that holds the interpreter's lock, it would be one turn of nearly all the time."""
    image = png(Image.new("RGB", (3000, 3000)))

    async def run() -> float:
        threads, longest, began = Threads(2), 0.0, perf_counter()
        task = asyncio.create_task(
            prepare([image], 0, COLOURS, max_pixels=10**7, deadline=perf_counter() + 30, threads=threads)
        )
        while not task.done():
            before = perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, perf_counter() - before)
        threads.stop()
        assert (await task).places == [0]
        return longest / (perf_counter() - began)

    assert any(asyncio.run(run()) < 0.5 for _ in range(5))  # what else a busy machine does may hold up the loop too
