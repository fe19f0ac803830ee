"""The client's connection: a protocol around `framing.py`, with time limits, backpressure, answers in order and a lingering close.

A small answer is one write. A whole request whose head came before byte for byte is not parsed again: clients repeat theirs, and a look-up
costs a tenth of a parser. Rules: one request is answered at a time; one that comes in one read makes no timer and no object but itself, the
others have `partial_body.py`; an answer before its request's end closes the connection, or what is left would be read as the next request.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Protocol, cast

from serving import errors
from serving.gateway.eager import EagerTask, Pending
from serving.gateway.fleet.upstream import JOIN_BELOW_BYTES
from serving.gateway.http.connections import Connections
from serving.gateway.http.door import Door
from serving.gateway.http.endpoint import Endpoint
from serving.gateway.http.framing import COPIED_BYTES, END, HEAD_END, Event, Framing, Head
from serving.gateway.http.origin import AllowedOrigins, OriginPolicy
from serving.gateway.http.partial_body import Incoming
from serving.gateway.http.responses import error_head
from serving.gateway.request.route import Congestion
from serving.protocol.memory import Memory
from serving.settings import LimitSettings

WRITE_BYTES = 256 * 1024  # of a long answer, before others have their turn; what asyncio reads at once, too
HIGH_WATER_BYTES = (
    64 * 1024
)  # of a body that nobody reads, or of requests that wait for their turn: then the client has to wait
KEEP_ALIVE_S = 75.0  # longer than the 60 s of common load balancers, which must be the ones to close an idle connection
# Who is refused while it still sends gets this long, and may send this much, so that it comes to read why: closed at once, its system
# would throw the answer away. nginx waits 30 s; the bytes are those of the largest body. Guesses, not measured.
LINGER_S = 10.0
REFUSED_S = 1.0  # who has sent nothing yet, and whose connection is one too many
FIRST_REQUEST_S = (
    2.0  # from when somebody connected until a stop hangs up on who has not asked yet; a guess, not measured
)
LINGER_BYTES = 64 * 2**20
# Of a request that is refused: reading past so many costs less than a new connection; a guess, not measured.
MOST_SKIPPED_BYTES = 2**20
SLICE_BYTES = 16 * 1024  # of a read that has many lines, before others have their turn: 600 of the shortest requests
MANY_LINES = 512  # in one read: more than one head has, and than are by chance in a body; a guess, not measured
STALLED_S = (
    60.0  # who takes less of its answer in so long has left, as nginx has it of nothing; after a close, LINGER_S
)
LEAST_TAKEN_BYTES = (
    16 * 1024
)  # or all that is there: so that an answer ends, however slow its client; a guess, not measured
LINE_END = re.compile(rb"\r\n")
LEAVES_IT = frozenset({b"transfer-encoding", b"expect", b"origin"})  # in a head: the app knows how to refuse it
# Heads that came, and their lengths: clients have a few each. At most 4 MB of them with what was read; guesses, not measured.
MAX_KNOWN, MAX_KNOWN_BYTES = 512, 2048
CLOSE = b"connection: close\r\n\r\n"


@dataclass(slots=True)
class Intake:
    """What one listener takes in, and from whom. `memory`: of all listeners."""

    limits: LimitSettings
    memory: Memory
    connections: Connections
    origin: OriginPolicy | None = None  # None: whoever asks, by whatever name
    door: Door | None = None
    origins: AllowedOrigins | None = None  # None: pages of no other site may ask
    heads: dict[bytes, tuple[str, Head]] = field(default_factory=dict)  # that came before, each at an address


class Server(Protocol):
    """Who has the connections of one listener."""

    intake: Intake
    connections: set[ClientConnection]
    running: set[EagerTask]
    date_line: bytes

    def endpoint_of(self, head: Head) -> Endpoint | None:
        """Who answers such a request directly; None: an ASGI app does."""

    def bridge(self, request: Request) -> None:
        """Has the app answer it. Nothing is raised."""


class Request:
    """One request, from its head to its answer. `chunks`: of its body, as far as it has come; `lines`: of every answer to it."""

    __slots__ = (
        "_enough",
        "_on_gone",
        "_waiting",
        "body_size",
        "chunks",
        "connection",
        "error",
        "has_left",
        "head",
        "incoming",
        "is_answered",
        "is_continued",
        "is_whole",
        "lines",
    )

    def __init__(self, connection: ClientConnection, head: Head) -> None:
        self.connection = connection
        self.head = head
        self.chunks: list[bytes | memoryview] = []
        self.body_size = 0
        self.is_whole = False
        self.incoming: Incoming | None = None  # where it did not come in one read
        self.error: errors.RequestError | None = None  # for which the rest of it is not read
        self.has_left = False  # its client
        self.is_answered = False
        self.is_continued = not head.expects_continue
        self.lines = b""
        self._waiting: Pending[errors.RequestError | None] | None = None
        self._enough = 0  # of the body, for who waits
        self._on_gone: Callable[[], None] | None = None

    @property
    def keep_alive(self) -> bool:
        return self.is_whole and self.error is None and self.head.keep_alive

    # -- for whoever answers it ---------------------------------------------------------------------------------------

    async def more(self, enough: int = 0) -> None:
        """Waits until more of the body has come than `enough` bytes, its end, or its client has left. Raises what is wrong with it."""
        if self.error is not None:
            raise self.error
        if self.is_whole or self.has_left:
            return
        connection = self.connection
        if not self.is_continued:
            self.is_continued = True
            connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.resume_reading()
        self._enough = enough
        self._waiting = Pending()
        try:
            error = await self._waiting
        finally:
            self._waiting = None
        if error is not None:
            raise error

    def listen(self, tell: Callable[[], None]) -> None:
        """`tell` is called when the client has gone; at once where it has."""
        self._on_gone = tell
        if self.has_left:
            tell()
        else:
            self.connection.hear()

    def ignore(self) -> None:
        """Nobody wants to hear of that any more."""
        self._on_gone = None

    def respond(self, head: bytes, body: bytes, *, close: bool) -> bool:
        """Writes a whole response: `head` from the status line to its last header line, CRLF included.

        False where it is long or its client slow, so that nothing was written: then `respond_slowly` does.
        """
        return self.connection.respond(self, head, body, close=close)

    async def respond_slowly(self, head: bytes, parts: Sequence[bytes], *, close: bool) -> None:
        """The same as fast as the client reads; others have their turn meanwhile."""
        await self.connection.respond_slowly(self, head, parts, close=close)

    # -- for its connection -------------------------------------------------------------------------------------------

    def feed(self, piece: bytes | memoryview) -> None:
        self.chunks.append(piece)
        self.body_size += len(piece)
        if self._waiting is not None:
            if self.body_size > self._enough:
                self._wake()
        elif self.body_size > HIGH_WATER_BYTES and not self.is_answered:
            self.connection.pause_reading()

    def end(self) -> None:
        self.is_whole = True
        self._wake()

    def stop(self, error: errors.RequestError) -> None:
        """The rest will not be read; the first that is wrong counts."""
        self.chunks = []
        if self.error is None:
            self.error = error
            self._wake()

    def abandon(self) -> None:
        """Whoever answers it has failed."""
        if not self.is_answered and not self.has_left:
            self.connection.abort()

    def leave(self) -> None:
        self.has_left = True
        if self.incoming is not None:
            self.incoming.release()
        self._wake()
        if self._on_gone is not None:
            self._on_gone()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_soon(None if self.has_left else self.error)


class _Skipped:
    """A request that was refused by its head: its answer, `lines` and `text`, is written when its body is over."""

    __slots__ = ("lines", "text", "timer")

    def __init__(self, lines: bytes, text: bytes) -> None:
        self.lines = lines
        self.text = text
        self.timer: asyncio.TimerHandle | None = None  # where its body does not come in one read


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_address",
        "_arriving",
        "_asks_until",
        "_congestion",
        "_current",
        "_drained",
        "_framing",
        "_heads",
        "_host",
        "_idle_until",
        "_ignores_input",
        "_incoming",
        "_intake",
        "_is_counted",
        "_is_lingering",
        "_is_slice_due",
        "_is_stopping",
        "_loop",
        "_num_discarded",
        "_num_queued_bytes",
        "_queue",
        "_refusal",
        "_server",
        "_skipped",
        "_stalled",
        "_timer",
        "_transport",
        "_unread",
        "client",
        "is_reading_paused",
        "server_address",
    )

    _transport: asyncio.Transport
    client: tuple[str, int] | None
    server_address: tuple[str, int] | None

    def __init__(self, server: Server) -> None:
        self._server = server
        intake = self._intake = server.intake
        self._heads = intake.heads
        self._congestion = Congestion() if intake.door is None else intake.door.congestion
        self._loop = asyncio.get_running_loop()
        self._framing: Framing | None = None  # made when it is needed
        self._arriving: Request | None = None  # whose body has not ended
        self._incoming: Incoming | None = None  # the head or body that has begun and not ended
        self._current: Request | None = None  # that is answered now
        self._queue: deque[Request] | tuple[()] = ()  # those behind it
        self._num_queued_bytes = 0
        self._skipped: _Skipped | None = None
        self._refusal: errors.RequestError | None = None  # to be said after the answers that are under way
        self._ignores_input = False  # what comes is thrown away
        self._is_lingering = False  # all is said, and the client has not left
        self._is_stopping = False
        self._num_discarded = 0
        self._drained: Pending[None] | None = None  # while the client does not read
        self._stalled: asyncio.TimerHandle | None = None  # looks whether it has taken anything meanwhile
        self._unread: deque[bytes] | tuple[()] = ()  # slices of what was read; the transport does not read then
        self._is_slice_due = False
        self.is_reading_paused = False

    # -- asyncio calls these ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self.client = _address(transport, "peername")
        self.server_address = _address(transport, "sockname")
        self._address = self.client[0] if self.client else ""
        self._host = self.server_address[0] if self.server_address else ""
        connected = self._loop.time()
        self._asks_until = connected + FIRST_REQUEST_S  # for the first time
        self._idle_until = connected + self._intake.limits.head_timeout_s
        self._timer = self._loop.call_at(self._idle_until, self._check_idle)
        refusal = self._intake.connections.begin(self._address)
        self._is_counted = refusal is None
        if refusal is not None:
            self._write_error(refusal, REFUSED_S)

    def connection_lost(self, _: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._is_counted:
            self._intake.connections.end(self._address)
        self._timer.cancel()
        if self._stalled is not None:
            self._stalled.cancel()
        if self._skipped is not None and self._skipped.timer is not None:
            self._skipped.timer.cancel()
        self._skipped = None
        self._ignores_input = True
        self._unread = ()
        if self._framing is not None:
            self._framing.end()
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.release()
        waiting = {id(one): one for one in (self._current, *self._queue, self._arriving) if one is not None}
        self._current = self._arriving = None
        self._queue = ()
        for request in waiting.values():
            request.leave()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            self._discard(len(data))
            return
        if self._unread:
            self._unread.append(data)
            return
        if self._incoming is None and self._skipped is None:
            begins = data.find(HEAD_END) + len(HEAD_END)
            if begins <= MAX_KNOWN_BYTES:
                known = self._heads.get(data[:begins])
                if known is not None and known[0] == self._host and known[1].body_bytes == len(data) - begins:
                    self._take(known[1], data, begins)
                    return
        if len(data) > SLICE_BYTES and self._has_many_lines(data):
            self._unread = deque(data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES))
            self._transport.pause_reading()
            self._read_on()
        else:
            self._feed(data)

    def eof_received(self) -> None:
        """Who closes its side has left."""
        self._close()

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = Pending()
            if not self._transport.is_closing():
                self._expect_to_write(STALLED_S)

    def resume_writing(self) -> None:
        if self._stalled is not None and not self._transport.is_closing():
            self._stalled.cancel()
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_soon(None)

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _has_many_lines(self, data: bytes) -> bool:
        """Whether reading it at once may hold up others: thousands of requests, or of chunks. A body that goes on is one piece."""
        is_body = self._framing is not None and len(data) <= self._framing.left
        # By an expression, which takes a sixth of the time of bytes.count: 0.08 ms for 256 KiB of numbers.
        return not is_body and next(islice(LINE_END.finditer(data), MANY_LINES, None), None) is not None

    def _read_on(self) -> None:
        """A slice, and others get their turn; none while too much waits."""
        self._is_slice_due = False
        if self.is_reading_paused or not self._unread or self._transport.is_closing():
            return
        data = self._unread.popleft()
        if self._ignores_input:
            self._discard(len(data))
        else:
            self._feed(data)
        if not self.is_reading_paused:
            self._read_more()

    def _read_more(self) -> None:
        """Of what was read, or from the client."""
        if self._transport.is_closing():
            return
        if not self._unread:
            self._transport.resume_reading()
        elif not self._is_slice_due:
            self._is_slice_due = True
            self._loop.call_soon(self._read_on)

    def _take(self, head: Head, data: bytes, begins: int) -> None:
        """A whole request, whose head was read before."""
        self._asks_until = 0.0
        is_free = self._current is None and not self._queue
        if is_free and perf_counter() < self._congestion.until and self._is_refused_at_once(head):
            return
        request = Request(self, head)
        is_long = len(data) > COPIED_BYTES
        request.chunks.append(memoryview(data)[begins:] if is_long else data[begins:])
        request.body_size = len(data) - begins
        request.is_whole = True
        if is_free and not self._transport.is_closing():
            self._start(request)
        else:
            self._enqueue(request)
            self._count_queued(len(data))

    def _feed(self, data: bytes) -> None:
        framing = self._framing
        if framing is None:
            framing = self._framing = Framing(self._intake.limits, self._intake.origin, self._host)
        is_new = framing.is_between
        may_refuse = is_new
        events = framing.feed(data)
        if self._incoming is not None:
            self._incoming.add(len(data))
            if self._ignores_input:
                return
        for event in events:
            kind = type(event)
            if kind is bytes or kind is memoryview:
                if self._arriving is not None:
                    self._arriving.feed(cast("bytes | memoryview", event))
            elif kind is Head:
                may_refuse = self._take_head(cast(Head, event), may_refuse=may_refuse)
            elif event is END:
                self._end_body()
            else:
                self._complete_incoming()
                self.fail(cast(errors.RequestError, event))
        if is_new and not framing.is_over:
            self._remember(data, events)
        if not self._ignores_input:
            self._ignores_input = framing.is_over  # the client said that this is its last request
            self._await_rest(framing)
        self._start_next()
        if self._queue:
            self._count_queued(len(data))

    def _take_head(self, head: Head, *, may_refuse: bool) -> bool:
        """Whether another may be refused in this read: one is, so that others have their turn."""
        self._asks_until = 0.0
        head.endpoint = self._server.endpoint_of(head)
        if may_refuse and perf_counter() < self._congestion.until and (skipped := self._refused(head)) is not None:
            self._skipped = skipped
            return False
        self._arriving = Request(self, head)
        self._enqueue(self._arriving)
        return may_refuse

    def _end_body(self) -> None:
        request, self._arriving = self._arriving, None
        if request is not None:
            request.end()
        elif self._skipped is not None:
            self._answer_skipped()

    def _enqueue(self, request: Request) -> None:
        if type(self._queue) is tuple:
            self._queue = deque()
        self._queue.append(request)  # type: ignore[union-attr]

    def _count_queued(self, size: int) -> None:
        self._num_queued_bytes += size
        if self._num_queued_bytes > HIGH_WATER_BYTES:
            self.pause_reading()

    def _remember(self, data: bytes, events: Sequence[Event]) -> None:
        """The head of a read that is one whole request, where nothing of it depends on the connection."""
        head = events[0] if events else None
        if not isinstance(head, Head) or events[-1] is not END or len(events) > 3:
            return
        begins = data.find(HEAD_END) + len(HEAD_END)
        is_plain = not head.expects_continue and head.body_bytes is not None
        if begins > MAX_KNOWN_BYTES or not is_plain or len(data) - begins != head.body_bytes:
            return
        if len(self._heads) >= MAX_KNOWN:
            self._heads.clear()
        self._heads[data[:begins]] = self._host, head

    def _await_rest(self, framing: Framing) -> None:
        """Of what has begun and not ended in this read."""
        incoming = self._incoming
        if framing.is_in_body:
            request, skipped = self._arriving, self._skipped
            if request is None:
                self._complete_incoming()
                if skipped is not None and skipped.timer is None:
                    skipped.timer = self._loop.call_later(self._intake.limits.body_pause_s, self._leave_body)
            elif request.incoming is None:
                self._complete_incoming()
                door = self._intake.door
                tenant = "" if door is None else door.tenant_of(request.head)
                request.incoming = self._incoming = self._new_incoming(is_body=True, tenant=tenant)
                request.incoming.add(request.body_size)
        elif framing.is_between:
            self._complete_incoming()
        elif incoming is None or incoming.is_body:
            self._complete_incoming()
            self._incoming = self._new_incoming(is_body=False)

    def _new_incoming(self, *, is_body: bool, tenant: str = "") -> Incoming:
        return Incoming(self._intake.limits, self._intake.memory, self, is_body=is_body, tenant=tenant)

    def _complete_incoming(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.complete()

    def pause_reading(self) -> None:
        if not self.is_reading_paused and not self._transport.is_closing():
            self.is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_reading_paused and not self._transport.is_closing():
            self.is_reading_paused = False
            self._read_more()

    def hear(self) -> None:
        """Goes on reading, so that the client's end is heard of, but where too much waits."""
        if self._num_queued_bytes <= HIGH_WATER_BYTES:
            self.resume_reading()

    # -- what is answered ---------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        if self._current is not None or not self._queue or self._transport.is_closing():
            return
        request = self._queue.popleft()
        if not self._queue:
            self._num_queued_bytes = 0
        self._start(request)

    def _start(self, request: Request) -> None:
        self._current = request
        head, origins = request.head, self._intake.origins
        if origins is not None:
            request.lines = origins.lines(head.by_name)
            if origins.is_preflight(head.method, head.by_name):
                request.respond(origins.PREFLIGHT, b"", close=False)
                return
        endpoint = head.endpoint
        if endpoint is None:
            self._server.bridge(request)
        else:
            EagerTask(endpoint.handler.answer(request, endpoint), self._server.running, request.abandon)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def respond(self, request: Request, head: bytes, body: bytes, *, close: bool) -> bool:
        if request.has_left:
            return True
        if self._drained is not None or len(body) > WRITE_BYTES:
            return False
        close = close or self.is_last(request)
        parts = (head, request.lines, self._server.date_line, CLOSE if close else b"\r\n", body)
        if len(body) <= JOIN_BELOW_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
        self.finish(request, close=close)
        return True

    async def respond_slowly(self, request: Request, head: bytes, parts: Sequence[bytes], *, close: bool) -> None:
        if not await self.drain(request):
            return
        close = close or self.is_last(request)
        self._transport.write(b"".join((head, request.lines, self.date_line, CLOSE if close else b"\r\n")))
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), WRITE_BYTES):
                if not await self.drain(request):
                    return
                self._transport.write(view[start : start + WRITE_BYTES])
                await asyncio.sleep(0)
        if await self.drain(request):
            self.finish(request, close=close)

    async def drain(self, request: Request) -> bool:
        """Returns once the client reads: whether it is still there."""
        while self._drained is not None:
            await self._drained
        return not request.has_left

    @property
    def date_line(self) -> bytes:
        return self._server.date_line

    def is_last(self, request: Request) -> bool:
        """Whether the connection ends with its answer."""
        return not request.keep_alive or (self._is_stopping and not self._queue)

    def finish(self, request: Request, *, close: bool) -> None:
        """Its answer is written; `close`: and says that the connection ends."""
        request.is_answered = True
        self._current = None
        if self._is_stopping and not self._queue and self._refusal is None:
            close = True  # the stop may have come after its head was written
        if request.incoming is not None:
            request.incoming.release()
            if self._incoming is request.incoming:
                self._incoming = None
        if close:
            if request.is_whole and request.error is None:
                self._close()
            else:
                self._linger()
            return
        self.hear()
        if self._queue:
            self._loop.call_soon(self._start_next)
        elif self._refusal is not None:
            self._write_error(self._refusal)
        else:
            self._idle_until = self._loop.time() + KEEP_ALIVE_S

    def abort(self) -> None:
        """An answer that has begun cannot be finished."""
        self._transport.abort()

    # -- what is refused by its head ----------------------------------------------------------------------------------

    def _is_refused_at_once(self, head: Head) -> bool:
        """Whether it was, its body being there."""
        skipped = self._refused(head)
        if skipped is None:
            return False
        self._skipped = skipped
        self._answer_skipped()
        return True

    def _refused(self, head: Head) -> _Skipped | None:
        """Where its answer can follow that of the request before it at once, and its body is so small that it is read to its end."""
        door = self._intake.door
        if (
            door is None
            or head.method != b"POST"
            or self._current is not None
            or self._queue
            or self._drained is not None
            or head.has_doubles
            or not head.keep_alive
            or head.body_bytes is None
            or head.body_bytes > MOST_SKIPPED_BYTES
            or not LEAVES_IT.isdisjoint(head.by_name)
            or self._transport.is_closing()
        ):
            return None
        refusal = door.refusal(head)
        return None if refusal is None else _Skipped(*refusal)

    def _answer_skipped(self) -> None:
        """Its body is over."""
        door = self._intake.door
        self._write_skipped(close=self._is_stopping or (door is not None and door.is_closing))

    def _leave_body(self) -> None:
        """What it is told does not depend on how slowly its body comes; the rest would be read as the next request."""
        self._write_skipped(close=True)

    def _write_skipped(self, *, close: bool) -> None:
        skipped, self._skipped = self._skipped, None
        if skipped is None:
            return
        if skipped.timer is not None:
            skipped.timer.cancel()
        end = CLOSE if close else b"\r\n"
        self._transport.write(b"".join((skipped.lines, self._server.date_line, end, skipped.text)))
        if not close:
            self._idle_until = self._loop.time() + KEEP_ALIVE_S
        elif self._framing is not None and self._framing.is_in_body:
            self._linger()
        else:
            self._close()

    # -- what goes wrong, and how it ends -----------------------------------------------------------------------------

    def fail(self, error: errors.RequestError) -> None:
        """Nothing more is read, and the client is told: by the app, where it waits for the body that this is about."""
        self._ignores_input = True
        self._complete_incoming()
        framing = self._framing
        if self._arriving is not None:
            self._arriving.stop(error)
        elif self._current is not None or self._queue:
            self._refusal = error
        elif isinstance(error, errors.TooSlow) and framing is not None and not framing.has_begun:
            self._close()
        else:
            self._write_error(error)

    def _write_error(self, error: errors.RequestError, linger_s: float = LINGER_S) -> None:
        """Writes an error that no app knows of, and ends the connection."""
        if self._transport.is_closing():
            return
        self._refusal = None
        target = b"" if self._framing is None else self._framing.target
        head, body = error_head(error, [], target.decode("latin-1"))
        self._transport.write(head + self._server.date_line + CLOSE + body)
        self._linger(linger_s)

    def _close(self) -> None:
        """The connection ends once what was written is taken, or nothing of it is."""
        if self._transport.is_closing():
            return
        self._ignores_input = True
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._expect_to_write(LINGER_S)

    def _expect_to_write(self, limit_s: float) -> None:
        """Ends the connection where the client takes hardly anything of what was written for `limit_s`."""
        if self._stalled is not None:
            self._stalled.cancel()
        size = self._transport.get_write_buffer_size()
        self._stalled = self._loop.call_later(limit_s, self._check_written, limit_s, size)

    def _check_written(self, limit_s: float, size: int) -> None:
        rest = self._transport.get_write_buffer_size()
        if rest and rest > size - LEAST_TAKEN_BYTES:
            self._transport.abort()
        else:
            self._expect_to_write(limit_s)

    def _linger(self, linger_s: float = LINGER_S) -> None:
        """Ends our side, and the connection once the client has ended its own, or was given long enough to."""
        if self._transport.is_closing() or self._is_lingering:
            return
        self._ignores_input = self._is_lingering = True
        self._timer.cancel()
        self._timer = self._loop.call_later(linger_s, self._transport.abort)
        self.resume_reading()
        self._transport.write_eof()

    def _discard(self, size: int) -> None:
        self._num_discarded += size
        if self._num_discarded > LINGER_BYTES:
            self._transport.abort()

    def _check_idle(self) -> None:
        """One timer for each connection, however many requests it has: it looks when the time would be over, had none come since."""
        now = self._loop.time()
        is_busy = self._current is not None or self._queue or self._incoming is not None or self._skipped is not None
        due = now + KEEP_ALIVE_S if is_busy else self._idle_until
        if now < due:
            self._timer = self._loop.call_at(due, self._check_idle)
        else:
            self._close()

    def shutdown(self) -> None:
        """What is answered is the last. Who has only just connected is about to ask."""
        self._is_stopping = True
        if self._current is None and not self._queue and self._skipped is None and not self._is_lingering:
            due = min(self._idle_until, self._asks_until)
            if self._loop.time() < due:
                self._timer.cancel()
                self._timer = self._loop.call_at(due, self.shutdown)
            else:
                self._close()


def _address(transport: asyncio.BaseTransport, kind: str) -> tuple[str, int] | None:
    found = transport.get_extra_info(kind)
    return (str(found[0]), int(found[1])) if isinstance(found, (list, tuple)) else None
