"""While more comes than can be done, requests are refused by their heads: bodies are neither parsed nor kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from scripts.trace_walk import Walk
from serving.gateway.request import route
from serving.scheduling.bridge import Demand
from tests.gateway.odd_triton import BODY, ask, until
from tests.gateway.wire import HOST, INFER, Answer, Wire, answers_in, request, wire

TAKES_S = 0.01
WAITING = 100  # of the highest priority: before them nobody in a hurry is in time
HURRIED = b"Tandem-Deadline-Ms: 300"
NONSENSE = b'{"inputs": nonsense'
MEBIBYTE = 2**20
LIVE = b"GET /v2/health/live HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"


@asynccontextmanager
async def crowded() -> AsyncIterator[tuple[Wire, Callable[[], Awaitable[None]]]]:
    """A gateway that has refused somebody just now, and what ends the crowd."""
    gate = asyncio.Event()
    gate.set()
    async with wire(gate, TAKES_S) as here:
        [good] = await here.say(request(BODY, b"Connection: close"))
        assert good.status == 200
        gate.clear()
        crowd = [asyncio.create_task(ask(here.gateway, **{"tandem-priority": "1"})) for _ in range(WAITING)]
        await until(lambda: here.gateway.dispatcher.num_waiting("cpu") > WAITING / 2, "they wait")

        async def leave() -> None:
            gate.set()
            assert {(await one).status for one in crowd} == {200}

        first = await ask(here.gateway, **{"tandem-deadline-ms": "300"})
        assert (first.status, first.error) == (503, "overloaded")
        try:
            yield here, leave
        finally:
            await leave()


@pytest.fixture(autouse=True)
def _whatever_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "CONGESTED_S", 3600.0)


def said(*pieces: bytes, pause_s: float = 0.0) -> list[Answer]:
    """By a crowded gateway."""

    async def run() -> list[Answer]:
        async with crowded() as (here, _):
            return await here.say(*pieces, pause_s=pause_s)

    return uvloop.run(run())


def is_honest(answer: Answer) -> bool:
    told = {"retry-after", "retry-after-ms"} <= answer.headers.keys() or answer.headers.get("x-should-retry") == "false"
    return answer.status == 503 and answer.headers["tandem-error"] == "overloaded" and told and "date" in answer.headers


def test_a_body_is_not_parsed_while_too_much_comes_and_is_again_afterwards() -> None:
    async def run() -> tuple[list[Answer], Walk, list[Answer]]:
        async with crowded() as (here, leave):
            with Walk() as walk:
                crowded_ = await here.say(request(NONSENSE, HURRIED), LIVE)
            await leave()
            return crowded_, walk, await here.say(request(NONSENSE, HURRIED, b"Connection: close"))

    (refused, live), walk, [afterwards] = uvloop.run(run())
    assert is_honest(refused)
    assert refused.error
    assert live.status == 200  # on the same connection
    assert not [file for file in walk.stays if file.startswith(("protocol/v2/", "gateway/http/body.py"))]
    assert (afterwards.status, afterwards.headers["tandem-error"]) == (400, "bad_request")


def test_one_refusal_is_counted_once_and_is_demand_for_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[float] = []
    note = Demand.note

    def noting(demand: Demand, now: float, cost_s: float) -> None:
        noted.append(cost_s)
        note(demand, now, cost_s)

    async def run() -> int:
        async with crowded() as (here, _):
            known = here.gateway.inference.routes.known("/v2/models/m/infer", {})
            assert known is not None
            outcomes = known.destinations[0].series.outcomes
            before = outcomes["shed"]
            monkeypatch.setattr(Demand, "note", noting)
            await here.say(*[request(BODY, HURRIED)] * 3, LIVE, pause_s=0.01)
            monkeypatch.undo()
            return outcomes["shed"] - before

    assert uvloop.run(run()) == 3
    assert len(noted) == 3
    assert min(noted) > 0


@pytest.mark.parametrize("size", [2_000, 200_000, MEBIBYTE])
@pytest.mark.parametrize("after", [LIVE, b"\r\n" + LIVE])
def test_a_body_in_pieces_is_skipped_and_the_connection_goes_on(size: int, after: bytes) -> None:
    async def run() -> tuple[list[Answer], int]:
        async with crowded() as (here, _):
            body = b" " * size
            whole = request(body, HURRIED)
            begins = whole.index(b"\r\n\r\n") + 4
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, here.gateway.memory.held)
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            third = begins + size // 3
            pieces = whole[:begins], whole[begins:third], whole[third : third + 1], whole[third + 1 :] + after
            told = await here.say(*pieces, pause_s=0.01)
            watching.cancel()
            return told, most

    (refused, live), most = uvloop.run(run())
    assert is_honest(refused)
    assert live.status == 200
    assert most == 0


def test_who_announces_a_large_body_hears_at_once() -> None:
    head = INFER + HOST + HURRIED + b"\r\nContent-Length: %d\r\n\r\n" % (MEBIBYTE + 1)

    async def run() -> bytes:
        async with crowded() as (here, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(head + b" " * 1000)
            told = await reader.read()
            writer.close()
            return told

    [refused] = answers_in(uvloop.run(run()))
    assert is_honest(refused)
    assert refused.headers["connection"] == "close"


@pytest.mark.parametrize("line", [b"Expect: 100-continue", b"Transfer-Encoding: chunked", b"Origin: http://localhost"])
def test_what_needs_more_than_the_head_is_refused_all_the_same(line: bytes) -> None:
    body = b"0\r\n\r\n" if line.startswith(b"Transfer") else NONSENSE
    lines = [HURRIED, line, b"Connection: close"]
    chunked = INFER + HOST + b"\r\n".join(lines) + b"\r\n\r\n" + body
    sent = chunked if line.startswith(b"Transfer") else request(body, *lines)
    [refused] = said(sent)
    assert is_honest(refused)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"Tandem-Priority: 9", 400),
        (b"Tandem-Priority: 3\r\nTandem-Priority: 2", 400),
        (b"Tandem-Pool: nowhere", 400),
        (b"Tandem-Deadline-Ms: soon", 400),
    ],
)
def test_what_is_wrong_by_itself_is_told_as_ever(line: bytes, status: int) -> None:
    lines = [line, b"Connection: close"] if b"Deadline" in line else [HURRIED, line, b"Connection: close"]
    [told] = said(request(BODY, *lines))
    assert told.status == status


def test_who_can_wait_is_let_in() -> None:
    async def run() -> Answer:
        async with crowded() as (here, leave):
            asked = asyncio.create_task(here.say(request(BODY, b"Connection: close")))
            await until(lambda: here.gateway.dispatcher.num_waiting("cpu") >= WAITING - 1, "it waits, too")
            await leave()
            [told] = await asked
            return told

    assert uvloop.run(run()).status == 200


def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    told = said(2 * request(BODY, HURRIED) + LIVE)
    assert [answer.status for answer in told] == [503, 503, 200]


def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten() -> None:
    async def run() -> int:
        async with crowded() as (here, _):
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(request(BODY, HURRIED)[:-3])
            await writer.drain()
            await until(lambda: here.num_connections == 1, "it is there")
            writer.transport.abort()
            await until(lambda: here.num_connections == 0, "it is gone")
            return here.num_connections

    assert uvloop.run(run()) == 0
