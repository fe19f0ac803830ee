"""One keep-alive HTTP/1.1 connection that is cheap enough not to be what a load test measures.

geventhttpclient, which Locust uses, made the generator spend 345 µs of CPU per request, most of it on building and reading
headers; with this it is 150 (Skylake, 2.5 GHz, 8 users, JSON digits). It uses the plain `socket` module, which Locust has
patched in its process. Deliberately not here: TLS, redirects, proxies, retries: a request that fails is a fact to write down.
"""

from __future__ import annotations

import socket
import time
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


class Connection:
    """Raises OSError (TimeoutError among them) where the server is lost, and ConnectionError for an answer that is not HTTP."""

    def __init__(
        self, url: str, timeout_s: float, wanted: frozenset[bytes] = frozenset(), max_idle_s: float = MAX_IDLE_S
    ) -> None:
        host, port = address(url)
        self._address = (host, port)
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
        reading = _Reading(self._wanted)
        parser = reading.parser = httptools.HttpResponseParser(reading)
        try:
            connected.sendall(request)
            while not reading.is_complete:
                data = connected.recv(RECEIVE_BYTES)
                if data:
                    parser.feed_data(data)
                elif reading.ends_with_connection:
                    break
                else:
                    raise ConnectionResetError("the server closed the connection before the answer was complete")
        except httptools.HttpParserError as error:
            self.close()
            raise ConnectionError(f"not an HTTP answer: {error}") from error
        except BaseException:
            self.close()  # whatever is still on its way must not be taken for the next answer
            raise
        self._used_s = time.monotonic()
        if not reading.is_kept_alive:
            self.close()
        return Answer(parser.get_status_code(), reading.headers, b"".join(reading.parts))

    def _connect(self) -> socket.socket:
        self._socket = socket.create_connection(self._address, timeout=self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Reading:
    """The callbacks of httptools for one answer."""

    __slots__ = (
        "ends_with_connection",
        "has_length",
        "headers",
        "is_complete",
        "is_kept_alive",
        "parser",
        "parts",
        "wanted",
    )

    def __init__(self, wanted: frozenset[bytes]) -> None:
        self.wanted = wanted
        self.headers: dict[bytes, str] = {}
        self.parts: list[bytes] = []
        self.parser: httptools.HttpResponseParser | None = None
        self.is_complete = self.is_kept_alive = self.ends_with_connection = self.has_length = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self.wanted:
            self.headers[name] = value.decode("latin-1")
        if name in LENGTHS:
            self.has_length = True

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_headers_complete(self) -> None:
        assert self.parser
        self.is_kept_alive = self.parser.should_keep_alive()  # the parser forgets it with the end of the message
        self.ends_with_connection = not self.has_length

    def on_message_complete(self) -> None:
        self.is_complete = True


def address(url: str) -> tuple[str, int]:
    """Raises ValueError for what is not a plain http:// URL of a host."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"{url!r} is not of the form http://HOST:PORT, which is all the load generator speaks")
    return parts.hostname, parts.port or 80


def request_bytes(method: str, url: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    head = {"Host": urlsplit(url).netloc, **headers, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body
