"""A Triton that stands still without a word, beside another pool that answers: how long requests wait for it, and what comes when it goes on.

Open load: a request is sent when it is due, so that one that waits keeps no other back. With `-s` each run prints its figures.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from serving.local.environments import Environment
from serving.local.processes import stat, stubs_of
from tests.gateway.conftest import SAMPLE, Running, emulated_triton, gateway_before
from tests.gateway.fleet.test_faults import server_of
from tests.local.harness import Program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton, pytest.mark.campaigns]  # servers that fail under load

CHEAP, DEAR = "emulated-cheap", "emulated-dear"
PRICES = {CHEAP: 1.0, DEAR: 10.0}
POINTS = [(1, 0.02), (32, 0.04)]
RATE_RPS = 30.0
STARTED_S = 0.3  # that a healthy answer takes beside the model's time at most, on two busy cores
BUSY_S = 10.0


class Row(NamedTuple):
    """Of one request; times by time.monotonic()."""

    sent: float
    answered: float
    status: int
    pool: str
    is_own: bool  # the answer has the id of its request


@dataclass
class Open:
    port: int
    rate_rps: float
    rows: list[Row] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        begin, number = time.monotonic(), 0
        with ThreadPoolExecutor(400) as pool:
            while not self.stop.wait(max(0.0, begin + number / self.rate_rps - time.monotonic())):
                pool.submit(self._ask, number)
                number += 1

    def _ask(self, number: int) -> None:
        body = json.dumps({"id": str(number), **json.loads(SAMPLE)})
        sent = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        try:
            connection.request("POST", "/v2/models/digits-fp32/infer", body)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.lost.append(repr(error))
            return
        finally:
            connection.close()
        pool = answer.headers.get("Tandem-Pool", "")
        self.rows.append(Row(sent, time.monotonic(), answer.status, pool, told.get("id") == str(number)))

    def answers_from(self, pool: str, since: float) -> int:
        return sum(row.pool == pool and row.sent > since for row in list(self.rows))


@contextmanager
def open_load(port: int, rate_rps: float = RATE_RPS) -> Iterator[Open]:
    load = Open(port, rate_rps)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        wait_until(lambda: len(load.rows) > 30, "requests are answered")
        yield load
    finally:
        load.stop.set()
        thread.join(60)
    assert not thread.is_alive(), "a request hangs"


@contextmanager
def stopped(triton: Program) -> Iterator[float]:
    """It stands still with all that belongs to it, from the moment that is told."""
    server = server_of(triton)
    stubs = [stub.pid for stub in stubs_of(server)]
    at = time.monotonic()
    for pid in (triton.pid, server, *stubs):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield at
    finally:
        # A Triton that goes on before its models' processes takes them for dead, and may die of it. On a busy machine that takes a while.
        for pid in stubs:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: all(map(sleeps, stubs)), "the models' processes go on")
        for pid in (server, triton.pid):
            os.kill(pid, signal.SIGCONT)


def sleeps(pid: int) -> bool:
    """All its threads have done what they had to do."""
    tasks = Path(f"/proc/{pid}/task")
    return all((found := stat(int(task.name), tasks)) is None or found.state not in "RT" for task in tasks.glob("*"))


class Seen(NamedTuple):
    """Seconds after a Triton stood still."""

    new_wait_until_s: float  # requests that came later did not wait
    in_flight_until_s: float  # what was there by then was answered by then
    longest_s: float  # that any request took

    @classmethod
    def of(cls, rows: Sequence[Row], at: float, until: float, usual_s: float) -> Seen:
        """`usual_s`: whoever got an answer within it did not wait."""
        waited = [row for row in rows if at - usual_s < row.sent < until and row.answered - row.sent > usual_s]
        old = [row.answered for row in waited if row.sent <= at]
        return cls(
            max((row.sent - at for row in waited), default=0.0),
            max(old, default=at) - at,
            max((row.answered - row.sent for row in waited), default=0.0),
        )


@contextmanager
def two_pools(
    folder: Path, servers: int = 1, points: list[tuple[int, float]] = POINTS
) -> Iterator[tuple[Running, list[Program]]]:
    """A cheap pool of so many, which gets all that it can bear, and a dear one of one."""
    with ExitStack() as stack:
        cheap = [stack.enter_context(emulated_triton(folder / f"c{n}", CHEAP, points)) for n in range(servers)]
        _, dear = stack.enter_context(emulated_triton(folder / "dear", DEAR, points))
        pools = {CHEAP: [url for _, url in cheap], DEAR: [dear]}
        gateway = stack.enter_context(gateway_before(folder, pools, prices=PRICES))

        def all_serve() -> bool:
            told = gateway.ask("/admin/status").json()["pools"]
            return all("digits-fp32" in s["variants"] for pool in told.values() for s in pool["servers"])

        wait_until(all_serve, "all are seen")
        yield gateway, [program for program, _ in cheap]


def num_given_up(gateway: Running) -> int:
    return sum("answers nothing" in line for line in gateway.program.lines())


@contextmanager
def busy_machine(num_processes: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.thorough
@pytest.mark.parametrize(("servers", "seconds", "rate_rps"), [(1, 0.02, 30.0), (2, 0.02, 30.0), (2, 0.6, 8.0)])
def test_requests_do_not_wait_for_a_triton_that_stands_still(
    environment: Environment, tmp_path: Path, servers: int, seconds: float, rate_rps: float
) -> None:
    """Also where answers take long, so that much is in flight when it happens."""
    usual_s = 2 * 2 * seconds + STARTED_S  # after the execution that runs
    with two_pools(tmp_path, servers, [(1, seconds), (32, 2 * seconds)]) as (gateway, tritons):
        with open_load(gateway.port, rate_rps) as load:
            with stopped(tritons[0]) as at:
                wait_until(lambda: num_given_up(gateway), "it is given up")
                time.sleep(3)
                until = time.monotonic()
            wait_until(lambda: load.answers_from(CHEAP, until) > 50, "it takes part again")
        seen = Seen.of(load.rows, at, until, usual_s)
        print(f"\n{servers} in the pool, {seconds} s each: {seen}")
        assert seen.new_wait_until_s < 2.5  # as a rule 1.7
        assert seen.longest_s < 2.5 + usual_s  # as a rule 2.0 + seconds
        assert num_given_up(gateway) == 1
    assert {(row.status, row.is_own) for row in load.rows} == {(200, True)}
    assert not load.lost


def test_short_pauses_are_waited_for(environment: Environment, tmp_path: Path) -> None:
    with two_pools(tmp_path) as (gateway, tritons):
        with open_load(gateway.port) as load:
            num_short = 0
            while num_short < 4:
                before = num_given_up(gateway)
                with stopped(tritons[0]) as at:
                    time.sleep(0.9)
                goes_on = time.monotonic()
                wait_until(lambda since=goes_on: load.answers_from(CHEAP, since), "it answers")
                if time.monotonic() - at < 1.4:  # or this machine made it a long one
                    num_short += 1
                    assert num_given_up(gateway) == before
    assert {(row.status, row.is_own) for row in load.rows} == {(200, True)}
    assert not load.lost


@pytest.mark.thorough
def test_a_gateway_that_stood_still_itself_gives_nobody_up(environment: Environment, tmp_path: Path) -> None:
    with two_pools(tmp_path) as (gateway, _):
        with open_load(gateway.port) as load:
            for pause_s in (0.3, 1.0, 2.0, 5.0):
                gateway.program.send(signal.SIGSTOP)
                time.sleep(pause_s)
                gateway.program.send(signal.SIGCONT)
                time.sleep(1)
        assert num_given_up(gateway) == 0
    assert {(row.status, row.is_own) for row in load.rows} == {(200, True)}
    assert not load.lost


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [0.02, 1.5])
def test_a_busy_server_on_a_busy_machine_is_not_given_up(
    environment: Environment, tmp_path: Path, seconds: float
) -> None:
    """Twenty-four processes on its cores, and a model that takes up to seconds."""
    with two_pools(tmp_path, points=[(1, seconds), (32, 2 * seconds)]) as (gateway, _):
        with busy_machine(24), open_load(gateway.port, 5.0):
            time.sleep(BUSY_S)
        assert num_given_up(gateway) == 0


@pytest.mark.thorough
def test_where_nobody_else_answers_a_pause_of_some_seconds_costs_no_request(
    environment: Environment, tmp_path: Path
) -> None:
    with emulated_triton(tmp_path / "only", CHEAP, POINTS) as (triton, url):
        with gateway_before(tmp_path, {CHEAP: [url]}) as gateway:
            wait_until(lambda: gateway.infer(SAMPLE, "digits-fp32").status == 200, "it is seen")
            with open_load(gateway.port) as load:
                with stopped(triton):
                    time.sleep(3)  # longer than a server may be silent beside others, and 2 s less than a poll waits
                time.sleep(1)
            assert num_given_up(gateway) == 0
    assert {(row.status, row.is_own) for row in load.rows} == {(200, True)}
    assert not load.lost
