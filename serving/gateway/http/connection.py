"""The client's connection: uvicorn's, made strict about heads, time limits and framing, with a one-write answer.

`respond` writes a small response in one go, and `tell_when_gone` hears of a client's end. The ASGI way costs two calls, a look at every
header and two writes, hence one system call and one packet more, per request: about a fifth of what a request costs the gateway (`make
bench`); and a task beside each request that waits. Where the connection is not one that this file knows, or the client is slow, both say
so and the caller does it the ASGI way. Rule: a request that comes in one read makes no timer and no object here; the others have
`partial_body.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from serving import errors
from serving.gateway.http import head
from serving.gateway.http.partial_body import Incoming, Intake
from serving.gateway.http.responses import error_head
from serving.gateway.request.route import Congestion

MAX_BYTES = 64 * 1024  # a larger response is not copied for one write, and needs ASGI's flow control
# Who is refused while it still sends gets this long, and may send this much, so that it comes to read why: closed at once, its system
# would throw the answer away. nginx waits 30 s; the bytes are those of the largest body. Guesses, not measured.
LINGER_S = 10.0
REFUSED_S = 1.0  # who has sent nothing yet, and whose connection is one too many
LINGER_BYTES = 64 * 2**20
# Of a request that is refused: reading past so many costs less than a new connection; a guess, not measured.
MOST_SKIPPED_BYTES = 2**20
LEAVES_IT = frozenset({b"transfer-encoding", b"expect", b"origin"})  # in a head: the app knows how to refuse it
H2C = frozenset({b"h2c"})  # what Java's client offers first; RFC 9110, 7.8: an upgrade may be ignored
OF_AN_UPGRADE = frozenset({b"connection", b"upgrade", b"http2-settings"})


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


class _Lingering:
    """The transport of a response that comes before its request's end: closing it waits for the client to have read the answer."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)

    def close(self) -> None:
        self._connection.linger()


class _NoCycle:
    """Stands for a request whose upgrade is ignored, until the parser has ended with it; `before` is the one before it."""

    response_complete = True

    def __init__(self, before: RequestResponseCycle) -> None:
        self.before = before


class _Nothing:
    """A body that is thrown away as it comes."""

    def __iadd__(self, _: bytes) -> _Nothing:
        return self

    def __len__(self) -> int:
        return 0


class _Refused:
    """Stands for a request that is refused by its head: its answer, `lines` and `text`, is written when its body is over."""

    __slots__ = (
        "body",
        "disconnected",
        "ends_at",
        "headers",
        "keep_alive",
        "lines",
        "more_body",
        "response_complete",
        "scope",
        "text",
    )
    message_event = asyncio.Event()  # for which nobody waits

    def __init__(self, scope: Any, headers: dict[bytes, bytes], lines: bytes, text: bytes, ends_at: float) -> None:
        self.scope = scope
        self.headers = headers
        self.lines = lines
        self.text = text
        self.body = _Nothing()
        self.ends_at = ends_at  # of the loop: its body may take so long
        self.more_body = self.keep_alive = True
        self.disconnected = self.response_complete = False


