"""Spreads the images of one request over threads, into batches as a model takes them; one image is decoded by `preprocessing/images.py`.

A bad image leaves its batch and says why; the others stay in the client's order. Rule: one request decodes on so many threads as there are,
and no more of it waits for one, so that another request's image comes next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from serving import errors
from serving.gateway.threads import Threads
from serving.preprocessing.containers import BadImage
from serving.preprocessing.images import WEB_FORMATS, decode
from serving.protocol.classify import Image, file_of
from serving.repository.preprocessing import ImagePreprocessing

JOB_BYTES = 32 * 1024  # of files decoded in one go: a digit takes 30 µs, which is what handing it to a thread costs

Pixels = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """float32 [n, channels, height, width]. `places`: in the request, of each row; `problems`: place -> why there is no row of it."""

    pixels: Pixels
    places: Sequence[int]
    problems: dict[int, str]


async def prepare(
    images: Sequence[Image],
    first: int,
    how: ImagePreprocessing,
    *,
    max_pixels: int,
    deadline: float,
    threads: Threads,
) -> Batch:
    """`first` is the place of the first of these in the request, `deadline` as of perf_counter. Raises Overloaded or DeadlineExpired."""
    pixels = np.empty((len(images), *how.shape), np.float32)
    problems: dict[int, str] = {}
    jobs = deque(_jobs(images))

    async def work() -> None:
        try:
            while jobs:
                if perf_counter() > deadline:
                    raise errors.DeadlineExpired("the deadline passed before the images were decoded")
                job = partial(_decode, images, jobs.popleft(), how, max_pixels, pixels)
                problems.update(await threads.run(job))
        except BaseException:
            jobs.clear()  # whoever waits for this request is told why; nobody needs the rest
            raise

    await asyncio.gather(*(work() for _ in range(min(len(jobs), threads.num_threads))))
    good = [place for place in range(len(images)) if place not in problems]
    return Batch(
        pixels if len(good) == len(images) else pixels[good],
        [first + place for place in good],
        {first + place: problem for place, problem in problems.items()},
    )


def _jobs(images: Sequence[Image]) -> Iterator[range]:
    """Places that are decoded in one go: neighbours, until they have so many bytes together."""
    start, size = 0, 0
    for place, image in enumerate(images):
        size += len(image or b"")
        if size >= JOB_BYTES or place == len(images) - 1:
            yield range(start, place + 1)
            start, size = place + 1, 0


def _decode(
    images: Sequence[Image], places: range, how: ImagePreprocessing, max_pixels: int, pixels: Pixels
) -> dict[int, str]:
    """On a thread: into their rows. Returns why there is none, by place."""
    problems = {}
    for place in places:
        try:
            decode(file_of(images[place]), how, formats=WEB_FORMATS, max_pixels=max_pixels, out=pixels[place])
        except BadImage as problem:
            problems[place] = str(problem)
    return problems
