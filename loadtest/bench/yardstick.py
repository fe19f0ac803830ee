"""The least that a Python gateway must do, to measure ours against: a body is forwarded to Triton over kept connections, nothing else.

No routing, checks, receipts, metrics or retries; never served to anybody. `UPSTREAM=127.0.0.1:8000` names the Triton.
Run by `make bench` as `uvicorn loadtest.bench.yardstick:forward` with uvloop and httptools.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

import httptools

HOST, _, PORT = os.environ.get("UPSTREAM", "127.0.0.1:8000").rpartition(":")
LENGTH_HEADER = b"inference-header-content-length"
kept: list[Link] = []


class Link(asyncio.Protocol):
    """One connection to Triton, used for one request at a time."""

    def __init__(self) -> None:
        self.waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self.body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        self.waiting = asyncio.get_running_loop().create_future()
        self.body = []
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(request)
        return self.waiting

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        if self.waiting is not None:
            self.waiting.set_result((self.parser.get_status_code(), b"".join(self.body)))


async def forward(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    link = kept.pop() if kept else (await asyncio.get_running_loop().create_connection(Link, HOST, int(PORT)))[1]
    length = b"".join(b"%b: %b\r\n" % (k, v) for k, v in scope["headers"] if k == LENGTH_HEADER)
    head = b"POST %b HTTP/1.1\r\nHost: triton\r\n%bContent-Length: %d\r\n\r\n" % (scope["raw_path"], length, len(body))
    status, answer = await link.send(head + body)
    kept.append(link)
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})
