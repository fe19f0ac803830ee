"""While more comes than can be done, requests are refused by their heads: bodies are neither parsed nor kept."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from gzip import compress
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from scripts.trace_walk import Walk
from serving.gateway.access import table_of
from serving.gateway.fleet import liveness
from serving.gateway.request import dispatch, route
from serving.gateway.request.usage import Usage
from serving.keys.key import ADMIN, Key, digest_of, id_of, make_text
from serving.keys.key import INFER as MAY_INFER
from serving.scheduling.bridge import Demand
from serving.scheduling.choice import retry_after_s
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.usage.ledger import BYTES, Limit, Quotas
from serving.usage.stores import ProcessUsage
from tests.gateway.odd_triton import BODY, LIMIT_S, ask, until
from tests.gateway.wire import HOST, INFER, Answer, Wire, answers_in, request, wire

TAKES_S = 0.001
BELIEVED_S = 0.1  # instead, so that whoever is refused would have had seconds, and a busy machine changes nothing
WAITING = 100  # of the highest priority: before them nobody in a hurry is in time
HURRIED = b"Tandem-Deadline-Ms: 2000"
NONSENSE = b'{"inputs": nonsense'
MEBIBYTE = 2**20
LIVE = b"GET /v2/health/live HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"


@asynccontextmanager
async def crowded(**settings: Any) -> AsyncIterator[tuple[Wire, Callable[[], Awaitable[None]]]]:
    """A gateway that has refused somebody just now, and what ends the crowd."""
    gate = asyncio.Event()
    gate.set()
    async with wire(gate, TAKES_S, **settings) as here:
        curve = Curve(((1, BELIEVED_S), (8, 8 * BELIEVED_S)))
        for name in settings.get("models", ["m-fp32"]):
            here.gateway.candidates.of("cpu", name).use(Service(curve, 1, settings.get("max_batch", 1)))
        [good] = await here.say(request(BODY, b"Connection: close"))
        assert good.status == 200
        gate.clear()
        crowd = [asyncio.create_task(ask(here.gateway, **{"tandem-priority": "1"})) for _ in range(WAITING)]
        await until(lambda: here.gateway.dispatcher.num_waiting("cpu") > WAITING / 2, "they wait")

        async def leave() -> None:
            gate.set()
            assert {(await one).status for one in crowd} == {200}

        first = await ask(here.gateway, **{"tandem-deadline-ms": "2000"})
        assert (first.status, first.error) == (503, "overloaded")
        try:
            yield here, leave
        finally:
            await leave()


@pytest.fixture(autouse=True)
def _whatever_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "CONGESTED_S", 3600.0)
    monkeypatch.setattr(dispatch, "KEPT_RATIO", 1.0)
    monkeypatch.setattr(
        liveness, "SILENT_S", 3600.0
    )  # where this process stands still, the server that it runs does, too


def said(*pieces: bytes, pause_s: float = 0.0, **settings: Any) -> list[Answer]:
    """By a crowded gateway."""

    async def run() -> list[Answer]:
        async with crowded(**settings) as (here, _):
            told = await here.say(*pieces, pause_s=pause_s)
            assert not [body for body in here.reached if b"hidden" in body]
            return told

    return uvloop.run(run())


def is_honest(answer: Answer) -> bool:
    told = {"retry-after", "retry-after-ms"} <= answer.headers.keys() or answer.headers.get("x-should-retry") == "false"
    is_named = re.fullmatch("[0-9a-f]{32}", answer.headers.get("tandem-request-id", "")) is not None
    return (
        answer.status == 503
        and answer.headers["tandem-error"] == "overloaded"
        and told
        and is_named
        and "date" in answer.headers
    )


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


@asynccontextmanager
async def connected(here: Wire) -> AsyncIterator[Callable[[bytes], Awaitable[Answer]]]:
    """Sends a request on one connection and reads its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)

    async def ask_for(sent: bytes) -> Answer:
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        [answer] = answers_in(head + await reader.readexactly(size))
        return answer

    async with asyncio.timeout(LIMIT_S):
        yield ask_for
    writer.close()


