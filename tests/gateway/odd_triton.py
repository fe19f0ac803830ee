"""Servers that answer as no real Triton can be made to (at once with an error, late, never), and a gateway of this process before them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from serving.gateway.app import Gateway
from serving.gateway.http.connection import ClientConnection
from serving.gateway.serve import server_of
from serving.settings import GatewaySettings

BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
DIED = {"error": "Stub process 'm-fp32_0' is not healthy."}
GOOD: dict[str, Any] = {"model_name": "m-fp32", "outputs": []}
LIMIT_S = 120.0  # for whatever must happen; the machine may be busy

Answer = Callable[
    [bytes], Awaitable[tuple[int, Any]]
]  # body of an inference -> status, and JSON, or JSON and the bytes behind it


async def at_once(body: bytes) -> tuple[int, dict[str, Any]]:
    return 200, GOOD


@dataclass
class OddTriton:
    """Serves `m-fp32`, or what `models` says, of one row. `asked` counts its inferences."""

    infer: Answer = at_once
    kind: str = "KIND_CPU"
    models: list[str] = field(default_factory=lambda: ["m-fp32"])
    failures: dict[str, str] = field(default_factory=dict)  # name -> why it could not be loaded
    unloaded: list[str] = field(default_factory=list)  # by somebody
    loading: list[str] = field(default_factory=list)
    index: tuple[int, Any] | None = None  # in place of all these
    digest: str = "00"
    version: str = "1"
    config_s: float = 0.0  # that a configuration takes
    hangs: bool = False  # nothing is answered any more
    hangs_up: int = 0  # index requests to answer by closing the connection
    max_batch: int = 1
    task: str = ""
    statistics: tuple[int, Any] = (400, {"error": "statistics are off"})
    asked_for_statistics: int = 0
    asked: int = 0
    heads: list[bytes] = field(default_factory=list)  # of inferences
    port: int = 0

    async def start(self) -> OddTriton:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def close(self) -> None:
        self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
                if b"/infer " in head:
                    self.heads.append(head)
                if self.hangs_up and b"/index " in head:
                    self.hangs_up -= 1
                    break
                status, out = await self._answer(head.split(b" ")[1].decode(), body)
                while self.hangs:
                    await asyncio.sleep(0.05)
                out, blob = out if isinstance(out, tuple) else (out, b"")
                data = json.dumps(out).encode()
                length = b"Inference-Header-Content-Length: %d\r\n" % len(data) if blob else b""
                size = len(data) + len(blob)
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%b\r\n%b%b" % (status, size, length, data, blob))
        writer.close()

    async def _answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/v2/health/live":
            return 200, {}
        if path == "/v2":
            return 200, {"version": "2.51.0"}
        if path == "/v2/repository/index" and self.index is not None:
            return self.index
        if path == "/v2/repository/index":
            rows = [{"name": name, "version": self.version, "state": "READY"} for name in self.models]
            rows += [{"name": name, "version": "1", "state": "LOADING"} for name in self.loading]
            away = self.failures | dict.fromkeys(self.unloaded, "unloaded")
            failed = {"version": "1", "state": "UNAVAILABLE"}
            return 200, rows + [{"name": name, **failed, "reason": reason} for name, reason in away.items()]
        if path == "/v2/models/stats":
            self.asked_for_statistics += 1
            return self.statistics
        if path.endswith("/config"):
            await asyncio.sleep(self.config_s)
            return 200, self._config(path.split("/")[3])
        self.asked += 1
        return await self.infer(body)

    def _config(self, name: str) -> dict[str, Any]:
        model, _, variant = name.rpartition("-")
        gate = {"model": model, "variant": variant, "digest": self.digest, "gate": "passed", "engine": "cpu"}
        gate |= {"task": self.task} if self.task else {}
        return {
            "name": name,
            "max_batch_size": self.max_batch,
            "instance_group": [{"count": 1, "kind": self.kind, "gpus": [0] if self.kind == "KIND_GPU" else []}],
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}],
            "parameters": {f"tandem_{key}": {"string_value": value} for key, value in gate.items()},
        }


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    took_s: float

    @property
    def error(self) -> str:
        return self.headers.get("tandem-error", "")


class _Memory(asyncio.Transport):
    """What a connection writes, without a socket. `whole` is set once that is a response."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.whole = asyncio.Event()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        head, end, body = self.written.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            self.whole.set()

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = write_eof = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0


async def ask(gateway: Gateway, body: bytes = BODY, model: str = "m", **headers: str | float) -> Reply:
    """As a client would, without a socket; where it is cancelled, so is what answers it."""
    server, transport = server_of(gateway, gateway._settings), _Memory()
    connection = ClientConnection(server)
    given = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{given}\r\n"
    began = perf_counter()
    connection.connection_made(transport)
    try:
        asyncio.get_running_loop().call_soon(connection.data_received, head.encode() + body)
        await transport.whole.wait()
    except asyncio.CancelledError:
        server.cancel()
        await asyncio.sleep(0)
        raise
    finally:
        connection.connection_lost(None)
    took_s = perf_counter() - began
    first, _, rest = transport.written.partition(b"\r\n")
    lines, _, told = rest.partition(b"\r\n\r\n")
    said = dict(line.split(": ", 1) for line in lines.decode().split("\r\n"))
    return Reply(int(first.split(b" ")[1]), said, told, took_s)


async def until(happened: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not happened():
            await asyncio.sleep(0.005)
    assert happened(), what


@asynccontextmanager
async def gateway_of(
    pools: Mapping[str, list[OddTriton]], *, prices: Mapping[str, float] | None = None, seen: bool = True, **more: Any
) -> AsyncIterator[Gateway]:
    """Ready where `seen`: every server was asked what it serves, and what is measured of it is known."""
    described: dict[str, dict[str, Any]] = {}
    for name, servers in pools.items():
        device = "gpu" if any(server.kind == "KIND_GPU" for server in servers) else "cpu"
        described[name] = {"urls": [(await server.start()).url for server in servers], "device": device}
        if prices:
            described[name]["price_per_hour"] = prices[name]
    gateway = Gateway(GatewaySettings.model_validate({"version": 1, "pools": described, **more}), admin_here=True)
    gateway.start()
    try:
        if seen:
            watched = [server for servers in gateway.catalogue.pools.values() for server in servers]
            await until(lambda: all(server.alive for server in watched), "every server is seen")
            await until(lambda: not gateway.candidates.num_measuring, "what is measured is known")
        yield gateway
    finally:
        await gateway.stop()
        for server in (server for servers in pools.values() for server in servers):
            server.close()
