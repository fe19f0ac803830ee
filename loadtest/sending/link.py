"""One kept HTTP/1.1 connection in an event loop: a request goes out, and how it ended is reported once.

Keep: nothing is sent twice. A connection that closed under a request has lost it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

NUM_BYTES_OF_ERROR = 200  # of the body of an answer that is not a 200


@dataclass(frozen=True, slots=True)
class Request:
    """To whom, and all its bytes. `kind` is the caller's."""

    address: tuple[str, int]
    data: bytes
    kind: int = 0


@dataclass(eq=False, slots=True)
class Pending:
    """A request under way. `is_sent`: bytes of it may be out."""

    request: Request
    due_s: float
    sent_s: float
    is_sent: bool = False


@dataclass(slots=True)
class Response:
    """`body`: the beginning of one that is not a 200's."""

    status: int = 0
    headers: dict[bytes, str] = field(default_factory=dict)
    body: bytes = b""


class Link(asyncio.Protocol):
    """Has at most one request under way. Reports when it is free for the next, when it is gone, and how each request ended."""

    def __init__(
        self,
        to: tuple[str, int],
        free: Callable[[Link], None],
        gone: Callable[[Link], None],
        ended: Callable[[Pending, Response | None, str], None],
    ) -> None:
        self.address = to
        self._free, self._gone, self._ended = free, gone, ended
        self._transport: asyncio.Transport | None = None
        self._pending: Pending | None = None
        self._response = Response()
        self._is_kept = True
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, pending: Pending) -> None:
        assert self._transport is not None
        self._pending, self._response = pending, Response()
        pending.sent_s, pending.is_sent = time.monotonic(), True
        self._transport.write(pending.request.data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(f"not an HTTP answer: {error}")
            self.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._gone(self)
        self._lose("closed before the answer was whole")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name.startswith((b"tandem-", b"retry-after")):
            self._response.headers[name] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()
        self._is_kept = self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        response = self._response
        if response.status != 200 and len(response.body) < NUM_BYTES_OF_ERROR:
            response.body += part[:NUM_BYTES_OF_ERROR]

    def on_message_complete(self) -> None:
        pending, self._pending = self._pending, None
        if self._is_kept:
            self._free(self)
        else:
            self.close()
        if pending is not None:
            self._ended(pending, self._response, "")

    def _lose(self, error: str) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._ended(pending, None, error)
