"""Clients that are slow, silent, endless, or do not listen: none holds a connection or memory for longer than the settings say."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from time import perf_counter

import pytest
import uvloop

from tests.gateway.odd_triton import BODY, until
from tests.gateway.wire import CLOSING, HOST, INFER, Answer, Wire, answers_in, request, wire

QUICK = {"head_timeout_s": 0.4, "body_pause_s": 0.4, "body_timeout_s": 1.0}
PATIENT = {"head_timeout_s": 600.0, "body_pause_s": 600.0, "body_timeout_s": 600.0}  # so that something else ends it
CHUNKED = INFER + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
HALF = INFER + HOST + b"Content-Length: 1000000\r\n\r\n" + b"a" * 1000
SILENT: list[Answer] = []


def said(*pieces: bytes, pause_s: float = 0.0, **limits: float) -> tuple[list[Answer], float]:
    """The answers, and after how many seconds the gateway closed."""

    async def run() -> tuple[list[Answer], float]:
        async with wire(**{**QUICK, **limits}) as here:
            began = perf_counter()
            answers = await here.say(*pieces, pause_s=pause_s)
            took_s = perf_counter() - began
            assert here.reached == []
            await until(lambda: here.num_connections == 0, "no connection stays")
        return answers, took_s

    return uvloop.run(run())


@pytest.mark.parametrize("nothing", [(), (b"\r\n",), (b"\r\n",) * 12], ids=["nothing", "an empty line", "empty lines"])
def test_whoever_connects_and_asks_nothing_is_left_without_a_word(nothing: tuple[bytes, ...]) -> None:
    answers, took_s = said(*nothing, pause_s=0.05)
    assert answers == SILENT
    assert took_s > 0.3  # a timer may end up to a turn of the event loop too soon


HEAD_LATE = "the head of the request took more than 0.4 seconds"
PAUSED = "nothing of the body came for 0.4 seconds"
BODY_LATE = "the body took more than 1 seconds"
LIMITS = {HEAD_LATE: "head_timeout_s", PAUSED: "body_pause_s", BODY_LATE: "body_timeout_s"}
LATE = [
    ((b"P",), HEAD_LATE),
    ((INFER,), HEAD_LATE),
    ((INFER, *(b"A: b\r\n" for _ in range(40))), HEAD_LATE),
    ((request(b"", b"A: b")[:-1], b"", b""), HEAD_LATE),
    ((HALF,), PAUSED),
    ((INFER + HOST + b"Content-Length: 10\r\n\r\n",), PAUSED),
    ((CHUNKED,), PAUSED),
    ((CHUNKED + b"5\r\nab",), PAUSED),
    ((CHUNKED + b"0\r\n",), PAUSED),
    ((HALF, *(b"a" for _ in range(25))), BODY_LATE),
    ((CHUNKED, *(b"1\r\na\r\n" for _ in range(25))), BODY_LATE),
]


@pytest.mark.protocol("hostile input", "heads and bodies that come too slowly", "refused: 408")
@pytest.mark.parametrize(("limit", "setting"), LIMITS.items(), ids=LIMITS.values())
def test_what_does_not_come_in_time_is_408(limit: str, setting: str) -> None:
    async def run() -> list[list[Answer]]:
        async with wire(**{**PATIENT, setting: QUICK[setting]}) as here:
            late = [pieces for pieces, over in LATE if over == limit]
            told = await asyncio.gather(*(here.say(*pieces, pause_s=0.05) for pieces in late))
            assert here.reached == []
            await until(lambda: here.num_connections == 0, "no connection stays")
        return told

    for answers in uvloop.run(run()):
        assert [(answer.status, answer.error) for answer in answers] == [(408, limit)]
        assert answers[0].headers["tandem-error"] == "bad_request"
        assert answers[0].headers["connection"] == "close"


def test_whoever_is_slow_and_in_time_is_answered() -> None:
    async def run() -> None:
        async with wire(**{**PATIENT, "head_timeout_s": 3.0}) as here:
            pieces = [CLOSING[n : n + 60] for n in range(0, len(CLOSING), 60)]
            assert [one.status for one in await here.say(*pieces, pause_s=0.1)] == [200]
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            for rests_s in (3.1, 0.0):  # an answered connection may rest for longer than a head may take
                writer.write(request())
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r")[0]))
                await asyncio.sleep(rests_s)
            writer.transport.abort()

    uvloop.run(run())


@pytest.mark.parametrize(
    ("endless", "status"),
    [
        ((CHUNKED, b"1;" + b"a" * 200_000), 400),
        ((CHUNKED + b"1\r\na\r\n", *(b"0" * 5000 for _ in range(20))), 400),
        ((CHUNKED + b"0\r\n", *(b"A: " + b"b" * 5000 + b"\r\n" for _ in range(20))), 400),
        ((CHUNKED, *(b"1;aaaaaaaaaaaaaaaaaaaa\r\na\r\n" * 1000 for _ in range(20))), 400),
        ((CHUNKED, *(b"10000\r\n" + b"a" * 65536 + b"\r\n" for _ in range(40))), 413),
        ((INFER + HOST + b"Content-Length: 1000001\r\n\r\n",), 413),
    ],
)
def test_what_has_no_end_is_refused_before_it(endless: tuple[bytes, ...], status: int) -> None:
    answers, _ = said(*endless, max_body_bytes=1_000_000, **PATIENT)
    assert [answer.status for answer in answers] == [status], answers


def test_chunks_of_one_byte_are_no_attack() -> None:
    async def run() -> None:
        async with wire() as here:
            body = b" " * 20_000 + BODY
            chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
            head = INFER + HOST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            answers = await here.say(head, *(chunks[n : n + 7000] for n in range(0, len(chunks), 7000)), pause_s=0.001)
            assert [one.status for one in answers] == [200]

    uvloop.run(run())


@pytest.mark.parametrize("path", [b"/v2/models/nobody/infer", b"/v2/models/m/infer", b"/nowhere"])
def test_a_plain_client_that_sends_ten_megabytes_before_it_reads_gets_to_read_why_not(path: bytes) -> None:
    """Closed at once, its connection would be reset by what it goes on sending, and the answer lost."""
    head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n"

    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(head)
            for _ in range(100):
                client.sendall(b"a" * 100_000)
            data = b""
            while piece := client.recv(65536):
                data += piece
            return data

    async def run() -> None:
        async with wire(max_body_bytes=1_000_000) as here:
            [answer] = answers_in(await asyncio.to_thread(ask, here.port))
            assert answer.status in (404, 413)
            assert answer.headers["connection"] == "close"

    uvloop.run(run())


def test_whoever_never_stops_sending_after_a_refusal_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.gateway.http.connection.LINGER_BYTES", 1_000_000)
    for method in ("_write_error", "_linger"):
        monkeypatch.setattr(f"serving.gateway.http.connection.ClientConnection.{method}.__defaults__", (0.4,))

    async def run() -> None:
        async with wire() as here:
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            with suppress(ConnectionError):
                for _ in range(1000):
                    writer.write(b"\x00" * 100_000)
                    await writer.drain()
                pytest.fail("it took 100 MB")
            writer.transport.abort()
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(b"\x00")  # and then it neither sends nor leaves
            await until(lambda: here.num_connections == 0, "it is closed")
            writer.transport.abort()

    uvloop.run(run())


def test_the_deadline_counts_while_the_body_arrives() -> None:
    head = INFER + HOST + b"Tandem-Deadline-Ms: 300\r\nContent-Length: 1000\r\n\r\n"
    answers, _ = said(head, *(b"a" for _ in range(12)), pause_s=0.05, **PATIENT)
    assert [(one.status, one.headers["tandem-error"]) for one in answers] == [(504, "deadline_expired")]


def held(here: Wire) -> int:
    return here.server.intake.memory.held


@pytest.mark.protocol(
    "hostile input", "more bytes of bodies at once than `limits.max_buffered_bytes`", "refused: 503 with Retry-After"
)
def test_all_bodies_together_hold_only_so_much() -> None:
    """Whoever sends more than there is room for is told to come back, and the room is free again when the others leave."""

    async def run() -> None:
        async with wire(max_buffered_bytes=1_500_000, max_body_bytes=1_000_000) as here:
            head = INFER + HOST + b"Content-Length: 1000000\r\n\r\n"
            writers = []
            for _ in range(3):
                _, writer = await asyncio.open_connection("127.0.0.1", here.port)
                writers.append(writer)
                writer.write(head)
                for _ in range(9):
                    writer.write(b"a" * 50_000)
                    await writer.drain()
            await until(lambda: 1_300_000 < held(here) <= 1_500_000, "they are held")
            pieces = [b"a" * 50_000 for _ in range(19)]
            [refused] = await here.say(head, *pieces, pause_s=0.01)
            assert (refused.status, refused.headers["tandem-error"]) == (503, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            assert [one.status for one in await here.say(CLOSING)] == [200], "what comes in one read has room"
            for writer in writers:
                writer.transport.abort()
            await until(lambda: held(here) == 0, "nothing is held any more")
            body = BODY + b" " * 950_000
            pieces = [request(body, b"Connection: close")[n : n + 50_000] for n in range(0, len(body) + 300, 50_000)]
            assert [one.status for one in await here.say(*pieces, pause_s=0.001)] == [200]
            assert held(here) == 0

    uvloop.run(run())


def test_a_body_that_waits_to_be_read_is_held_though_its_client_has_left() -> None:
    """Or who sends and leaves, again and again, would fill the memory past what all may have."""

    async def run() -> None:
        async with wire() as here:
            threads, gate = here.gateway.threads, threading.Event()
            busy = [asyncio.ensure_future(threads.run(gate.wait)) for _ in range(threads.num_threads)]
            body = BODY[:-1] + b" " * 500_000 + b"}"
            whole = request(body)
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(whole[:-9])
            await until(lambda: held(here) > 300_000, "it comes")
            writer.write(whole[-9:])
            await until(lambda: threads.num_waiting > threads.num_threads, "it waits for a thread")
            writer.transport.abort()
            await until(lambda: here.num_connections == 0, "its client has left")
            assert held(here) >= len(body)
            gate.set()
            await asyncio.gather(*busy)
            await until(lambda: held(here) == 0, "it was read")

    uvloop.run(run())


def test_nothing_of_all_this_leaves_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A log that strangers can fill is an attack of its own."""
    with caplog.at_level(logging.INFO):
        said(b"junk\r\n\r\n")
        said(CHUNKED, b"zz\r\n")
        said(HALF)
        said(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: h3\r\n\r\n")
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == []


@pytest.mark.parametrize("path", [b"/v2/models/m/infer", b"/v1/classify/m", b"/v1/embeddings"])
def test_a_fault_of_our_own_has_the_form_of_every_error(path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("serving.gateway.request.exchange.Exchange.authenticate", broken)

    async def run() -> None:
        async with wire() as here:
            [answer] = await here.say(request(BODY, first=b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\n"))
            assert (answer.status, answer.headers["tandem-error"]) == (500, "internal")
            assert b"secret" not in answer.body
            assert answer.headers["connection"] == "close"

    uvloop.run(run())
