"""The client's connection, as uvicorn has it: a small response in one go, and a word when the client has gone.

The ASGI way costs two calls, a look at every header and two writes, hence one system call and one packet more, per request:
about a fifth of what a request costs the gateway (`make bench`); and a task beside each request that waits, to hear of its client's end.
Where the connection is not one that this file knows, or the client is slow, `respond` and `tell_when_gone` say so and the caller does it
the ASGI way, so that a change in uvicorn costs speed and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_BYTES = 64 * 1024  # a larger response is not copied for one write, and needs ASGI's flow control


def respond(send: Callable[..., Any], head: bytes, body: bytes, *, close: bool) -> bool:
    """Writes a whole response to the client of `send`: `head` from the status line to its last header line, CRLF included.

    True where that is done (or the client has gone), False where nothing was written.
    """
    cycle = getattr(send, "__self__", None)
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.response_started
        or len(body) > MAX_BYTES
        or cycle.flow.write_paused
    ):
        return False
    if cycle.disconnected:
        return True
    for name, value in cycle.default_headers:  # date
        head += b"%b: %b\r\n" % (name, value)
    close = close or not cycle.keep_alive
    cycle.transport.write(head + (b"connection: close\r\n\r\n" if close else b"\r\n") + body)
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    if close:
        cycle.keep_alive = False
        cycle.transport.close()
    cycle.on_response()
    return True


class ClientConnection(HttpToolsProtocol):
    """Answers one request after the other, so that one at most waits to hear that its client has gone."""

    on_gone: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_gone is not None:
            self.on_gone()


def tell_when_gone(receive: Callable[..., Any], tell: Callable[[], None] | None) -> bool:
    """`tell` is called when the client of `receive` has gone; None: no longer. False where that cannot be heard of this way."""
    cycle = getattr(receive, "__self__", None)
    connection = getattr(getattr(cycle, "on_response", None), "__self__", None)
    if type(cycle) is not RequestResponseCycle or type(connection) is not ClientConnection:
        return False
    if tell is None:
        connection.on_gone = None
        return True

    def gone() -> None:
        cycle.disconnected = (
            True  # uvicorn tells only the last of several pipelined requests, and would miss this one's answer
        )
        tell()

    connection.on_gone = gone
    if cycle.disconnected:
        tell()
    return True