def test_a_head_that_comes_again_is_not_read_again_and_is_told_by_now_when_to_come() -> None:
    one, binary = request(BODY, HURRIED), request(BODY, HURRIED, b"Inference-Header-Content-Length: 70")

    async def run() -> None:
        async with crowded() as (here, _), connected(here) as ask_for:
            for sent in (one, binary):
                first = [await ask_for(sent) for _ in range(3)][-1]
                with Walk() as walk:
                    second = await ask_for(sent)
                assert not [f for f in walk.stays if f in ("gateway/http/head.py", "scheduling/line.py")]
                assert is_honest(second)
                told = [dict(answer.headers) for answer in (first, second)]
                waits_ms = [int(headers.pop("retry-after-ms")) for headers in told]
                assert 0 < waits_ms[1] <= waits_ms[0]
                assert told[0].pop("tandem-request-id") != told[1].pop("tandem-request-id")
                for headers in told:
                    del headers["retry-after"], headers["date"]
                assert (told[0], first.body) == (told[1], second.body)

    uvloop.run(run())


def test_a_head_that_comes_again_is_let_in_as_soon_as_there_is_room_and_told_what_is_wrong_as_soon_as_it_is() -> None:
    one = request(BODY, HURRIED)

    async def run() -> list[int]:
        async with crowded() as (here, leave), connected(here) as ask_for:
            told = [await ask_for(one) for _ in range(3)]
            here.gateway.access.table = table_of([])
            told += await here.say(one)
            here.gateway.access.table = None
            told.append(await ask_for(one))
            told += [await ask_for(request(b"{", HURRIED)) for _ in range(2)]
            await leave()
            return [answer.status for answer in [*told, await ask_for(one), await ask_for(request(b"{", HURRIED))]]

    assert uvloop.run(run()) == [503, 503, 503, 401, 503, 503, 503, 200, 400]


def test_when_to_come_again_is_found_out_anew_where_something_changed_and_a_part_of_the_wait_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[float] = []

    def counted(now: float, *given: Any, **more: Any) -> float | None:
        found.append(now)
        return retry_after_s(now, *given, **more)

    def is_more(here: Wire, num: int) -> bool:
        return here.gateway.dispatcher.num_waiting("cpu") > num

    async def run() -> list[int]:
        async with crowded() as (here, leave), connected(here) as ask_for:
            num_found, waits_ms, more = [], [], []
            for same_ratio in (1.0, 1.0, 0.0):
                monkeypatch.setattr(dispatch, "SAME_RATIO", same_ratio)
                num_waiting = here.gateway.dispatcher.num_waiting("cpu")
                more.append(asyncio.create_task(ask(here.gateway, **{"tandem-priority": "1"})))
                await until(partial(is_more, here, num_waiting), "one more waits")
                answer = await ask_for(request(BODY, HURRIED))
                assert is_honest(answer)
                num_found.append(len(found))
                waits_ms.append(int(answer.headers["retry-after-ms"]))
            await leave()
            assert {(await one).status for one in more} == {200}
            assert waits_ms[1] <= waits_ms[0] < waits_ms[2], "the third hears of who came before it"
            return num_found

    monkeypatch.setattr(dispatch, "retry_after_s", counted)
    first, second, third = uvloop.run(run())
    assert (first, second, third) == (second, second, second + 1)


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


# -- what stands in the head ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "status", "settings"),
    [
        (b"Content-Length: 3\r\nContent-Length: 3", 400, {}),
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked", 400, {}),
        (b"Content-Length: +3", 400, {}),
        (b"Content-Length: 2000", 413, {"max_body_bytes": 1000}),
        (b"Content-Length: 3\r\nInference-Header-Content-Length: " + 5000 * b"9", 503, {}),
        (b"CONTENT-LENGTH: 3", 503, {}),
    ],
)
def test_a_head_that_is_wrong_is_told_so_while_too_much_comes(
    lines: bytes, status: int, settings: dict[str, int]
) -> None:
    head = INFER + HOST + HURRIED + b"\r\n" + lines + b"\r\n\r\n"
    told = said(head + b"abc" + (LIVE if status == 503 else b""), **settings)
    assert [answer.status for answer in told] == ([503, 200] if status == 503 else [status])


