"""What a client of `make prove` writes down, against servers that end a connection in every way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from loadtest.bench.clients import Line, load
from loadtest.bench.outage import Kind

REQUEST = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n{}"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ntandem-error: not_ready\r\nContent-Length: 2\r\n\r\n{}"
LAST = GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


@contextlib.contextmanager
def server(*answers: bytes, per_connection: int = 100) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Gives these answers in turn; an empty one closes. Also the number of requests on each connection."""
    left, counts = list(answers), list[int]()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                counts.append(0)
                with client:
                    while left and counts[-1] < per_connection and client.recv(65536):
                        counts[-1] += 1
                        client.sendall(left.pop(0))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname(), counts
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (GOOD, Kind.ANSWERED, "200"),
        (LAST, Kind.ANSWERED, "200"),
        (BUSY, Kind.REFUSED, "503"),
        (b"", Kind.LOST, "no answer (closed before the answer was whole)"),
        (GOOD[:-1], Kind.LOST, "no answer (closed before the answer was whole)"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", Kind.LOST, "no answer (closed before the answer was whole)"),
    ],
)
def test_an_answer_is_written_down_as_it_came(answer: bytes, kind: Kind, words: str) -> None:
    with server(answer, per_connection=1) as (address, _):
        line = Line(address, time_limit_s=20)
        attempt = line.ask(REQUEST)
        line.close()
    assert (attempt.kind, str(attempt)) == (kind, words)


def test_what_is_not_http_is_lost() -> None:
    with server(b"\x16\x03\x01 hello\r\n\r\n", per_connection=1) as (address, _):
        attempt = Line(address, time_limit_s=20).ask(REQUEST)
    assert attempt.kind is Kind.LOST
    assert "not an HTTP answer" in str(attempt)


def test_where_nobody_listens_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    attempt = Line(address, time_limit_s=20).ask(REQUEST)
    assert (attempt.kind, attempt.error) == (Kind.TURNED_AWAY, "Connection refused")


def test_a_server_that_says_nothing_is_waited_for_until_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        attempt = Line(listener.getsockname(), time_limit_s=0.05).ask(REQUEST)
    assert (attempt.kind, attempt.error) == (Kind.LOST, "timed out")


def test_a_connection_is_kept_and_one_that_the_server_said_it_would_close_is_not_used_again() -> None:
    with server(GOOD, LAST, GOOD) as (address, counts):
        line = Line(address, time_limit_s=20)
        assert [line.ask(REQUEST).status for _ in range(3)] == [200, 200, 200]
        line.close()
    assert counts == [2, 1]


def test_clients_stop_with_the_block_and_every_attempt_is_kept() -> None:
    enough = threading.Event()

    def count(clients: Callable[[], int]) -> None:
        while clients() < 20:
            enough.wait(0.01)

    with server(*[GOOD] * 10_000) as (address, counts):
        with load(address, REQUEST, num_clients=1) as clients:
            count(lambda: len(clients.attempts))
        assert all(attempt.kind is Kind.ANSWERED for attempt in clients.attempts)
        assert len(clients.attempts) == sum(counts)
