"""A log as it comes, from a server that speaks plain HTTP: silence is no error, and who is not there is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes import client

from serving.cluster import api
from serving.cluster.api import Connection
from serving.cluster.client import ApiError, Unreachable


@contextlib.contextmanager
def answering(*pieces: bytes, status: int | None = 200, then_silent: bool = False) -> Iterator[Connection]:
    """One that sends its pieces and ends, or falls silent. `status` None: not even a head comes."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if status is not None:
                self.send_response(status)
                self.send_header("Transfer-Encoding", "chunked")  # as an API server
                self.end_headers()
                for it in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(it), it))
            if then_silent:
                over.wait(20)
            else:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            with client.ApiClient(client.Configuration(host=url)) as signed_in:
                yield Connection("c", url, "serve", signed_in)
        finally:
            over.set()
            server.shutdown()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "LOG_SILENCE_S", 0.2)


@pytest.mark.parametrize(("status", "lines"), [(200, ["one", "two"]), (None, [])])
def test_a_log_that_says_nothing_for_a_while_ends_without_an_error(status: int | None, lines: list[str]) -> None:
    with answering(b"one\ntw", b"o\n", status=status, then_silent=True) as connection:
        assert list(connection.log_lines("/log", {})) == lines


def test_a_log_that_ends_without_a_line_break_is_whole() -> None:
    with answering(b"one\n\xc3", b"\xa9") as connection:
        assert list(connection.log_lines("/log", {})) == ["one", "é"]


def test_a_refusal_and_a_server_that_is_gone_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "LOG_SILENCE_S", 20.0)  # a busy machine's silence is none
    with answering(status=404) as connection, pytest.raises(ApiError):
        list(connection.log_lines("/log", {}))
    with pytest.raises(Unreachable):
        list(connection.log_lines("/log", {}))
