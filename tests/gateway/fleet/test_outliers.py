"""Three servers in one pool, of which one is ill: it is left out, comes back when it is well, and requests go on meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serving.local.environments import Environment
from tests.gateway.conftest import SAMPLE, Running, emulated_triton, gateway_before
from tests.gateway.fleet.test_faults import load_on, server_of
from tests.gateway.fleet.test_liveness import stopped
from tests.local.harness import LIMIT_S, Program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton, pytest.mark.campaigns]  # servers that fail or wait under load

POOL, MODEL = "emulated-cpu", "digits-fp32"
WELL = [(1, 0.02), (32, 0.04)]
ILL = [(rows, 10 * seconds) for rows, seconds in WELL]


@dataclass
class Three:
    gateway: Running
    tritons: dict[str, Program]  # by url

    def servers(self) -> dict[str, Any]:
        return {s["url"]: s for s in self.gateway.ask("/admin/status").json()["pools"][POOL]["servers"]}

    def inferences(self, url: str) -> int:
        """That its model has answered, as its Triton counts."""
        with urllib.request.urlopen(f"{url}/v2/models/{MODEL}/stats", timeout=LIMIT_S) as answer:
            [stats] = json.load(answer)["model_stats"]
        return int(stats["inference_stats"]["success"]["count"])

    def all_serve(self) -> bool:
        return all(s["alive"] and MODEL in s["variants"] and s["health"] == "well" for s in self.servers().values())


@pytest.fixture
def three(environment: Environment, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Three]:
    """The first of them takes as long as the parameter says."""
    with ExitStack() as stack:
        tritons = {}
        for number, points in enumerate([request.param, WELL, WELL]):
            program, url = stack.enter_context(emulated_triton(tmp_path / str(number), POOL, points))
            tritons[url] = program
        gateway = stack.enter_context(gateway_before(tmp_path, {POOL: list(tritons)}))
        made = Three(gateway, tritons)
        wait_until(made.all_serve, "all are seen")
        yield made


@pytest.mark.thorough
@pytest.mark.parametrize("three", [ILL], indirect=True)
def test_a_server_that_is_ten_times_slower_is_left_out_for_longer_and_longer(three: Three) -> None:
    ill, *well = three.tritons
    with load_on(three.gateway.port, MODEL, clients=6) as load:
        wait_until(lambda: three.servers()[ill]["health"] == "left_out", "it is left out")
        wait_until(lambda: three.servers()[ill]["health"] == "on_trial", "it is tried again")
        wait_until(lambda: three.servers()[ill]["left_out_s"] > 1.0, "it is left out for longer")
        before = {url: three.inferences(url) for url in three.tritons}
        good = load.count(200)
        wait_until(lambda: load.count(200) > good + 100, "answers go on")
        assert [three.servers()[url]["health"] for url in well] == ["well", "well"]
        done = {url: three.inferences(url) - before[url] for url in three.tritons}
        assert done[ill] < min(done[url] for url in well) / 5
    assert load.statuses() == {200}


@pytest.mark.thorough
@pytest.mark.parametrize("three", [ILL], indirect=True)
def test_where_one_is_idle_a_slow_server_gets_next_to_nothing(three: Three) -> None:
    ill = next(iter(three.tritons))
    before = {url: three.inferences(url) for url in three.tritons}
    for _ in range(60):  # one at a time
        assert three.gateway.infer(SAMPLE, MODEL).status == 200
    done = {url: three.inferences(url) - before[url] for url in three.tritons}
    assert done[ill] <= 6


@pytest.mark.parametrize("three", [WELL], indirect=True)
def test_a_server_that_stands_still_is_left_out_and_comes_back_when_it_goes_on(three: Three) -> None:
    [ill, *well] = three.tritons
    with load_on(three.gateway.port, MODEL, clients=9) as load:
        wait_until(lambda: three.inferences(ill) > 5, "it works")
        with stopped(three.tritons[ill]):
            wait_until(lambda: three.servers()[ill]["health"] != "well", "it is left out")
            good = load.count(200)
            wait_until(lambda: load.count(200) > good + 50, "the others answer")
            wait_until(lambda: [three.servers()[url]["health"] for url in well] == ["well", "well"], "these are well")
        wait_until(three.all_serve, "it is as good as the others")
        before = three.inferences(ill)
        wait_until(lambda: three.inferences(ill) > before + 20, "it works again")
    assert load.statuses() == {200}
    assert not load.lost


@pytest.mark.thorough
@pytest.mark.parametrize("three", [WELL], indirect=True)
def test_a_server_that_is_killed_loses_no_request_and_two_that_are_killed_leave_the_third(three: Three) -> None:
    with load_on(three.gateway.port, MODEL, clients=6) as load:
        for url in list(three.tritons)[:2]:
            os.kill(server_of(three.tritons[url]), signal.SIGKILL)
        good = load.count(200)
        wait_until(lambda: load.count(200) > good + 100, "answers go on")
        wait_until(three.all_serve, "all are back")
        before = {url: three.inferences(url) for url in three.tritons}
        wait_until(lambda: all(three.inferences(url) > before[url] + 5 for url in before), "all work again")
    assert {answer for answer in load.answers if answer[0] not in (200, 503)} == set()
    assert not load.lost


def test_a_receipt_tells_the_device_of_the_very_server_that_answered(environment: Environment, tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls = {}
        for name, seconds in (("one", 0.02), ("other", 0.06)):
            _, urls[name] = stack.enter_context(emulated_triton(tmp_path / name, POOL, [(1, seconds)], name))
        gateway = stack.enter_context(gateway_before(tmp_path, {POOL: [*urls.values()]}))
        made = Three(gateway, {})
        wait_until(made.all_serve, "both are seen")
        seen = set()

        def both_seen() -> bool:
            reply = gateway.infer(SAMPLE, MODEL)
            name = reply.headers["Tandem-Device"].partition(";")[0].removeprefix("emulated-")
            assert reply.headers["Tandem-Engine"] == f"emulated-{name}"
            backend_s = float(re.findall(r"backend;dur=([\d.]+)", reply.headers["Server-Timing"])[0]) / 1000
            assert backend_s >= {"one": 0.02, "other": 0.06}[name]
            seen.add(name)
            return len(seen) == 2

        with load_on(gateway.port, MODEL, clients=3):
            wait_until(both_seen, "both answer")
