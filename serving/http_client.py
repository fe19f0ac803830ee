"""HTTP/1.1 clients: a kept connection for threads, and one GET for event loops. Load tests, probes and the scaler ask with these.

Cheap enough not to be what a load test measures: geventhttpclient, which Locust uses, made the generator spend 345 µs of CPU per request,
most of it on building and reading headers; with this it is 150 (Skylake, 2.5 GHz, 8 users, JSON digits). The plain `socket` module is one
that Locust has patched in its process. Deliberately not here: TLS, redirects, proxies, retries: a request that fails is a fact to write
down. What the gateway sends to Triton is `gateway/fleet/upstream.py`'s.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

# A connection that lay still for longer is made anew: the server may have closed it, which would count as an error of its own. Common load
# balancers close at 60 s, Tandem's gateway at 75.
MAX_IDLE_S = 30.0
LENGTHS = (b"content-length", b"transfer-encoding")
RECEIVE_BYTES = 65536  # an answer of a classifier fits into one read


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, str]  # names in lower case; only those that were asked for
    body: bytes
    has_length: bool = True  # without one the end of the connection was taken for the answer's


class Connection:
    """Raises OSError (TimeoutError among them) where the server is lost, and ConnectionError for an answer that is not HTTP."""

    def __init__(
        self, url: str, timeout_s: float, wanted: frozenset[bytes] = frozenset(), max_idle_s: float = MAX_IDLE_S
    ) -> None:
        self._address = address(url)
        self._timeout_s = timeout_s
        self._wanted = wanted
        self._max_idle_s = max_idle_s
        self._used_s = 0.0  # when the last answer was whole, by time.monotonic
        self._socket: socket.socket | None = None

    def send(self, request: bytes) -> Answer:
        """One whole request, head and body in one write; returns when the whole answer has come."""
        if self._socket is not None and time.monotonic() - self._used_s > self._max_idle_s:
            self.close()
        connected = self._socket or self._connect()
        reader = _Reader(self._wanted)
        try:
            connected.sendall(request)
            while not reader.is_complete:
                reader.feed(connected.recv(RECEIVE_BYTES))
        except BaseException:
            self.close()  # whatever is still on its way must not be taken for the next answer
            raise
        self._used_s = time.monotonic()
        if not reader.is_kept_alive:
            self.close()
        return reader.answer()

    def _connect(self) -> socket.socket:
        self._socket = socket.create_connection(self._address, timeout=self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


async def get(
    host: str, port: int, path: str, headers: Mapping[str, str] | None = None, max_bytes: int | None = None
) -> Answer:
    """On a connection of its own; can be cancelled. Raises OSError, and ConnectionError for an answer that is not HTTP or too long."""
    stream, writer = await asyncio.open_connection(host, port)
    try:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        given = {"Connection": "close", "User-Agent": "tandem", **(headers or {})}
        writer.write(request_bytes("GET", f"http://{authority}", path, given))
        reader = _Reader(frozenset(), max_bytes)
        while not reader.is_complete:
            reader.feed(await stream.read(RECEIVE_BYTES))
        return reader.answer()
    finally:
        writer.close()
        with suppress(OSError):
            writer.transport.abort()  # nothing is left to send, and nobody waits for a goodbye


class _Reader:
    """Reads one answer. Its methods that begin with on_ are called by httptools."""

    __slots__ = (
        *("headers", "is_complete", "is_kept_alive"),
        *("_has_head", "_has_length", "_max_bytes", "_num_bytes", "_parser", "_parts", "_wanted"),
    )

    def __init__(self, wanted: frozenset[bytes], max_bytes: int | None = None) -> None:
        self._wanted = wanted
        self._max_bytes = max_bytes
        self.headers: dict[bytes, str] = {}
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self.is_complete = self.is_kept_alive = self._has_head = self._has_length = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """What was received; nothing: the server has closed the connection, which ends an answer that has no length."""
        if not data:
            if not self._has_head or self._has_length:
                raise ConnectionResetError("the server closes the connection before its answer is whole")
            self.is_complete = True
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ConnectionError(f"the answer is not HTTP: {error}") from error
        if self._max_bytes is not None and self._num_bytes > self._max_bytes:
            raise ConnectionError(f"the answer has more than {self._max_bytes} bytes")

    def answer(self) -> Answer:
        return Answer(self._parser.get_status_code(), self.headers, b"".join(self._parts), self._has_length)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self._wanted:
            self.headers[name] = value.decode("latin-1")
        if name in LENGTHS:
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._has_head = True
        self.is_kept_alive = self._parser.should_keep_alive()  # the parser forgets it with the end of the message

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)
        self._num_bytes += len(part)

    def on_message_complete(self) -> None:
        self.is_complete = True


def address(url: str) -> tuple[str, int]:
    """Raises ValueError for what is not a plain http:// URL of a host."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"{url!r} is not of the form http://HOST:PORT, which is all that is spoken here")
    return parts.hostname, parts.port or 80


def request_bytes(method: str, url: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    head = {"Host": urlsplit(url).netloc, **headers, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body
