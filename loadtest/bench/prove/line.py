"""One kept HTTP/1.1 connection in an event loop: a request goes out, and how it ended is told once.

Keep: nothing is sent twice. A connection that closed under a request has lost it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools


@dataclass(frozen=True, slots=True)
class Request:
    """To whom, and all its bytes. `kind` is the caller's."""

    address: tuple[str, int]
    data: bytes
    kind: int = 0


@dataclass(eq=False, slots=True)
class Fired:
    request: Request
    due_s: float
    sent_s: float


@dataclass(slots=True)
class Answer:
    status: int = 0
    headers: dict[bytes, str] = field(default_factory=dict)


class Line(asyncio.Protocol):
    """With at most one request under way. Tells when it is free for the next, when it is gone, and how each request ended."""

    def __init__(
        self,
        to: tuple[str, int],
        free: Callable[[Line], None],
        gone: Callable[[Line], None],
        ended: Callable[[Fired, Answer | None, str], None],
    ) -> None:
        self.address = to
        self._free, self._gone, self._ended = free, gone, ended
        self._transport: asyncio.Transport | None = None
        self._fired: Fired | None = None
        self._answer = Answer()
        self._is_kept = True
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, fired: Fired) -> None:
        assert self._transport is not None
        self._fired, self._answer = fired, Answer()
        fired.sent_s = time.monotonic()
        self._transport.write(fired.request.data)

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
            self._end(f"not an HTTP answer: {error}")
            self.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._gone(self)
        self._end("closed before the answer was whole")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name.startswith((b"tandem-", b"retry-after")):
            self._answer.headers[name] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        self._is_kept = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        fired, self._fired = self._fired, None
        if self._is_kept:
            self._free(self)
        else:
            self.close()
        if fired is not None:
            self._ended(fired, self._answer, "")

    def _end(self, error: str) -> None:
        fired, self._fired = self._fired, None
        if fired is not None:
            self._ended(fired, None, error)
