"""How the highest rate of a generator is searched for and judged, without a clock; and that the server it is measured against speaks v2."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.bench.generator import AIM_RPS, NUM_ATTEMPTS, Run, best, highest, verdict
from loadtest.bench.quick_server import Line, Stall
from loadtest.bench.verdicts import Outcome
from loadtest.processes import running
from loadtest.sending.bodies import signature, top1
from loadtest.stack import START_S, answers
from serving.http_client import Connection, request_bytes
from serving.ports import free_ports


def limited(limit_rps: float) -> Callable[[float], Run]:
    """A generator that keeps up to a limit."""
    return lambda rate: Run(rate, None if rate <= limit_rps else "it lagged", 0.001, 0.002, 0.5)


@pytest.mark.parametrize("limit_rps", [120.0, 999.0, 1000.0, 2300.0, 40_000.0])
def test_the_search_finds_the_limit_from_below(limit_rps: float) -> None:
    found = best(list(highest(limited(limit_rps))))
    assert found is not None
    assert 0.9 * limit_rps <= found.rate_rps <= limit_rps


def test_a_generator_that_never_keeps_up_is_given_up() -> None:
    runs = list(highest(limited(0.0)))
    assert best(runs) is None
    assert len(runs) < 40
    assert verdict(runs, 2).outcome is Outcome.FAILED


def test_one_good_run_at_a_rate_is_enough_and_a_void_one_is_tried_again() -> None:
    tried: list[float] = []

    def busy(rate: float) -> Run:
        tried.append(rate)
        is_good = rate <= 1000 and tried.count(rate) == NUM_ATTEMPTS
        return Run(rate, None if is_good else "it lagged", 0.001, 0.002, 0.5)

    runs = list(highest(busy))
    assert [run.void is None for run in runs[:NUM_ATTEMPTS]] == [False] * (NUM_ATTEMPTS - 1) + [True]
    assert all(tried.count(rate) == NUM_ATTEMPTS for rate in set(tried))
    found = best(runs)
    assert found is not None
    assert found.rate_rps == 1000


@pytest.mark.parametrize(
    ("limit_rps", "outcome"),
    [(AIM_RPS * 1.2, Outcome.MET), (AIM_RPS * 0.8, Outcome.MISSED), (AIM_RPS * 0.4, Outcome.FAILED)],
)
def test_the_rate_is_held_against_its_aim(limit_rps: float, outcome: Outcome) -> None:
    told = verdict(list(highest(limited(limit_rps))), 2)
    assert told.outcome is outcome
    assert re.search(r"1\.00 ms .*2\.5 ms, 50%", told.note)
    one = limited(9000.0)(1000.0)
    assert "real-time" not in verdict([one], 1).note
    assert "real-time" in verdict([replace(one, is_real_time=True)], 1).note


class Written:
    """What a connection would send."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def test_the_quick_server_answers_requests_in_any_pieces() -> None:
    line, out = Line(Stall(0, 0)), Written()
    line.connection_made(out)  # type: ignore[arg-type]
    whole = request_bytes("POST", "http://h:1", "/v2/models/digits/infer", {}, b"12345") * 2
    for index in range(len(whole)):
        line.data_received(whole[index : index + 1])
    assert out.data.count(b"HTTP/1.1 200 OK") == 2


def test_the_quick_server_speaks_as_a_gateway_does(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "loadtest.bench.quick_server", "--port", str(port)]
    with running(command, tmp_path / "log", lambda: answers(url.removeprefix("http://"), "/v2"), START_S):
        connection = Connection(url, 10.0, frozenset({b"tandem-variant"}))
        described = connection.send(request_bytes("GET", url, "/v2/models/digits", {}))
        assert signature(json.loads(described.body))  # raises for what cannot be driven
        inferred = connection.send(request_bytes("POST", url, "/v2/models/digits/infer", {}, b"x" * 100))
        assert (inferred.status, inferred.headers) == (200, {b"tandem-variant": "fp32"})
        assert top1(inferred.body, None) == [9]
        connection.close()
