"""Connections to Triton, against a peer that misbehaves byte by byte as no real Triton can be made to."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from time import perf_counter

import pytest
import uvloop

from serving.gateway.fleet.upstream import Answer, Connection, Lost, Target
from tests.gateway.odd_triton import OddTriton, gateway_of, until

HEAD, LATER = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n", 30.0
GOOD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def until_request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)


def with_peer(peer: Peer, work: Callable[[Target], Awaitable[None]]) -> None:
    async def run() -> None:
        tasks: list[asyncio.Task[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.current_task())  # type: ignore[arg-type]
            try:
                await peer(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asyncio.get_running_loop())
        try:
            await work(target)
        finally:
            target.close()
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert not target.busy

    asyncio.run(run())


def answering(answer: bytes, *, pieces: int = 1, close: bool = False) -> Peer:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await until_request(reader)
            size = -(-len(answer) // pieces)
            for start in range(0, len(answer), size):
                writer.write(answer[start : start + size])
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                return

    return peer


async def ask(target: Target, wait_s: float = LATER, *, fresh: bool = False) -> Answer:
    return await target.ask(HEAD, (b"{}",), perf_counter() + wait_s, fresh=fresh)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_connection_that_is_lost_is_gone_before_garbage_is_looked_for(is_there: bool) -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asyncio.get_running_loop())
        if not is_there:
            server.close()
        with pytest.raises(Lost):
            await ask(target)
        server.close()
        await asyncio.sleep(0.01)
        assert [one for one in gc.get_objects(generation=0) if isinstance(one, Connection)] == []

    gc.collect()
    gc.disable()
    try:
        uvloop.run(run())
    finally:
        gc.enable()


@pytest.mark.parametrize("pieces", [1, 3, len(GOOD)])
def test_an_answer_in_any_pieces_is_put_together_and_the_connection_kept(pieces: int) -> None:
    async def work(target: Target) -> None:
        for _ in range(3):
            assert await ask(target) == Answer(200, None, b"{}")
            assert len(target.idle) == 1
        await ask(target, fresh=True)
        assert len(target.idle) == 2

    with_peer(answering(GOOD, pieces=pieces), work)


def test_a_binary_answer_has_its_length_header_and_the_next_one_does_not() -> None:
    answers = [GOOD.replace(b"Content-Type: application/json", b"Inference-Header-Content-Length: 1"), GOOD]

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await until_request(reader)
            writer.write(answer)

    async def work(target: Target) -> None:
        assert (await ask(target)).header_length == 1
        assert (await ask(target)).header_length is None

    with_peer(peer, work)


@pytest.mark.parametrize(
    "answer", [GOOD.replace(b"200 OK", b"200 OK\r\nConnection: close"), GOOD.replace(b"HTTP/1.1", b"HTTP/1.0")]
)
def test_a_connection_that_triton_ends_is_not_kept(answer: bytes) -> None:
    async def work(target: Target) -> None:
        assert (await ask(target)).status == 200
        assert not target.idle

    with_peer(answering(answer), work)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200", GOOD[:-1], b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
def test_an_answer_that_breaks_off_or_is_not_http_is_lost_at_once(answer: bytes) -> None:
    async def work(target: Target) -> None:
        with pytest.raises(Lost) as lost:
            await ask(target)
        assert not lost.value.refused
        assert not lost.value.timed_out

    with_peer(answering(answer, close=True), work)


def test_a_refused_connection_says_that_nothing_was_sent() -> None:
    async def work(target: Target) -> None:
        target.port = 1  # nobody listens there
        with pytest.raises(Lost) as lost:
            await ask(target)
        assert lost.value.refused

    with_peer(answering(GOOD), work)


def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async def work(target: Target) -> None:
        await ask(target)
        for _ in range(200):
            if not target.idle:
                return
            await asyncio.sleep(0.01)
        pytest.fail("the connection is out of step and still kept")

    with_peer(answering(GOOD + GOOD), work)


def test_a_silent_triton_is_given_up_when_the_sweep_finds_it_late_and_not_before() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def work(target: Target) -> None:
        waiting = asyncio.ensure_future(ask(target, 50.0))
        while not target.busy:
            await asyncio.sleep(0)
        target.sweep(perf_counter() + 49.0)
        await asyncio.sleep(0)
        assert not waiting.done()
        target.sweep(perf_counter() + 51.0)
        with pytest.raises(Lost) as lost:
            await waiting
        assert lost.value.timed_out

    with_peer(silent, work)


def test_a_client_that_stops_waiting_leaves_a_connection_that_is_used_again() -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await until_request(reader)
            asked.set()
            await gate.wait()
            writer.write(GOOD)

    async def work(target: Target) -> None:
        waiting = asyncio.ensure_future(ask(target))
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        while not target.idle:
            await asyncio.sleep(0.001)
        assert await ask(target) == Answer(200, None, b"{}")

    with_peer(peer, work)


def test_in_flight_are_clients_requests_and_not_what_the_gateway_asks_itself() -> None:
    asked, gate = asyncio.Queue[None](), asyncio.Event()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await until_request(reader)
            asked.put_nowait(None)
            await gate.wait()
            writer.write(GOOD)

    async def work(target: Target) -> None:
        own = asyncio.ensure_future(ask(target))
        await asked.get()
        assert (len(target.busy), target.num_in_flight) == (1, 0)
        connection = await target.connect()
        of_client = connection.ask(HEAD, (b"{}",), perf_counter() + LATER)
        await asked.get()
        assert (len(target.busy), target.num_in_flight) == (2, 1)
        gate.set()
        assert await own == await of_client == Answer(200, None, b"{}")
        assert (len(target.busy), target.num_in_flight) == (0, 0)

    with_peer(peer, work)


def test_whoever_stops_leaves_no_connection_open_and_nobody_waiting() -> None:
    asked, closed = asyncio.Queue[None](), asyncio.Queue[bytes]()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_request(reader)
        asked.put_nowait(None)
        closed.put_nowait(await reader.read())

    async def work(target: Target) -> None:
        waiting, cancelled = asyncio.ensure_future(ask(target)), asyncio.ensure_future(ask(target))
        for _ in range(2):
            await asked.get()
        cancelled.cancel()  # as a poll of a server is when the gateway stops
        await asyncio.sleep(0)
        target.close()
        async with asyncio.timeout(30):
            with pytest.raises(Lost):
                await waiting
            assert [await closed.get() for _ in range(2)] == [b"", b""]

    with_peer(silent, work)


def test_a_gateway_that_stops_while_it_asks_a_server_what_it_serves_closes_that_connection() -> None:
    async def run() -> None:
        async with gateway_of({"cpu": [OddTriton(hangs=True)]}, seen=False) as gateway:
            target = gateway.catalogue.pools["cpu"][0].target
            await until(lambda: bool(target.busy), "it is asked")
            [connection] = target.busy
        assert connection.transport.is_closing()
        assert not target.busy

    asyncio.run(run())


def test_a_large_body_goes_out_whole() -> None:
    body = [b"a" * 100_000, b"b" * 300_000]
    seen: list[int] = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.append(len(await reader.readexactly(400_000)))
        writer.write(GOOD)

    async def work(target: Target) -> None:
        head = HEAD.replace(b"Content-Length: 2", b"Content-Length: 400000")
        assert (await target.ask(head, body, perf_counter() + LATER)).status == 200

    with_peer(peer, work)
    assert seen == [400_000]


def test_a_server_whose_idle_connection_ends_under_a_poll_is_asked_again_and_goes_on_getting_requests() -> None:
    async def run() -> None:
        triton = OddTriton()
        async with gateway_of({"cpu": [triton]}) as gateway:
            [server] = gateway.catalogue.pools["cpu"]
            before = dict(server.back)
            for _ in range(3):
                triton.hangs_up, num_polls = 1, server.polls
                await until(lambda num_polls=num_polls: server.polls > num_polls + 1, "it is polled")
                assert triton.hangs_up == 0
            assert server.back == before, "it was taken for one that is away"

    asyncio.run(run())


def test_what_a_poll_heard_before_a_model_was_unloaded_does_not_stand_after_a_later_one() -> None:
    async def run() -> None:
        triton = OddTriton()
        async with gateway_of({"cpu": [triton]}) as gateway:
            [server] = gateway.catalogue.pools["cpu"]
            triton.config_s = 0.1  # a poll that sees a new model takes as long
            triton.models = ["m-fp32", "n-fp32"]
            polls = [asyncio.create_task(gateway.catalogue.poll("cpu", server))]
            await asyncio.sleep(triton.config_s / 2)  # it has the index by now
            triton.models = ["m-fp32"]
            polls.append(asyncio.create_task(gateway.catalogue.poll("cpu", server)))
            await asyncio.gather(*polls)
            assert server.snapshot.served.keys() == {"m-fp32"}

    asyncio.run(run())
