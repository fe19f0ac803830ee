"""Clients that ask, wait for the answer, pause a moment and ask again, and write down what they saw. Each is a thread.

Every request has its own time limit on the client's side. Keep: connecting and sending are told apart, because a request that was never
taken is not lost. A connection that the server closed between two requests is opened anew before the next one is sent, as every
HTTP client does; what fails once bytes are out is written down as lost, and never sent again.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httptools

from loadtest.bench.outage import Attempt

NUM_CLIENTS = 8
PAUSE_S = 0.002  # leaves the two cores time to bring back what was killed
PAUSE_AFTER_REFUSAL_S = 0.02  # short of Retry-After on purpose: recovery is to be seen when it comes
TIME_LIMIT_S = 10.0  # past it a request counts as hanging


@dataclass(slots=True)
class Load:
    """What the clients have seen so far. `attempts` only grows; whoever reads copies it first."""

    attempts: list[Attempt] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def so_far(self) -> list[Attempt]:
        return self.attempts[:]


@contextmanager
def load(address: tuple[str, int], request: bytes, *, num_clients: int = NUM_CLIENTS) -> Iterator[Load]:
    """Clients that send `request`, head and body, until the block ends."""
    shared = Load()
    threads = [threading.Thread(target=_client, args=(address, request, shared)) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield shared
    finally:
        shared.stop.set()
        for thread in threads:
            thread.join(TIME_LIMIT_S + 5)


def _client(address: tuple[str, int], request: bytes, shared: Load) -> None:
    line = Line(address)
    while not shared.stop.is_set():
        attempt = line.ask(request)
        shared.attempts.append(attempt)
        shared.stop.wait(PAUSE_S if attempt.status == 200 else PAUSE_AFTER_REFUSAL_S)
    line.close()


class Line:
    """One client's connection."""

    def __init__(self, address: tuple[str, int], time_limit_s: float = TIME_LIMIT_S) -> None:
        self._address = address
        self._time_limit_s = time_limit_s
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> Attempt:
        began_s = time.monotonic()
        sent = False
        try:
            connected = self._ready()
            sent = True  # from here on bytes may be out
            connected.sendall(request)
            answer = self._receive(connected, began_s + self._time_limit_s)
        except OSError as error:
            self.close()
            why = "timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error))
            return Attempt(began_s, time.monotonic(), sent=sent, error=why)
        if not answer.keep:
            self.close()
        headers = answer.headers
        return Attempt(
            began_s, time.monotonic(), answer.status, headers.get(b"retry-after"), headers.get(b"tandem-error")
        )

    def _ready(self) -> socket.socket:
        """A connection on which nothing has arrived: what has would be its end."""
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self.close()
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=self._time_limit_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _receive(self, connected: socket.socket, deadline_s: float) -> _Reader:
        """Raises OSError where no whole answer comes in time."""
        reader = _Reader()
        while not reader.is_complete:
            connected.settimeout(max(0.001, deadline_s - time.monotonic()))
            data = connected.recv(65536)
            if not data:
                raise ConnectionResetError("closed before the answer was whole")
            try:
                reader.parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise ConnectionError(f"not an HTTP answer: {error}") from None
        return reader

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Reader:
    """The callbacks of httptools for one answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[bytes, str] = {}
        self.status = 0
        self.keep = self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.keep = self.parser.should_keep_alive()

    def on_message_complete(self) -> None:
        self.is_complete = True
