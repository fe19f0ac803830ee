"""API servers at their worst, on loopback: nobody there, silent, speaking something else, refusing. No Kubernetes is imitated."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def nobody() -> Iterator[str]:
    """An address whose port is taken and not listened on, so that a connection is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def silent() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def answering(
    status: int, body: bytes, content_type: str = "application/json", port: int = 0, **of: bytes
) -> Iterator[str]:
    """Gives the same answer to every question, over plain HTTP, but for `of`: the bodies for paths that end so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = of.get(self.path.partition("?")[0].rpartition("/")[2], body)
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
