"""A gateway of this process on a real socket before a server that notes what reaches it, and a client that sends bytes as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvloop

from serving.gateway.app import Gateway
from serving.gateway.http.server import Server
from serving.gateway.listeners import listen
from serving.gateway.serve import server_of
from serving.settings import GatewaySettings
from tests.gateway.odd_triton import BODY, GOOD, OddTriton, gateway_of

INFER = b"POST /v2/models/m/infer HTTP/1.1\r\n"
HOST = b"Host: localhost\r\n"
LIMIT_S = 60.0  # for an answer; the machine may be busy


def request(body: bytes = BODY, *lines: bytes, first: bytes = INFER + HOST) -> bytes:
    return first + b"".join(line + b"\r\n" for line in lines) + b"Content-Length: %d\r\n\r\n" % len(body) + body


CLOSING = request(BODY, b"Connection: close")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The text of an error that has our form."""
        assert self.headers["content-type"] == "application/json"
        text = json.loads(self.body)["error"]
        assert isinstance(text, str)
        assert text
        return text


def answers_in(data: bytes) -> list[Answer]:
    """The whole responses, each with a Content-Length unless it is a 204. Raises AssertionError for anything else."""
    found = []
    while data:
        head, separator, rest = data.partition(b"\r\n\r\n")
        assert separator, data
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 "), first
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        status = int(first.split(" ")[1])
        size = 0 if status == 204 else int(headers["content-length"])
        assert len(rest) >= size
        found.append(Answer(status, headers, rest[:size]))
        data = rest[size:]
    return found


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    data = b""
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            data += piece
    return data


@dataclass
class Wire:
    """`reached`: bodies of the inferences that came to Triton."""

    gateway: Gateway
    server: Server
    port: int
    reached: list[bytes] = field(default_factory=list)

    async def say(self, *pieces: bytes, pause_s: float = 0.0, limit_s: float = LIMIT_S) -> list[Answer]:
        """Sends the pieces and reads until the gateway closes. Raises TimeoutError where it does not."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        reading = asyncio.create_task(
            _read_all(reader)
        )  # at once: a client that is refused while it sends should not miss why
        try:
            async with asyncio.timeout(limit_s):
                with suppress(ConnectionError):  # it may have been refused already
                    for piece in pieces:
                        if writer.transport.is_closing():
                            break
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(pause_s)
                return answers_in(await reading)
        finally:
            reading.cancel()
            writer.transport.abort()

    @property
    def num_connections(self) -> int:
        return len(self.server.connections)


@asynccontextmanager
async def wire(
    gate: asyncio.Event | None = None,
    takes_s: float = 0.0,
    *,
    max_batch: int = 1,
    models: Iterable[str] = ("m-fp32",),
    origins: Iterable[str] = (),
    **limits: Any,
) -> AsyncIterator[Wire]:
    """`gate`: answers wait until it is set, and then take so long. `origins` are allowed."""
    reached: list[bytes] = []

    async def infer(body: bytes) -> tuple[int, dict[str, Any]]:
        reached.append(body)
        if gate is not None:
            await gate.wait()
            await asyncio.sleep(takes_s)
        return 200, GOOD

    pools = {"cpu": {"urls": ["http://x:1"], "device": "cpu"}}
    settings = GatewaySettings.model_validate(
        {"version": 1, "pools": pools, "limits": limits, "allowed_origins": list(origins)}
    )
    listener = listen("127.0.0.1", 0)
    triton = OddTriton(infer, models=list(models), max_batch=max_batch)
    async with gateway_of({"cpu": [triton]}, limits=limits) as gateway:
        server = server_of(gateway, settings)
        serving = asyncio.create_task(server.serve([listener]))
        reached.clear()  # the gateway measures each model once
        try:
            yield Wire(gateway, server, listener.getsockname()[1], reached)
        finally:
            server.stop()
            await serving


def say_all(requests: Iterable[bytes], **limits: Any) -> tuple[list[list[Answer]], list[bytes]]:
    """What each is answered on a connection of its own, and what of them all reached Triton."""

    async def run() -> tuple[list[list[Answer]], list[bytes]]:
        async with wire(**limits) as here:
            return [await here.say(one) for one in requests], here.reached

    return uvloop.run(run())
