"""What clients see of the queue: refusals that are honest and quick, deadlines, priorities, and requests nobody waits for any more.

A Triton whose times are known stands behind the gateway: 32 rows take it 0.1 s, and two such requests are in flight at most.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any

import pytest
import uvloop

from serving.local.environments import Environment
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.gateway.conftest import SAMPLE, Reply, Running, emulated_triton, gateway_before
from tests.gateway.http.test_infer import refused
from tests.gateway.odd_triton import GOOD, OddTriton, gateway_of, until
from tests.gateway.odd_triton import ask as odd_ask
from tests.local.harness import LIMIT_S, final_count, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.triton]

POOL, MODEL = "emulated-cpu", "digits-fp32"
FULL_S = 0.1  # for a full batch
POINTS = [(1, 0.02), (32, FULL_S)]


def batch(rows: int = 32) -> bytes:
    request = json.loads(SAMPLE)
    [tensor] = request["inputs"]
    tensor["shape"][0] = rows
    tensor["data"] = tensor["data"] * rows
    return json.dumps(request).encode()


FULL = batch()


@pytest.fixture(scope="module")
def slow(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("slow")
    with (
        emulated_triton(folder, POOL, POINTS) as (_, url),
        gateway_before(folder, {POOL: [url]}, models={"digits": {"objective": {"latency_s": 50.0}}}) as running,
    ):
        wait_until(lambda: running.infer(SAMPLE, MODEL).status == 200, "the model is routed to")
        yield running


@dataclass
class Asked:
    """One request on a thread of its own."""

    gateway: Running
    body: bytes
    headers: dict[str, str]
    reply: Reply | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        self.reply = self.gateway.infer(self.body, MODEL, self.headers)

    def done(self) -> Reply:
        self.thread.join(LIMIT_S)
        assert self.reply is not None, "a request hangs"
        return self.reply


def ask(gateway: Running, body: bytes = FULL, **headers: str) -> Asked:
    return Asked(gateway, body, {name.replace("_", "-"): value for name, value in headers.items()})


def metric(gateway: Running, name: str, **labels: str) -> float:
    lines = gateway.ask("/metrics").body.decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if re.match(rf"{name}[{{ ]", line) and all(part in line for part in wanted)
    )


def worked_on(gateway: Running) -> int:
    """Requests that reached the device."""
    [stats] = gateway.ask(f"/v2/models/{MODEL}/stats").json()["model_stats"]
    return int(stats["inference_stats"]["success"]["count"])


def require_worked_on(gateway: Running, number: int) -> None:
    """So many and no more, once Triton has counted them: it does so after it has answered."""
    wait_until(lambda: worked_on(gateway) >= number, f"{number} are counted", seen=lambda: str(worked_on(gateway)))
    assert final_count(lambda: worked_on(gateway)) == number


@contextmanager
def backlog(gateway: Running, requests: int, priority: str = "3") -> Iterator[list[Asked]]:
    """So many requests that nobody is in a hurry for, or more where they come slowly; two are in flight, half of them wait."""
    asked = [ask(gateway, Tandem_Priority=priority) for _ in range(requests)]

    def is_filled() -> bool:
        if metric(gateway, "tandem_queued", pool=POOL) >= requests // 2:
            return True
        asked.append(ask(gateway, Tandem_Priority=priority))
        return False

    wait_until(is_filled, "the queue fills")
    yield asked
    assert {one.done().status for one in asked} == {200}


def test_what_cannot_be_in_time_is_refused_at_once_and_told_when_to_come_again(slow: Running) -> None:
    before = final_count(lambda: worked_on(slow))
    shed = metric(slow, "tandem_requests_total", outcome="shed")
    with backlog(slow, 80, priority="1") as waiting:  # 8 s of work
        asked = [ask(slow, Tandem_Deadline_Ms="2000") for _ in range(8)]
        for reply in [one.done() for one in asked]:
            refused(reply, 503, "overloaded", "too much to do to answer within")
            wait_ms = int(reply.headers["Retry-After-Ms"])
            assert 0 < wait_ms < 60_000  # 6 to 7 s, where the machine has time for an execution when it is due
            assert int(reply.headers["Retry-After"]) == ceil(wait_ms / 1000)
        assert (
            sum(one.reply is None for one in waiting) >= 5
        )  # refused with two seconds of work before them, and not after it
    assert metric(slow, "tandem_requests_total", outcome="shed") == shed + len(asked)
    require_worked_on(slow, before + len(waiting))


def test_a_refused_request_is_taken_when_it_was_told_to_come_again(slow: Running) -> None:
    with backlog(slow, 60, priority="1"):
        reply = ask(slow, Tandem_Deadline_Ms="1500").done()
        refused(reply, 503, "overloaded")
        for _ in range(5):  # once, but where other work slows the device down: it did not know of that
            threading.Event().wait(int(reply.headers["Retry-After-Ms"]) / 1000 * 1.3)
            reply = ask(slow, Tandem_Deadline_Ms="1500").done()
            if reply.status != 503:
                break
        assert reply.status in (200, 504)  # taken; late only on a busy machine


def test_the_time_in_the_queue_is_told_as_such(slow: Running) -> None:
    with backlog(slow, 24) as asked:
        pass
    queue_ms = [float(re.findall(r"queue;dur=([\d.]+)", one.done().headers["Server-Timing"])[0]) for one in asked]
    backend_ms = [float(re.findall(r"backend;dur=([\d.]+)", one.done().headers["Server-Timing"])[0]) for one in asked]
    assert max(queue_ms) >= 2 * FULL_S * 1000
    assert statistics.median(backend_ms) <= max(queue_ms) / 2  # the queue is here and not in Triton
    assert metric(slow, "tandem_queued", pool=POOL) == 0


def test_one_whose_deadline_passes_while_it_waits_is_504_and_never_reaches_the_device() -> None:
    async def run() -> None:
        goes_on = asyncio.Event()
        goes_on.set()

        async def infer(_: bytes) -> tuple[int, Any]:
            await goes_on.wait()
            return 200, GOOD

        async with gateway_of({"cpu": [triton := OddTriton(infer)]}) as gateway:
            gateway.candidates.of("cpu", "m-fp32").use(Service(Curve(((1, 0.01),))))
            goes_on.clear()
            before, queue = triton.asked, gateway.candidates.queues["cpu"]
            working = [asyncio.create_task(odd_ask(gateway)) for _ in range(2)]
            await until(lambda: triton.asked == before + 2, "two are in flight")
            late = asyncio.create_task(odd_ask(gateway, tandem_deadline_ms=1500))
            await until(lambda: queue.num_waiting or late.done(), "it waits")
            reply = await late
            assert (reply.status, reply.error) == (504, "deadline_expired")
            goes_on.set()
            assert [(await one).status for one in working] == [200, 200]
            assert (await odd_ask(gateway)).status == 200
            assert triton.asked == before + 3
            assert re.search(rb'tandem_requests_total{[^}]*outcome="expired"[^}]*} 1\.0', await gateway.metrics.text())

    uvloop.run(run())


def test_the_higher_priority_goes_first(slow: Running) -> None:
    with backlog(slow, 40) as asked:
        assert ask(slow, Tandem_Priority="1").done().status == 200
        assert sum(one.reply is None for one in asked) >= 4


def test_a_client_that_left_is_dropped_from_the_queue(slow: Running) -> None:
    before = final_count(lambda: worked_on(slow))
    cancelled = metric(slow, "tandem_requests_total", outcome="cancelled")
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\nTandem-Priority: 5\r\nContent-Length: {len(FULL)}\r\n\r\n"
    with backlog(slow, 60) as waiting:
        with socket.create_connection(("127.0.0.1", slow.port), timeout=LIMIT_S) as leaving:
            leaving.sendall(head.encode() + FULL)
            wait_until(lambda: metric(slow, "tandem_queued", pool=POOL) >= 1, "it waits")
            threading.Event().wait(0.1)
        wait_until(lambda: metric(slow, "tandem_requests_total", outcome="cancelled") == cancelled + 1, "it is dropped")
        assert metric(slow, "tandem_queued", pool=POOL) >= 1  # the others still wait
    require_worked_on(slow, before + len(waiting))


@pytest.mark.parametrize("priority", ["0", "6", "high", "2.5", "", "1 1"])
def test_a_priority_that_is_none_is_400(slow: Running, priority: str) -> None:
    refused(slow.infer(SAMPLE, MODEL, {"Tandem-Priority": priority}), 400, "bad_request", "from 1, the highest, to 5")


@pytest.mark.parametrize("line", ["Tandem-Priority: 2", "Tandem-Deadline-Ms: 900", "Tandem-Pool: emulated-cpu"])
def test_a_header_that_comes_twice_is_400(slow: Running, line: str) -> None:
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\n{line}\r\n{line}\r\nContent-Length: {len(SAMPLE)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", slow.port), timeout=LIMIT_S) as s:
        s.sendall(head.encode() + SAMPLE)
        answer = b""
        while b"}" not in answer and (chunk := s.recv(4096)):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"more than once" in answer


def test_the_objective_of_a_model_is_the_deadline_of_requests_that_set_none() -> None:
    async def run() -> None:
        async with gateway_of({"cpu": [OddTriton()]}, models={"m": {"objective": {"latency_s": 20.0}}}) as hurried:
            candidate = hurried.candidates.of("cpu", "m-fp32")
            candidate.use(Service(Curve(((1, 10.0),))))
            assert (await odd_ask(hurried)).status == 200
            candidate.use(Service(Curve(((1, 25.0),))))
            for headers in ({}, {"tandem_deadline_ms": 30_000}):
                reply = await odd_ask(hurried, **headers)
                assert (reply.status, reply.error) == (503, "overloaded")
                assert b"within 20000 ms" in reply.body

    uvloop.run(run())
