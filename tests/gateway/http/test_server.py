"""Connections of a server whose app, clients and stop are each at their worst: none is kept, and none holds up the others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop
from httptools import HttpRequestParser  # type: ignore[import-untyped]

from serving import errors
from serving.gateway.http import connection as connection_module
from serving.gateway.http.asgi import App, Receive, Scope, Send
from serving.gateway.http.connection import KEEP_ALIVE_S, ClientConnection, Intake, _Skipped
from serving.gateway.http.connections import Connections
from serving.gateway.http.endpoint import Endpoint
from serving.gateway.http.framing import Framing, Head
from serving.gateway.http.server import Server
from serving.gateway.listeners import listen
from serving.protocol.memory import Memory
from serving.settings import LimitSettings
from tests.gateway.odd_triton import BODY, LIMIT_S, until
from tests.gateway.wire import request, wire

GET = b"GET / HTTP/1.1\r\nHost:a\r\n\r\n"
LONG = 4 * 2**20


class Raising(Server):
    """Whose endpoint has a defect."""

    def endpoint_of(self, _: Head) -> Endpoint | None:
        async def answer(*_: object) -> None:
            raise ZeroDivisionError

        return cast(Endpoint, SimpleNamespace(handler=SimpleNamespace(answer=answer)))


def answering(body: bytes | None, **headers: str) -> App:
    """With `body`, or the path; a long one in two pieces."""

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        said = scope["path"].encode() if body is None else body
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        lines.append((b"content-length", b"%d" % len(said)))
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        half = len(said) // 2 if len(said) >= LONG else 0
        if half:
            await send({"type": "http.response.body", "body": said[:half], "more_body": True})
        await send({"type": "http.response.body", "body": said[half:]})

    return app


def server_for(app: App, kind: type[Server] = Server) -> Server:
    """Its stop waits for its clients for longer than any test takes."""
    limits, drain_s = LimitSettings(), round(2 * LIMIT_S)
    return kind(app, None, Intake(limits, Memory(limits.max_buffered_bytes), Connections("c", limits)), drain_s=drain_s)


@asynccontextmanager
async def client_of(server: Server, sends: bytes) -> AsyncIterator[tuple[socket.socket, asyncio.Task[None]]]:
    """A socket that has sent this, and reads only where the test does; both sides hold little."""
    listener = listen("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    address = listener.getsockname()
    serving = asyncio.create_task(server.serve([listener]))
    await server.listening.wait()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, sends)
        try:
            yield client, serving
        finally:
            server.force()
            await serving


def run(test: Callable[[], Awaitable[Any]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test()

    uvloop.run(limited())


def test_thousands_of_requests_at_once_are_answered_in_order_and_few_of_them_held() -> None:
    number = 6000
    paths = [b"/%d" % at for at in range(number)]

    async def test() -> None:
        server = server_for(answering(None))
        loop = asyncio.get_running_loop()
        most = 0
        async with client_of(server, b"") as (client, _):
            sent = b"".join(GET.replace(b"/ ", path + b" ") for path in paths)
            sending = asyncio.create_task(loop.sock_sendall(client, sent))
            got = bytearray()
            while not got.endswith(b"\r\n\r\n" + paths[-1]):
                piece = await loop.sock_recv(client, 2**16)
                assert piece, "it hangs up"
                got += piece
                most = max([most, *(len(one._queue) for one in server.connections)])
            await sending
        bodies = [answer.partition(b"\r\n\r\n")[2] for answer in bytes(got).split(b"HTTP/1.1 200 OK\r\n")[1:]]
        assert bodies == paths
        assert 100 < most < 4000

    run(test)


def test_a_stop_does_not_wait_for_the_client_whose_answer_was_under_way() -> None:
    async def test() -> None:
        server = server_for(answering(bytes(LONG)))
        async with client_of(server, GET) as (client, serving):
            await until(lambda: server.running, "it is answered")
            await asyncio.sleep(0.05)
            server.stop()
            await asyncio.sleep(0.2)
            size = 0
            while piece := await asyncio.get_running_loop().sock_recv(client, 2**16):
                size += len(piece)
            assert size > LONG
            async with asyncio.timeout(LIMIT_S):
                await asyncio.shield(serving)

    run(test)


def test_a_stop_waits_for_the_request_of_who_has_only_just_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "FIRST_REQUEST_S", 60.0)

    async def test() -> None:
        server = server_for(answering(b"last"))
        async with client_of(server, b"") as (client, serving):
            await until(lambda: server.connections, "it is taken")
            server.stop()
            await asyncio.sleep(0.3)  # longer than the last moment that all get
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, GET)
            said = b""
            while piece := await loop.sock_recv(client, 2**16):
                said += piece
            assert said.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in said.lower()
            await asyncio.shield(serving)

    run(test)


@pytest.mark.parametrize("num_before", [0, 1], ids=["a head that is new", "one that was read before"])
def test_a_stop_does_not_wait_for_who_has_just_been_answered(num_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "FIRST_REQUEST_S", 600.0)

    async def test() -> None:
        server = server_for(answering(b"answer"))
        loop = asyncio.get_running_loop()
        async with client_of(server, b"") as (client, serving):
            for _ in range(num_before):
                with socket.socket() as other:
                    other.setblocking(False)
                    await loop.sock_connect(other, client.getpeername())
                    await loop.sock_sendall(other, GET)
                    while b"answer" not in await loop.sock_recv(other, 2**16):
                        pass
            await loop.sock_sendall(client, GET)
            while b"answer" not in await loop.sock_recv(client, 2**16):
                pass
            server.stop()
            async with asyncio.timeout(KEEP_ALIVE_S / 2):  # a while later it would be hung up on in any case
                assert await loop.sock_recv(client, 100) == b""
            await asyncio.shield(serving)

    run(test)


@pytest.mark.parametrize("sends", [b"", GET[:9]], ids=["nothing", "a part"])
def test_a_stop_does_not_wait_for_who_connects_and_does_not_ask(sends: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "FIRST_REQUEST_S", 0.2)

    async def test() -> None:
        server = server_for(answering(b""))
        async with client_of(server, sends) as (client, serving):
            await until(lambda: server.connections, "it is taken")
            server.stop()
            assert await asyncio.get_running_loop().sock_recv(client, 100) == b""
            await asyncio.shield(serving)

    run(test)


def test_a_handler_that_raises_ends_its_connection() -> None:
    async def test() -> None:
        server = server_for(answering(b""), Raising)
        async with client_of(server, GET + GET) as (client, _):
            assert await asyncio.get_running_loop().sock_recv(client, 100) == b""
            await until(lambda: not server.connections, "it is forgotten")

    run(test)


@pytest.mark.parametrize("app", [answering(bytes(LONG)), answering(bytes(200_000), connection="close")])
def test_a_client_that_reads_nothing_is_not_waited_for(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "STALLED_S", 0.3)
    monkeypatch.setattr(connection_module, "LINGER_S", 0.3)

    async def test() -> None:
        server = server_for(app)
        async with client_of(server, GET):
            await until(lambda: server.connections, "it is taken")
            await until(lambda: not server.connections and not server.running, "it is forgotten")
            assert server.intake.connections.number == 0

    run(test)


def test_a_client_that_hardly_reads_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "STALLED_S", 0.3)
    monkeypatch.setattr(connection_module, "LEAST_TAKEN_BYTES", LONG)

    async def test() -> None:
        server = server_for(answering(bytes(LONG)))
        async with client_of(server, GET) as (client, _):

            async def read() -> None:
                with contextlib.suppress(ConnectionError):
                    while await asyncio.get_running_loop().sock_recv(client, 4096):
                        await asyncio.sleep(0.01)

            reading = asyncio.create_task(read())
            await until(lambda: server.connections, "it is taken")
            await until(lambda: not server.connections and not server.running, "it is forgotten")
            assert not reading.done()  # it would go on
            reading.cancel()

    run(test)


def test_nothing_is_said_to_a_client_that_left_while_its_refused_body_came() -> None:
    async def test() -> None:
        server = server_for(answering(b""))
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: ClientConnection(server), sock=ours)
        skipped = connection._skipped = _Skipped(b"", b"")
        timer = skipped.timer = loop.call_later(60, connection._leave_body)
        theirs.close()
        await until(lambda: not server.connections, "it has left")
        assert timer.cancelled()

    run(test)


@pytest.mark.parametrize(
    "pieces",
    [
        [request(BODY, b"Connection: close")],
        [request(b" " * 100_000 + BODY, b"Connection: close")[:50_000], b"not JSON"],
        [request(BODY[:-1], b"Connection: close")],
        [request(BODY, b"Content-Length: 7")],
        [b"no HTTP\r\n\r\n"],
        [b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n[]"],
    ],
    ids=["answered", "too slow", "refused", "two lengths", "no HTTP", "for the app"],
)
def test_a_connection_that_has_ended_is_gone_before_garbage_is_looked_for(pieces: list[bytes]) -> None:
    async def run() -> list[object]:
        async with wire(body_pause_s=0.1) as here:
            await here.say(*pieces)
            await until(lambda: here.num_connections == 0, "the connection has ended")
            await asyncio.sleep(0)
            kinds = (ClientConnection, Framing, HttpRequestParser, errors.RequestError)
            return [one for one in gc.get_objects(generation=0) if isinstance(one, kinds)]

    gc.collect()
    gc.disable()
    try:
        assert uvloop.run(run()) == []
    finally:
        gc.enable()