class ClientConnection(HttpToolsProtocol):
    """Answers one request after the other, so that one at most waits to hear that its client has gone."""

    on_gone: Callable[[], None] | None = None

    def __init__(self, *args: Any, intake: Intake, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._intake = intake
        self._origin = intake.origin
        self._congestion = Congestion() if intake.door is None else intake.door.congestion
        self._max_head = intake.limits.max_head_bytes
        self._max_headers = intake.limits.max_headers
        self._incoming: Incoming | None = None  # the head or body that has begun and not ended
        self._holding: list[Incoming] = []  # those whose bodies are held until they are answered
        self._refusal: errors.RequestError | None = None  # to be said after the answers that are under way
        self._ignores_input = False  # what comes is thrown away
        self._is_lingering = False  # all is said, and the client has not left
        self._num_discarded = 0
        self._read_size = 0
        self._has_refused = False  # in this read
        self._read = b""  # what has come of a head, and before it in the same read
        self._next = 0  # where in `_read` the next first line can be, at the earliest
        self._is_next = True  # whether it is there, but for empty lines

    # -- uvicorn's protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self._intake.limits.head_timeout_s, self.timeout_keep_alive_handler
        )
        self._address = self.client[0] if self.client else ""
        self._host = self.server[0] if self.server else ""
        refusal = self._intake.connections.begin(self._address)
        self._is_counted = refusal is None
        if refusal is not None:
            self._write_error(refusal, REFUSED_S)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._is_counted:
            self._intake.connections.end(self._address)
        self._unset_keepalive_if_required()
        if self._incoming is not None:
            self._incoming.release()
        for incoming in self._holding:
            incoming.release()
        if self.on_gone is not None:
            self.on_gone()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            self._discard(len(data))
            return
        if perf_counter() < self._congestion.until and self._is_refused_again(data):
            return
        self._unset_keepalive_if_required()
        before: Any = self.cycle
        self._read_size = len(data)
        self._has_refused = False
        incoming = self._incoming
        is_new = incoming is None and (type(before) is not _Refused or not before.more_body)  # a request begins here
        if incoming is None:
            self._read, self._next, self._is_next = data, 0, is_new
        elif incoming.cycle is None:
            self._read += data
        else:
            self._read, self._next, self._is_next = data, 0, False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._malformed(error)
            return
        cycle: Any = self.cycle
        if type(cycle) is _Refused and not cycle.response_complete:
            if is_new and cycle.scope is self.scope and self._intake.door is not None:
                self._intake.door.remember(self._host, data, self.url, cycle.headers)
            self._skip_body(cycle)
        elif cycle is before or self._incoming is not None or cycle.more_body or cycle.scope is not self.scope:
            self._continue(before, len(data))
        if self._incoming is None or self._incoming.cycle is not None:
            self._read = b""

    def on_headers_complete(self) -> None:
        cycle: Any = self.cycle
        if type(cycle) is _Refused:
            self._answer_refused()
        if (
            self._read_size > self._max_head
            or self._incoming is not None
            or len(self.headers) > self._max_headers
            or len(self.url) > head.MAX_TARGET_BYTES
        ):
            self._check_size()
        parser = self.parser
        method, version = parser.get_method(), parser.get_http_version()
        is_exact = self._is_line_exact(b"%b %b HTTP/" % (method, self.url))
        by_name = head.check(version, method, self.url, self.headers)
        if self._origin is not None:
            self._origin.check(by_name, self._host, method, self.url)
        if not is_exact:
            raise errors.BadRequest("the first line must be METHOD PATH HTTP/1.1, with one space between each")
        if parser.should_upgrade():
            upgrade = dict(self.headers).get(b"upgrade", b"")
            if upgrade.lower() not in H2C:
                raise errors.Unsupported(f"an upgrade to {upgrade[:40].decode('latin-1')!r} is not offered")
            self.cycle = _NoCycle(self.cycle)  # type: ignore[assignment]
            return
        refused = None
        if perf_counter() < self._congestion.until and method == b"POST" and version == "1.1":
            refused = self._refused(by_name)
        if refused is not None:
            self.cycle = refused  # type: ignore[assignment]
        else:
            super().on_headers_complete()
        self.headers = []  # what comes after the body as a trailer is no header

    def on_response_complete(self) -> None:
        if self._is_lingering:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()
        if self._refusal is not None and self.cycle.response_complete:
            self._write_error(self._refusal)

    def shutdown(self) -> None:
        super().shutdown()
        for incoming in self._holding:
            incoming.keep_alive = False

    # -- what is refused by its head ----------------------------------------------------------------------------------

    def _is_refused_again(self, data: bytes) -> bool:
        """A whole request whose head is known to the door is answered past the parser, which still waits for the next."""
        cycle, door = self.cycle, self._intake.door
        if (
            door is None
            or self._incoming is not None
            or (cycle is not None and not cycle.response_complete)
            or self.flow.write_paused
            or self.transport.is_closing()
        ):
            return False
        refusal = door.again(self._host, data)
        if refusal is None:
            return False
        self._unset_keepalive_if_required()
        lines, text = refusal
        self.server_state.total_requests += 1
        self.transport.write(lines + self._default_lines() + b"\r\n" + text)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        return True

    def _default_lines(self) -> bytes:
        """The date."""
        return b"".join(b"%b: %b\r\n" % line for line in self.server_state.default_headers)

    def _refused(self, headers: dict[bytes, bytes]) -> _Refused | None:
        """Where its answer can follow that of the request before it at once, and its body is so small that it is read to its end."""
        cycle: Any = self.cycle
        door = self._intake.door
        if (
            door is None
            or self._incoming is not None
            or (cycle is not None and not cycle.response_complete)
            or self._has_refused  # one in each read, so that others have their turn
            or self.flow.write_paused
            or len(headers) < len(self.headers)
            or not int(headers.get(b"content-length", b"0")) <= MOST_SKIPPED_BYTES
            or not LEAVES_IT.isdisjoint(headers)
            or not self.parser.should_keep_alive()
        ):
            return None
        refusal = door.refusal(self.url, headers)
        if refusal is None:
            return None
        lines, text = refusal
        self._has_refused = True
        ends_at = self.loop.time() + self._intake.limits.body_pause_s
        return _Refused(self.scope, headers, lines + self._default_lines(), text, ends_at)

    def _skip_body(self, refused: _Refused) -> None:
        """After each read until it is over."""
        if refused.more_body:
            self.timeout_keep_alive_task = self.loop.call_at(refused.ends_at, self._leave_body, refused)
            return
        self._answer_refused()
        if self.scope is not refused.scope:
            self._begin_head(0)
        elif not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _answer_refused(self) -> None:
        refused: Any = self.cycle
        if type(refused) is not _Refused or refused.more_body or refused.response_complete:
            return
        door = self._intake.door
        close = not refused.keep_alive or (door is not None and door.is_closing)
        self._write_refusal(refused, close=close)
        if close:
            self.transport.close()

    def _leave_body(self, refused: _Refused) -> None:
        """What it is told does not depend on how slowly its body comes; the rest would be read as the next request."""
        self._write_refusal(refused, close=True)
        self.linger()

    def _write_refusal(self, refused: _Refused, *, close: bool) -> None:
        refused.response_complete = True
        self.server_state.total_requests += 1
        self.transport.write(refused.lines + (b"connection: close\r\n\r\n" if close else b"\r\n") + refused.text)

    # -- what does not come whole -------------------------------------------------------------------------------------

    def _continue(self, before: RequestResponseCycle | None, size: int) -> None:
        """After a read that did not just bring whole requests."""
        incoming, cycle = self._incoming, self.cycle
        if incoming is not None:
            incoming.add(size)
            if incoming.error is not None or not self._has_ended(incoming, before):
                return
            incoming.complete()
            self._incoming = None
        if cycle is not None and cycle.scope is self.scope:
            if cycle.more_body and not cycle.response_complete:
                self._begin_body(cycle)
            elif cycle.response_complete:  # empty lines, which belong to no request
                self._begin_head(size)
        else:
            self._begin_head(size if cycle is before else 0)  # or else of which some belongs to the request before

    def _has_ended(self, incoming: Incoming, before: RequestResponseCycle | None) -> bool:
        if incoming.cycle is None:
            if self.cycle is not before:
                return True
            if incoming.size > self._max_head:
                incoming.stop(self._too_large())
            return False
        if incoming.cycle.more_body:
            return False
        incoming.cycle.keep_alive = incoming.keep_alive
        incoming.cycle.transport = self.transport
        return True

    def _begin_head(self, size: int) -> None:
        self._incoming = Incoming(self._intake, self)
        self._incoming.add(size)
        if size > self._max_head:
            self._incoming.stop(self._too_large())

    def _begin_body(self, cycle: RequestResponseCycle) -> Incoming:
        """An answer before its end closes the connection, or what is left would be read as the next request."""
        if self._incoming is not None:
            self._incoming.complete()
        incoming = self._incoming = Incoming(self._intake, self, cycle)
        self._holding = [one for one in self._holding if one.is_held]
        self._holding.append(incoming)
        cycle.keep_alive = False
        cycle.transport = _Lingering(self)  # type: ignore[assignment]
        return incoming

    def _is_line_exact(self, line: bytes) -> bool:
        """The parser skips spaces, takes RTSP/1.0, and does not say where a line is: of the first in a read we know."""
        at = self._read.find(line, self._next)
        if at < 0 or (self._is_next and at > 0 and self._read[:at].strip(b"\r\n")):
            return False
        self._next, self._is_next = at + len(line), False
        return True

    def _check_size(self) -> None:
        """Raises TargetTooLong or HeadTooLarge."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._max_head or len(self.url) > head.MAX_TARGET_BYTES:
            raise self._too_large()
        if len(self.headers) > self._max_headers:
            raise errors.HeadTooLarge(f"the request has more than {self._max_headers} headers")

    def _too_large(self) -> errors.RequestError:
        if self.scope is not None and len(self.url) > head.MAX_TARGET_BYTES:
            return errors.TargetTooLong(f"the path and query have more than {head.MAX_TARGET_BYTES} bytes")
        return errors.HeadTooLarge(f"the head of the request has more than {self._max_head} bytes")

    # -- what is refused ----------------------------------------------------------------------------------------------

    def fail(self, error: errors.RequestError, *, app_knows: bool) -> None:
        """Nothing more is read, and the client is told: by the app, where it waits for the body that this is about."""
        self._ignores_input = True
        self._read = b""
        if app_knows:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._refusal = error
        elif isinstance(error, errors.TooSlow) and not self._has_begun():
            self.transport.close()
        else:
            self._write_error(error)

    def _has_begun(self) -> bool:
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    def _malformed(self, error: httptools.HttpParserError) -> None:
        self._answer_refused()
        cause = error.__context__
        if isinstance(cause, errors.RequestError):
            refusal = cause
        elif isinstance(error, httptools.HttpParserCallbackError):
            self.logger.error("a request could not be taken", exc_info=cause or error)
            refusal = errors.BadRequest("the request could not be understood")
        elif str(error).startswith(("Pause on PRI", "Invalid HTTP version")):
            refusal = errors.VersionNotSupported(head.OTHER_PROTOCOLS)
        else:
            refusal = errors.BadRequest(f"this is not HTTP as it must be: {error}")
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope and cycle.more_body and not cycle.response_complete:
            incoming = self._incoming
            (incoming if incoming is not None and incoming.cycle is cycle else self._begin_body(cycle)).stop(refusal)
        else:
            if self._incoming is not None:
                self._incoming.complete()
            self.fail(refusal, app_knows=False)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """The parser leaves off after a head that asks for an upgrade: it reads the same head again, which does not."""
        ignored: Any = self.cycle
        self.cycle = ignored.before
        lines = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name not in OF_AN_UPGRADE]
        method = self.parser.get_method()
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self.url, b"".join(lines), rest))

    def _write_error(self, error: errors.RequestError, linger_s: float = LINGER_S) -> None:
        """Writes an error that no app knows of, and ends the connection."""
        if self.transport.is_closing():
            return
        self._refusal = None
        extra = [*self.server_state.default_headers, (b"connection", b"close")]
        head_lines, body = error_head(error, extra, self.url.decode("latin-1") if self._has_begun() else "")
        self.transport.write(head_lines + b"\r\n" + body)
        self.linger(linger_s)

    def linger(self, linger_s: float = LINGER_S) -> None:
        """Ends our side, and the connection once the client has ended its own, or was given long enough to."""
        if self.transport.is_closing() or self._is_lingering:
            return
        self._ignores_input = self._is_lingering = True
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(linger_s, self.transport.abort)
        self.flow.resume_reading()
        self.transport.write_eof()

    def _discard(self, size: int) -> None:
        self._num_discarded += size
        if self._num_discarded > LINGER_BYTES:
            self.transport.abort()


def tell_when_gone(receive: Callable[..., Any], tell: Callable[[], None] | None) -> bool:
    """`tell` is called when the client of `receive` has gone; None: no longer. False where that cannot be heard of this way."""
    cycle = getattr(receive, "__self__", None)
    if type(cycle) is Incoming:
        connection: Any = cycle.connection
        cycle = cycle.cycle
    else:
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
    if connection.cycle is cycle:  # uvicorn stops reading behind a large body, and would hear of no end
        connection.flow.resume_reading()
    if cycle.disconnected:
        tell()
    return True
