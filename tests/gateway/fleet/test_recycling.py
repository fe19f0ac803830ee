"""A Triton that has grown too large is started anew while another answers: one at a time, and never the last one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.gateway.fleet import recycling
from serving.local.recycling import IN_VAIN, OF_LIMIT, Growth, bound
from tests.gateway.conftest import SAMPLE, Running, gateway_before, triton_of_its_own
from tests.gateway.fleet.test_faults import server_of
from tests.local.harness import Program, wait_until
from tests.local.repository import publish_digits

MB = 2**20


def test_a_new_start_is_wanted_past_the_bound_where_it_gives_enough_back() -> None:
    growth = Growth(1000 * MB)
    assert growth.why(300 * MB, 800 * MB) is None
    assert growth.why(390 * MB, 1200 * MB) is None  # what fills the memory are the models
    assert growth.why(410 * MB, 990 * MB) is None
    assert growth.why(410 * MB, 1001 * MB)
    growth.started()
    assert growth.why(410 * MB, 1200 * MB) is None
    assert Growth(None).why(1, 2**50) is None
    assert Growth(None).in_vain is None


@pytest.mark.parametrize(
    ("at_start", "grown", "wants"),
    [
        (500, 99, False),
        (500, 501, True),  # it was small, and is past its bound
        (890, 105, False),  # not past it
        (890, 115, True),
        (950, 110, False),  # its first requests alone would be enough
        (950, 200, True),  # the container's memory ends 26 MB later
        (1050, 90, False),
        (1050, 110, True),
        (1500, 300, False),  # a new start would be past it, too
        (1500, 380, True),
    ],
)
def test_one_that_takes_its_bound_at_its_start_is_not_started_again_and_again(
    at_start: int, grown: int, wants: bool
) -> None:
    growth = Growth(1000 * MB)
    assert growth.in_vain is None
    for _ in range(2):  # it is the same after each new start
        growth.started()
        assert growth.why(300 * MB, at_start * MB) is None
        assert (growth.in_vain is not None) == (at_start > 1000)
        assert (growth.why((300 + grown) * MB, (at_start + grown) * MB) is not None) == wants


def test_the_bound_is_what_was_asked_for_or_a_part_of_the_containers_memory(tmp_path: Path) -> None:
    for name, text in {"limit": f"{1000 * MB}\n", "none": "max\n", "huge": "9223372036854771712\n"}.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("missing", "none", "huge", "limit")]
    assert bound(64, files) == 64 * MB
    assert bound(None, files) == int(OF_LIMIT * 1000 * MB)
    assert bound(None, files[:3]) is None


def wanting(url: str, model: str) -> Any:
    """A server that has grown, and serves this model."""
    served = {f"{model}-fp32": SimpleNamespace(model=model, in_space=True)}
    snapshot = SimpleNamespace(wants_restart="it has grown", served=served)
    target = SimpleNamespace(url=url, busy=1)
    return SimpleNamespace(alive=True, is_leaving=False, snapshot=snapshot, variants=served, target=target)


def test_one_that_cannot_be_spared_does_not_keep_others_from_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "LOOK_S", 0.001)
    last, first, second = wanting("a", "alone"), wanting("b", "digits"), wanting("c", "digits")

    async def look() -> None:
        chosen = asyncio.Event()
        task = asyncio.create_task(recycling.Recycling({"cpu": [last, first, second]}, chosen.set).run())
        await asyncio.wait_for(chosen.wait(), 10)
        task.cancel()

    asyncio.run(look())
    assert [it.is_leaving for it in (last, first, second)] == [False, True, False]


@contextlib.contextmanager
def asking(gateway: Running) -> Iterator[Counter[int]]:
    """Clients that ask on and on, and what they were told."""
    told, is_over = Counter[int](), threading.Event()

    def ask() -> None:
        while not is_over.wait(0.02):
            told[gateway.ask("/v2/models/digits/infer", SAMPLE).status] += 1

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


WANTS, GETS, LOADED = "wants a new start", "gets a new start", "was exported and is"


def count(program: Program, words: str) -> int:
    return sum(words in line for line in program.lines())


def publish(repository: Path, programs: list[Program]) -> None:
    """Ten models more, and waits until all serve them."""
    before = [count(program, LOADED) for program in programs]
    for _ in range(10):
        publish_digits(repository, f"more{len(list(repository.iterdir()))}", precisions=["fp32"], keeps_rows=False)
    wait_until(lambda: all(count(it, LOADED) >= was + 10 for it, was in zip(programs, before, strict=True)), "loaded")


def grow(repository: Path, programs: list[Program]) -> None:
    """Tritonserver keeps something of every model: publishes some, and waits until all want a new start."""
    publish(repository, programs)
    wait_until(lambda: all(count(it, WANTS) for it in programs), "they have grown")


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.campaigns
@pytest.mark.timeout(400)
def test_two_that_have_grown_are_started_anew_one_after_the_other_and_the_last_one_is_not(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish_digits(repository, precisions=["fp32"])
    more = ("--no-measure", "--max-memory-mb", "64", "--model-repository", str(repository))
    with contextlib.ExitStack() as stack:
        started = {}
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            started[name] = stack.enter_context(triton_of_its_own(tmp_path / name, *more))
        one, two = (program for program, _ in started.values())
        urls = {name: [url] for name, (_, url) in started.items()}
        with gateway_before(tmp_path, {"one": urls["one"]}) as alone, asking(alone) as told:
            grow(repository, [one, two])
            answered = told[200]
            wait_until(lambda: told[200] > answered + 200, "it answers on")
            (status,) = alone.ask("/admin/status").json()["pools"]["one"]["servers"]
            assert "tritonserver grew by" in status["wants_restart"]
        assert (set(told), count(one, GETS)) == ({200}, 0)
        before = [server_of(it) for it in (one, two)]
        (tmp_path / "both").mkdir()
        with gateway_before(tmp_path / "both", urls) as both, asking(both) as told:
            for program in (one, two):
                program.wait_for(GETS)
            wait_until(
                lambda: all(server_of(it) != was for it, was in zip((one, two), before, strict=True)), "both are new"
            )
            for program in (one, two):  # whose models alone are beyond the bound by now
                program.wait_for(IN_VAIN)
            publish(repository, [one, two])
            answered = told[200]
            wait_until(lambda: told[200] > answered + 200, "they answer on")
        assert set(told) == {200}
        for words in (WANTS, GETS, IN_VAIN):
            assert [count(it, words) for it in (one, two)] == [1, 1]