@pytest.mark.parametrize(
    "first",
    [b"POST /v1/classify/m HTTP/1.1\r\n", b"POST /v1/classify/m/versions/1 HTTP/1.1\r\n", b"HEAD " + INFER[5:]]
    + [b"POST /v2/models/%b HTTP/1.1\r\n" % name for name in (b"nobody/infer", b"m/infer/")],
)
def test_a_path_where_nothing_is_done_is_told_the_same(first: bytes) -> None:
    one = request(b"{}", HURRIED, b"Connection: close", first=first + HOST)

    async def run() -> tuple[bytes, bytes]:
        async with crowded() as (here, leave):
            crowded_ = await raw(here, one)
            await leave()
            return crowded_, await raw(here, one)

    crowded_, alone = uvloop.run(run())
    assert crowded_.split(b"\r\n")[0] == alone.split(b"\r\n")[0]


async def raw(here: Wire, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    async with asyncio.timeout(LIMIT_S):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        told = await reader.read()
    writer.close()
    return told


@pytest.mark.parametrize("connection", [b"Connection: keep-alive", b"Accept: */*"])
def test_an_older_client_is_told_that_its_connection_ends(connection: bytes) -> None:
    [refused] = said(request(BODY, HURRIED, connection, first=INFER.replace(b"1.1", b"1.0") + HOST))
    assert is_honest(refused)
    assert refused.headers["connection"] == "close"


def test_caches_are_told_that_answers_differ_by_origin() -> None:
    refused, _ = said(request(BODY, HURRIED) + LIVE, origins=["https://a.example"])
    assert (refused.status, refused.headers["vary"]) == (503, "Origin")


def test_a_key_is_looked_at_before_anybody_hears_of_load() -> None:
    texts = {name: make_text() for name in ("good", "elsewhere", "admin")}
    models = {"elsewhere": frozenset({"other"})}
    keys = [
        Key(
            id_of(text) or "",
            name,
            digest_of(text),
            frozenset({ADMIN if name == "admin" else MAY_INFER}),
            datetime.now(UTC),
            models.get(name),
            tenant="",  # of those who crowd it
        )
        for name, text in texts.items()
    ]

    async def run() -> list[tuple[int, str]]:
        async with crowded() as (here, leave):
            here.gateway.access.table = table_of(keys)
            lines = [b"X-API-Key: " + text.encode() for text in [*texts.values(), make_text()]]
            told = [
                await here.say(request(BODY, HURRIED, *line, b"Connection: close"))
                for line in ([], *([line] for line in lines))
            ]
            here.gateway.access.table = None
            await leave()
            return [(one.status, one.headers["tandem-error"]) for [one] in told]

    wrong = (401, "unauthenticated"), (403, "forbidden")
    assert uvloop.run(run()) == [wrong[0], (503, "overloaded"), wrong[1], wrong[1], wrong[0]]


# -- the body that is skipped -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(), (1,), (40, 41, 300), (500,)])
def test_what_a_skipped_body_holds_is_no_request(cuts: tuple[int, ...]) -> None:
    hidden = 2 * (request(BODY.replace(b"{", b'{"id":"hidden",', 1)) + LIVE)
    whole = request(hidden, HURRIED) + request(hidden, HURRIED) + LIVE
    begins = whole.index(b"\r\n\r\n") + 4
    places = [0, *(begins + cut for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]
    assert [answer.status for answer in said(*pieces, pause_s=0.02)] == [503, 503, 200]


def test_a_body_longer_than_it_said_ends_the_connection_after_its_answer() -> None:
    told = said(request(BODY, HURRIED) + b"more" + LIVE)
    assert [answer.status for answer in told] == [503, 400]


@pytest.mark.parametrize("sent", [0, 10])
def test_a_body_that_does_not_come_is_refused_for_load_all_the_same(sent: int) -> None:
    whole = request(BODY, HURRIED)

    async def run() -> tuple[list[Answer], int, int]:
        async with crowded(body_pause_s=0.2) as (here, _):
            known = here.gateway.inference.routes.known("/v2/models/m/infer", {})
            assert known is not None
            before = known.destinations[0].series.outcomes["shed"]
            told = await here.say(whole[: len(whole) - len(BODY) + sent])
            await until(lambda: here.num_connections == 0, "it is gone")
            return told, known.destinations[0].series.outcomes["shed"] - before, here.gateway.memory.held

    [refused], num_shed, held = uvloop.run(run())
    assert is_honest(refused)
    assert refused.headers["connection"] == "close"
    assert (num_shed, held) == (1, 0)


def test_who_ends_its_side_in_the_middle_of_a_body_is_forgotten() -> None:
    async def run() -> None:
        async with crowded() as (here, _):
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(request(BODY, HURRIED)[:-3])
            writer.write_eof()
            await until(lambda: here.num_connections == 0, "it is gone")
            writer.close()

    uvloop.run(run())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_stop_while_a_body_comes_ends_the_connection_with_its_answer(is_late: bool) -> None:
    async def run() -> list[Answer]:
        async with crowded() as (here, leave):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(request(BODY, HURRIED)[:-3])
            await until(lambda: here.num_connections == 1, "it is there")
            await asyncio.sleep(0.1)
            here.gateway.close()
            if is_late:
                await leave()
                here.server.stop()
                await asyncio.sleep(0.3)
            writer.write(BODY[-3:])
            async with asyncio.timeout(LIMIT_S):
                told = answers_in(await reader.read())
            writer.close()
            return told

    [refused] = uvloop.run(run())
    assert is_honest(refused)
    assert refused.headers["connection"] == "close"


def test_a_thousand_refusals_on_one_connection_leave_nothing() -> None:
    async def run() -> tuple[int, int]:
        async with crowded() as (here, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            sizes = []
            for _ in range(2):
                for number in range(500):
                    whole = request(BODY, HURRIED)
                    writer.write(whole[:-20] if number % 2 else whole)
                    if number % 2:
                        await asyncio.sleep(0)
                        writer.write(whole[-20:])
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 503")
                    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                gc.collect()
                sizes.append(len(gc.get_objects()))
            writer.close()
            return sizes[1] - sizes[0], here.gateway.memory.held

    more, held = uvloop.run(run())
    assert more < 200
    assert held == 0


# -- who is refused ---------------------------------------------------------------------------------------------------------


def rows(number: int, spaces: int = 0) -> bytes:
    data = b",".join(number * [b"1,2,3,4"])
    return b'{"inputs":[{"name":"x","shape":[%d,4],"datatype":"FP32","data":[%b]}]%b}' % (number, data, b" " * spaces)


@asynccontextmanager
async def only_few_rows() -> AsyncIterator[Wire]:
    """A gateway that does nothing, before a model that takes a moment for one row and is never in time for eight; it has refused these."""
    async with wire(max_batch=8) as here:
        here.gateway.candidates.of("cpu", "m-fp32").use(Service(Curve(((1, 0.001), (8, 60.0))), 1, 8))
        [refused] = await here.say(request(rows(8), PATIENT, b"Connection: close"))
        assert (refused.status, refused.headers["x-should-retry"]) == (503, "false")
        yield here


PATIENT = b"Tandem-Deadline-Ms: 5000"


@pytest.mark.parametrize("line", [b"Accept: */*", b"Content-Encoding: gzip"])
def test_bodies_of_others_say_nothing_of_how_many_rows_one_has(line: bytes) -> None:
    small = compress(rows(1)) if b"gzip" in line else rows(1)

    async def run() -> list[int]:
        async with only_few_rows() as here:
            before = [await here.say(request(small, PATIENT, line, b"Connection: close")) for _ in range(5)]
            large = [
                await here.say(request(rows(1, size), PATIENT, b"Connection: close"))
                for size in (1000, 10_000, 100_000)
            ]
            return [one.status for [one] in before + large]

    assert uvloop.run(run()) == 8 * [200]


def test_binary_tensors_say_how_many_rows_there_are() -> None:
    def binary(number: int) -> bytes:
        head = NONSENSE
        return request(head + bytes(16 * number), PATIENT, b"Inference-Header-Content-Length: %d" % len(head))

    async def run() -> list[Answer]:
        async with only_few_rows() as here:
            return await here.say(binary(8) + binary(7)[:-1] + b"\0" + binary(1) + LIVE, pause_s=0.01)

    eight, seven, one, live = uvloop.run(run())
    assert [eight.status, seven.status, one.status, live.status] == [503, 503, 400, 200]


def test_demand_and_the_time_to_come_again_go_by_the_rows_that_such_bodies_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[float] = []
    note = Demand.note

    def noting(demand: Demand, now: float, cost_s: float) -> None:
        noted.append(cost_s)
        note(demand, now, cost_s)

    async def run() -> list[Answer]:
        async with crowded(max_batch=8) as (here, _):
            monkeypatch.setattr(Demand, "note", noting)
            monkeypatch.setattr(route, "CONGESTED_S", 0.0)
            here.gateway.inference.routes.forget()  # nobody was refused yet
            first = await here.say(request(rows(4), HURRIED, b"Connection: close"))
            monkeypatch.setattr(route, "CONGESTED_S", 3600.0)
            second = await here.say(request(rows(4), HURRIED, b"Connection: close"))
            with Walk() as walk:
                third, _ = await here.say(request(rows(4), HURRIED) + LIVE)
            assert not [file for file in walk.stays if file.startswith("protocol/v2/")]
            monkeypatch.undo()
            return [*first, *second, third]

    told = uvloop.run(run())
    assert all(is_honest(one) for one in told)
    assert noted == pytest.approx([noted[0]] * 3)


def test_another_model_has_room_all_the_while() -> None:
    async def run() -> Answer:
        async with crowded(models=["m-fp32", "n-fp32"]) as (here, _):
            other = INFER.replace(b"/m/", b"/n/") + HOST
            [told] = await here.say(request(BODY, HURRIED, b"Connection: close", first=other))
            return told

    assert uvloop.run(run()).status == 504  # it was let in, and its server does not answer


def test_a_pool_that_has_no_server_is_not_said_to_have_too_much_to_do() -> None:
    async def run() -> Answer:
        async with crowded() as (here, leave):
            queue = here.gateway.candidates.queues["cpu"]
            for is_up in (False, True):
                for replica in queue.replicas:
                    replica.is_up = is_up
                queue.serve_with(queue.replicas)
                if not is_up:
                    [told] = await here.say(request(BODY, HURRIED, b"Connection: close"))
            await leave()
            return told

    told = uvloop.run(run())
    assert (told.status, told.headers["tandem-error"]) == (503, "not_ready")


def test_who_is_over_a_quota_of_bytes_by_the_head_is_told_before_the_body_comes() -> None:
    """By its surface first, which ends the connection; then at the door, which goes past a body that is not parsed."""
    head = INFER + HOST + b"Content-Length: 101\r\n\r\n"

    async def run() -> tuple[list[Answer], list[Answer], Walk, list[Answer]]:
        async with wire() as here:
            usage = here.gateway.inference.usage = Usage(ProcessUsage(), {}, dict)
            usage.ledger.quotas = {"": Quotas((Limit(BYTES, "month", 1000),))}
            assert usage.ledger.begin(time.time(), "", 900) is None
            unsent = await here.say(head)
            with Walk() as walk:
                refused = await here.say(head + NONSENSE.ljust(101), LIVE)
            good = await here.say(request(BODY, b"Connection: close"))
            assert here.reached == [BODY]
            return unsent, refused, walk, good

    [unsent], (refused, live), walk, [good] = uvloop.run(run())
    for one in (unsent, refused):
        assert (one.status, one.headers["tandem-error"]) == (429, "quota_exceeded")
        assert {"retry-after", "retry-after-ms", "tandem-request-id", "date"} <= one.headers.keys()
    assert not [file for file in walk.stays if file.startswith(("protocol/v2/", "gateway/http/body.py"))]
    assert (live.status, good.status) == (200, 200)
