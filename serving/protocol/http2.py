"""HTTP/2 as a server of gRPC speaks it with one client: bytes in, events out, and frames to send.

RFC 9113 without I/O and without a clock; header blocks are read by `hpack`. What gRPC's messages are is not here. Rules: every frame that
a client may send for nothing is counted, so that it costs the client more than us; what is unfinished is bounded; after a `Fault` the
connection is over, and `take` has the GOAWAY that says why.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20  # flags
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)
NO_ERROR, PROTOCOL_ERROR, _, FLOW_CONTROL_ERROR, _, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = range(9)
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11

FRAME_HEAD_BYTES = 9
FRAME_BYTES = (
    16 * 1024
)  # of one frame, both ways: what every peer takes, and little enough that other streams get their turn
WINDOW_BYTES = 65_535  # RFC 9113's own, of a stream and of the connection
MAX_WINDOW_BYTES = 2**31 - 1
# What a client may send on all streams before it hears that it was taken, which it does at once; a guess, not measured.
CONNECTION_WINDOW_BYTES = 2**20
MAX_STREAMS = 1024  # at once on one connection; more wait at the client. A guess, not measured
MAX_HEAD_BYTES = 16 * 1024  # of the headers of a request, names and values and 32 for each
# Of a block as it came, and unpacked: more ends the connection, as less than all of a block cannot be read.
MAX_BLOCK_BYTES = MAX_UNPACKED_BYTES = 64 * 1024
MAX_CONTINUATIONS = 8
# Frames that ask for nothing (pings, settings, priorities, resets, windows, empty data), beyond a few for each request and each frame of
# data; `forgive` takes some off. A guess at what no client needs.
MAX_IDLE_FRAMES, FRAMES_FOR_WORK = 10_000, 16
MAX_CANCELLED = 2 * MAX_STREAMS  # streams reset by their client in excess of those it waited for; a guess
MAX_REPLIES_BYTES = 64 * 1024  # to pings and settings, that a client does not take
REMEMBERED_STREAMS = 4096  # that we have ended before their client had: what is on its way on them is dropped
CONNECTION_HEADERS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
PSEUDO_HEADERS = frozenset((b":method", b":scheme", b":path", b":authority"))
TOKEN = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+")
VALUE = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])")
MAX_DIGITS = 19  # of a length
MAX_KNOWN = 32  # heads that are remembered; a client of gRPC has one for each method and deadline
MAX_KNOWN_BYTES = 2048  # of one, as it came
FRAMES_OF_SETTINGS = 50  # that one of settings counts as, since it is looked up for every stream
Piece = bytes | memoryview


class Fault(Exception):
    """The connection cannot go on. `code`: of HTTP/2."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """One request cannot."""

    def __init__(self, stream: int, code: int) -> None:
        super().__init__(stream, code)
        self.stream = stream
        self.code = code


class Head:
    """The headers of a request. `fields`: but for pseudo headers, of several of a name the last; `pairs`: all, where a name came twice.

    The same bytes on one connection are the same object, so that whatever is made of it is made once.
    """

    __slots__ = ("fields", "is_too_large", "made", "method", "pairs", "path")

    def __init__(self, pairs: list[tuple[bytes, bytes]], *, is_too_large: bool = False) -> None:
        pseudo = {name: value for name, value in pairs if name.startswith(b":")}
        self.method = pseudo.get(b":method", b"")
        self.path = pseudo.get(b":path", b"")
        plain = [pair for pair in pairs if not pair[0].startswith(b":")]
        self.fields = dict(plain)
        self.pairs = plain if len(self.fields) < len(plain) else None
        self.is_too_large = is_too_large
        self.made: object = None  # of whoever reads it


class Request(NamedTuple):
    stream: int
    head: Head
    has_ended: bool


class Data(NamedTuple):
    """Some of a stream's content. `num_bytes`: that it took of the stream's window, for `grant`."""

    stream: int
    content: bytes
    num_bytes: int
    has_ended: bool


class Reset(NamedTuple):
    """The client wants no answer any more, or broke a rule: then it has been told so."""

    stream: int


class Pong(NamedTuple):
    """The client answered the ping with this content."""

    content: bytes


Event = Request | Data | Reset | Pong


class _Stream:
    """`window`: what may be sent; `room`: what the client may send."""

    __slots__ = ("has_client_ended", "length_left", "pieces", "room", "trailers", "window")

    def __init__(self, window: int, room: int, length: int | None, *, has_client_ended: bool) -> None:
        self.window = window
        self.room = room
        self.has_client_ended = has_client_ended
        self.length_left = length  # of its content, where its headers say that
        self.pieces: deque[Piece] = deque()
        self.trailers: bytes | None = None


class _Table(HeaderTable):
    """Counts its changes: until the next one the same bytes mean the same headers."""

    version = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.version += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        size: int = HeaderTable.maxsize.fget(self)  # type: ignore[attr-defined]
        return size

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.version += 1
        HeaderTable.maxsize.fset(self, size)  # type: ignore[attr-defined]


class Http2:
    """One connection, from the server's side. `unsent_bytes`: of answers that wait for the client's windows or for `take`."""

    def __init__(self) -> None:
        self._rest = b""  # of the last read: less than a frame
        self._has_preface = self._has_settings = False
        self._table = _Table()
        self._decoder = Decoder(max_header_list_size=MAX_UNPACKED_BYTES)
        self._decoder.header_table = self._table
        self._known: dict[bytes, tuple[Head, int | None]] = {}
        self._known_version = 0
        self._block: tuple[int, bool, list[bytes]] | None = None  # of headers that go on in the next frame
        self._streams: dict[int, _Stream] = {}
        self._sending: dict[int, _Stream] = {}  # those that have something to send, and may; each in its turn
        self._ended_early: dict[int, None] = {}
        self._last_stream = 0
        self._last_taken = MAX_WINDOW_BYTES  # of the streams that are still begun
        self._window = WINDOW_BYTES
        self._room = CONNECTION_WINDOW_BYTES
        self._initial_window = WINDOW_BYTES
        self._num_idle = self._num_cancelled = 0
        self._replies_bytes = 0
        self._is_over = False
        self.num_frames = 0  # that came, whole
        self.unsent_bytes = 0
        self._out: list[Piece] = [
            _settings({MAX_CONCURRENT_STREAMS: MAX_STREAMS, MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES, ENABLE_PUSH: 0}),
            _frame(WINDOW_UPDATE, 0, 0, (CONNECTION_WINDOW_BYTES - WINDOW_BYTES).to_bytes(4)),
        ]

    # -- what comes ---------------------------------------------------------------------------------------------------

    @property
    def is_greeted(self) -> bool:
        """Whether the client has said that it speaks HTTP/2, and how."""
        return self._has_settings

    @property
    def awaits_head(self) -> bool:
        """Whether a frame or a block of headers has begun that is not the content of a request."""
        is_content = len(self._rest) > 3 and self._rest[3] == DATA
        return not self._has_settings or self._block is not None or (bool(self._rest) and not is_content)

    def has(self, stream: int) -> bool:
        """Whether its answer has not ended yet, and its client waits for it."""
        return stream in self._streams

    def receive(self, came: bytes) -> list[Event]:
        """What it means. Raises Fault: `take` has what is to be said before the connection is closed."""
        if self._is_over:
            return []
        events: list[Event] = []
        data = self._rest + came if self._rest else came
        try:
            at = 0 if self._has_preface else self._preface(data)
            if at < 0:
                self._rest = data
                return events
            end = len(data)
            while end - at >= FRAME_HEAD_BYTES:
                length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
                if length > FRAME_BYTES:
                    raise Fault(FRAME_SIZE_ERROR, "a frame is too long")
                begin = at + FRAME_HEAD_BYTES
                if end - begin < length:
                    break
                kind, flags = data[at + 3], data[at + 4]
                stream = int.from_bytes(data[at + 5 : begin]) & MAX_WINDOW_BYTES
                at = begin + length
                self.num_frames += 1
                try:
                    self._frame(kind, flags, stream, data[begin:at], events)
                except StreamFault as fault:
                    self._reset_for(fault, events)
            self._rest = data[at:]
        except Fault as fault:
            self._rest = b""
            self._end(fault)
            raise
        return events

    def forgive(self, num_frames: int) -> None:
        """So many frames that asked for nothing, by the time that has passed."""
        self._num_idle = max(0, self._num_idle - num_frames)
        self._num_cancelled = max(0, self._num_cancelled - num_frames)

    def _preface(self, data: bytes) -> int:
        """Where frames begin, or -1."""
        if not data.startswith(PREFACE[: len(data)]):
            raise Fault(PROTOCOL_ERROR, "this port speaks gRPC, that is HTTP/2 without TLS")
        if len(data) < len(PREFACE):
            return -1
        self._has_preface = True
        return len(PREFACE)

    def _frame(self, kind: int, flags: int, stream: int, content: bytes, events: list[Event]) -> None:
        if self._block is not None and (kind != CONTINUATION or stream != self._block[0]):
            raise Fault(PROTOCOL_ERROR, "headers were not ended")
        if not self._has_settings and kind != SETTINGS:
            raise Fault(PROTOCOL_ERROR, "settings come first")
        if kind == DATA:
            self._data(flags, stream, content, events)
        elif kind == HEADERS:
            self._headers(flags, stream, content, events)
        elif kind == WINDOW_UPDATE:
            self._window_update(stream, content)
        elif kind == SETTINGS:
            self._take_settings(flags, stream, content)
        elif kind == PING:
            self._ping(flags, stream, content, events)
        elif kind == RST_STREAM:
            self._rst_stream(stream, content, events)
        elif kind == CONTINUATION:
            self._continuation(flags, content, events)
        elif kind == PRIORITY:
            self._priority(stream, content)
        elif kind == PUSH_PROMISE:
            raise Fault(PROTOCOL_ERROR, "a client pushes nothing")
        elif kind == GOAWAY:
            if stream or len(content) < 8:
                raise Fault(PROTOCOL_ERROR if stream else FRAME_SIZE_ERROR, "goaway is wrong")
            self._idle_frame()
        else:
            self._idle_frame()

    def _idle_frame(self) -> None:
        self._num_idle += 1
        if self._num_idle > MAX_IDLE_FRAMES:
            raise Fault(ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def _work(self) -> None:
        if self._num_idle:
            self._num_idle = max(0, self._num_idle - FRAMES_FOR_WORK)

    def _reply(self, frame: bytes) -> None:
        self._replies_bytes += len(frame)
        if self._replies_bytes > MAX_REPLIES_BYTES:
            raise Fault(ENHANCE_YOUR_CALM, "replies are not taken")
        self._out.append(frame)

    # -- content ------------------------------------------------------------------------------------------------------

    def _data(self, flags: int, stream: int, content: bytes, events: list[Event]) -> None:
        size = len(content)
        self._room -= size
        if self._room < 0:
            raise Fault(FLOW_CONTROL_ERROR, "more came than the connection's window")
        if self._room < CONNECTION_WINDOW_BYTES // 2:
            self._out.append(_frame(WINDOW_UPDATE, 0, 0, (CONNECTION_WINDOW_BYTES - self._room).to_bytes(4)))
            self._room = CONNECTION_WINDOW_BYTES
        if size:
            self._work()
        else:
            self._idle_frame()
        it = self._streams.get(stream)
        if it is None:
            if stream in self._ended_early or stream > self._last_taken:
                return
            if not stream or self._is_idle(stream):
                raise Fault(PROTOCOL_ERROR, "content of a stream that has not begun")
            raise Fault(STREAM_CLOSED, "content of a stream that has ended")
        if it.has_client_ended:
            raise StreamFault(stream, STREAM_CLOSED)
        it.room -= size
        if it.room < 0:
            raise StreamFault(stream, FLOW_CONTROL_ERROR)
        if flags & PADDED:
            content = _without_padding(content, 1)
        if it.length_left is not None:
            it.length_left -= len(content)
            if it.length_left < 0 or (flags & END_STREAM and it.length_left):
                raise StreamFault(stream, PROTOCOL_ERROR)
        it.has_client_ended = bool(flags & END_STREAM)
        events.append(Data(stream, content, size, it.has_client_ended))

    def _is_idle(self, stream: int) -> bool:
        return stream > self._last_stream or stream % 2 == 0

    # -- headers ------------------------------------------------------------------------------------------------------

    def _headers(self, flags: int, stream: int, content: bytes, events: list[Event]) -> None:
        if stream % 2 == 0:
            raise Fault(PROTOCOL_ERROR, "clients begin streams of odd numbers")
        if flags & PADDED:
            content = _without_padding(content, 6 if flags & HAS_PRIORITY else 1)
        if flags & HAS_PRIORITY:
            if len(content) < 5:
                raise Fault(FRAME_SIZE_ERROR, "headers are too short")
            depends_on_itself = int.from_bytes(content[:4]) & MAX_WINDOW_BYTES == stream
            content = content[5:]
        else:
            depends_on_itself = False
        has_ended = bool(flags & END_STREAM)
        if not flags & END_HEADERS:
            self._block = stream, has_ended, [content]
        else:
            self._begin(stream, content, events, has_ended=has_ended)
        if depends_on_itself:
            raise StreamFault(stream, PROTOCOL_ERROR)

    def _continuation(self, flags: int, content: bytes, events: list[Event]) -> None:
        if self._block is None:
            raise Fault(PROTOCOL_ERROR, "a continuation of nothing")
        stream, has_ended, pieces = self._block
        pieces.append(content)
        if len(pieces) > MAX_CONTINUATIONS or sum(map(len, pieces)) > MAX_BLOCK_BYTES:
            raise Fault(ENHANCE_YOUR_CALM, "headers are too long")
        if flags & END_HEADERS:
            self._block = None
            self._begin(stream, b"".join(pieces), events, has_ended=has_ended)

    def _begin(self, stream: int, block: bytes, events: list[Event], *, has_ended: bool) -> None:
        head, length = self._head(stream, block)
        it = self._streams.get(stream)
        if it is not None:
            self._trailers(stream, it, events, is_right=has_ended and head is not None)
            return
        if stream <= self._last_stream:
            if stream in self._ended_early:
                self._idle_frame()
                return
            raise Fault(STREAM_CLOSED, "a stream began twice")
        self._last_stream = stream
        if stream > self._last_taken:  # after our GOAWAY: the client tries it elsewhere
            self._idle_frame()
            return
        if head is None or (has_ended and length):
            raise StreamFault(stream, PROTOCOL_ERROR)
        if len(self._streams) >= MAX_STREAMS:
            raise StreamFault(stream, REFUSED_STREAM)
        self._work()
        self._streams[stream] = _Stream(self._initial_window, WINDOW_BYTES, length, has_client_ended=has_ended)
        events.append(Request(stream, head, has_ended))

    def _trailers(self, stream: int, it: _Stream, events: list[Event], *, is_right: bool) -> None:
        if it.has_client_ended:
            raise StreamFault(stream, STREAM_CLOSED)
        if not is_right or it.length_left:
            raise StreamFault(stream, PROTOCOL_ERROR)
        it.has_client_ended = True
        events.append(Data(stream, b"", 0, True))

    def _head(self, stream: int, block: bytes) -> tuple[Head | None, int | None]:
        """And the length of the content, where it is said; no head where it breaks a rule. The head of trailers has no path."""
        table, is_trailers = self._table, stream in self._streams
        if self._known_version != table.version:
            self._known.clear()
            self._known_version = table.version
        if not is_trailers and (known := self._known.get(block)) is not None:
            return known
        try:
            decoded = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise Fault(COMPRESSION_ERROR, f"headers cannot be read ({type(error).__name__})") from None
        pairs = [(bytes(it[0]), bytes(it[1])) for it in decoded]
        if not _is_valid(pairs, is_trailers=is_trailers):
            return None, None
        head = Head(pairs, is_too_large=sum(len(name) + len(value) + 32 for name, value in pairs) > MAX_HEAD_BYTES)
        lengths = {value for name, value in pairs if name == b"content-length"}
        if len(lengths) > 1 or not all(value.isdigit() and len(value) < MAX_DIGITS for value in lengths):
            return None, None
        found = head, int(lengths.pop()) if lengths else None
        is_usual = len(block) <= MAX_KNOWN_BYTES and not head.is_too_large and not is_trailers
        if is_usual and self._known_version == table.version and len(self._known) < MAX_KNOWN:
            self._known[block] = found
        return found

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _window_update(self, stream: int, content: bytes) -> None:
        if len(content) != 4:
            raise Fault(FRAME_SIZE_ERROR, "a window update has four bytes")
        self._idle_frame()
        more = int.from_bytes(content) & MAX_WINDOW_BYTES
        if not stream:
            if not more:
                raise Fault(PROTOCOL_ERROR, "a window update of nothing")
            self._window += more
            if self._window > MAX_WINDOW_BYTES:
                raise Fault(FLOW_CONTROL_ERROR, "the window is too large")
            return
        it = self._streams.get(stream)
        if it is None:
            if self._is_idle(stream):
                raise Fault(PROTOCOL_ERROR, "a window of a stream that has not begun")
            return
        if not more:
            raise StreamFault(stream, PROTOCOL_ERROR)
        it.window += more
        if it.window > MAX_WINDOW_BYTES:
            raise StreamFault(stream, FLOW_CONTROL_ERROR)
        if it.pieces and it.window > 0:
            self._sending[stream] = it

    def _take_settings(self, flags: int, stream: int, content: bytes) -> None:
        if stream:
            raise Fault(PROTOCOL_ERROR, "settings are of the connection")
        if len(content) % 6 or (flags & ACK and content):
            raise Fault(FRAME_SIZE_ERROR, "settings have six bytes each")
        if flags & ACK:
            self._idle_frame()
            return
        self._num_idle += FRAMES_OF_SETTINGS
        self._idle_frame()
        window = self._initial_window
        for at in range(0, len(content), 6):
            name, value = int.from_bytes(content[at : at + 2]), int.from_bytes(content[at + 2 : at + 6])
            if name == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW_BYTES:
                    raise Fault(FLOW_CONTROL_ERROR, "the initial window is too large")
                window = value
            elif (name == ENABLE_PUSH and value > 1) or (name == MAX_FRAME_SIZE and not FRAME_BYTES <= value < 2**24):
                raise Fault(PROTOCOL_ERROR, "a setting has a value that it cannot have")
        more, self._initial_window = window - self._initial_window, window
        for name, it in self._streams.items() if more else ():
            it.window += more
            if it.window > MAX_WINDOW_BYTES:
                raise Fault(FLOW_CONTROL_ERROR, "a window is too large")
            if it.pieces and it.window > 0:
                self._sending[name] = it
        self._has_settings = True
        self._reply(_frame(SETTINGS, ACK, 0, b""))

    def _ping(self, flags: int, stream: int, content: bytes, events: list[Event]) -> None:
        if stream:
            raise Fault(PROTOCOL_ERROR, "a ping is of the connection")
        if len(content) != 8:
            raise Fault(FRAME_SIZE_ERROR, "a ping has eight bytes")
        self._idle_frame()
        if flags & ACK:
            events.append(Pong(content))
        else:
            self._reply(_frame(PING, ACK, 0, content))

    def _rst_stream(self, stream: int, content: bytes, events: list[Event]) -> None:
        if len(content) != 4:
            raise Fault(FRAME_SIZE_ERROR, "a reset has four bytes")
        self._idle_frame()
        if stream in self._streams:
            self._cancelled()
            self._forget(stream)
            events.append(Reset(stream))
        elif not stream or self._is_idle(stream):
            raise Fault(PROTOCOL_ERROR, "a reset of a stream that has not begun")

    def _priority(self, stream: int, content: bytes) -> None:
        if not stream:
            raise Fault(PROTOCOL_ERROR, "a priority is of a stream")
        self._idle_frame()
        if len(content) != 5:
            raise StreamFault(stream, FRAME_SIZE_ERROR)
        if int.from_bytes(content[:4]) & MAX_WINDOW_BYTES == stream:
            raise StreamFault(stream, PROTOCOL_ERROR)

    def _cancelled(self) -> None:
        """By its client, or for what its client did: both cost it little and us much."""
        self._num_cancelled += 1
        if self._num_cancelled > MAX_CANCELLED:
            raise Fault(ENHANCE_YOUR_CALM, "too many requests that nobody waits for")

    def _reset_for(self, fault: StreamFault, events: list[Event]) -> None:
        self._idle_frame()
        self._reply(_frame(RST_STREAM, 0, fault.stream, fault.code.to_bytes(4)))
        if fault.stream in self._streams:
            self._cancelled()
            self._forget(fault.stream)
            events.append(Reset(fault.stream))
        self._remember(fault.stream)

    def _forget(self, stream: int) -> None:
        it = self._streams.pop(stream)
        self._sending.pop(stream, None)
        self.unsent_bytes -= sum(map(len, it.pieces))

    def _remember(self, stream: int) -> None:
        """What its client sends before it hears of the end is no mistake."""
        self._ended_early[stream] = None
        if len(self._ended_early) > REMEMBERED_STREAMS:
            del self._ended_early[next(iter(self._ended_early))]

    # -- what goes ----------------------------------------------------------------------------------------------------

    def grant(self, stream: int, num_bytes: int) -> None:
        """The client may send so much more of a stream's content."""
        it = self._streams.get(stream)
        if it is not None and not it.has_client_ended and num_bytes > 0:
            it.room += num_bytes
            self._out.append(_frame(WINDOW_UPDATE, 0, stream, num_bytes.to_bytes(4)))

    def send_headers(self, stream: int, block: bytes) -> None:
        """Of an answer that content follows."""
        if stream in self._streams:
            self._out.append(_frame(HEADERS, END_HEADERS, stream, block))

    def send(self, stream: int, pieces: Sequence[Piece]) -> None:
        """Content, as the client's windows let."""
        it = self._streams.get(stream)
        if it is None:
            return
        for piece in pieces:
            if piece:
                it.pieces.append(piece)
                self.unsent_bytes += len(piece)
        if it.pieces and it.window > 0:
            self._sending[stream] = it

    def send_trailers(self, stream: int, block: bytes) -> None:
        """They end the answer, after what is still to be sent."""
        it = self._streams.get(stream)
        if it is None:
            return
        if it.pieces:
            it.trailers = block
        else:
            self._finish(stream, it, block)

    def refuse(self, stream: int) -> None:
        """A request that nothing has looked at: its client may send it again."""
        if stream in self._streams:
            self._forget(stream)
            self._remember(stream)
            self._out.append(_frame(RST_STREAM, 0, stream, REFUSED_STREAM.to_bytes(4)))

    def ping(self, content: bytes) -> None:
        self._out.append(_frame(PING, 0, 0, content))

    def go_away(self, *, is_last_word: bool) -> None:
        """Asks the client to begin no more streams here; with the last word those that it begins all the same are not looked at."""
        last = self._last_stream if is_last_word else MAX_WINDOW_BYTES
        self._last_taken = last
        self._out.append(_frame(GOAWAY, 0, 0, last.to_bytes(4) + NO_ERROR.to_bytes(4)))

    def take(self, most_bytes: int) -> list[Piece]:
        """What is to be written now: what was asked for, and of content about so much."""
        if self._sending:
            self._fill(most_bytes)
        out, self._out = self._out, []
        self._replies_bytes = 0
        return out

    @property
    def can_send(self) -> bool:
        """Whether `take` has something."""
        return bool(self._out) or (bool(self._sending) and self._window > 0)

    def _fill(self, most_bytes: int) -> None:
        """A frame of each stream in turn."""
        while self._sending and self._window > 0 and most_bytes > 0:
            stream, it = next(iter(self._sending.items()))
            del self._sending[stream]
            room = min(FRAME_BYTES, it.window, self._window)
            pieces: list[Piece] = []
            size = 0
            while it.pieces and size < room:
                piece = it.pieces.popleft()
                if len(piece) > room - size:
                    view = memoryview(piece)
                    it.pieces.appendleft(view[room - size :])
                    piece = view[: room - size]
                pieces.append(piece)
                size += len(piece)
            it.window -= size
            self._window -= size
            self.unsent_bytes -= size
            most_bytes -= size
            self._out.append(_frame_head(size, DATA, 0, stream))
            self._out += pieces
            if it.pieces:
                if it.window > 0:
                    self._sending[stream] = it
            elif it.trailers is not None:
                self._finish(stream, it, it.trailers)

    def _finish(self, stream: int, it: _Stream, block: bytes) -> None:
        at, flags = 0, END_STREAM
        while len(block) - at > FRAME_BYTES:
            self._out.append(_frame(CONTINUATION if at else HEADERS, flags, stream, block[at : at + FRAME_BYTES]))
            at, flags = at + FRAME_BYTES, 0
        self._out.append(_frame(CONTINUATION if at else HEADERS, flags | END_HEADERS, stream, block[at:]))
        if not it.has_client_ended:
            self._out.append(_frame(RST_STREAM, 0, stream, NO_ERROR.to_bytes(4)))
            self._remember(stream)
        if self._num_cancelled:
            self._num_cancelled -= 1
        self._forget(stream)

    def _end(self, fault: Fault) -> None:
        self._is_over = True
        self._sending.clear()
        if self._has_preface:
            said = self._last_stream.to_bytes(4) + fault.code.to_bytes(4) + str(fault).encode()
            self._out.append(_frame(GOAWAY, 0, 0, said))


def literal(name: bytes, value: bytes) -> bytes:
    """A header in HPACK that no table remembers, without Huffman's code."""
    return b"\0%b%b%b%b" % (_length(len(name)), name, _length(len(value)), value)


def _length(number: int) -> bytes:
    """HPACK's integer of seven bits in the first byte."""
    if number < 127:
        return bytes((number,))
    made = bytearray((127,))
    number -= 127
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return (size << 48 | kind << 40 | flags << 32 | stream).to_bytes(FRAME_HEAD_BYTES)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return (len(content) << 48 | kind << 40 | flags << 32 | stream).to_bytes(FRAME_HEAD_BYTES) + content


def _settings(values: dict[int, int]) -> bytes:
    return _frame(SETTINGS, 0, 0, b"".join(name.to_bytes(2) + value.to_bytes(4) for name, value in values.items()))


def _without_padding(content: bytes, least: int) -> bytes:
    """`least`: bytes that come before what may be padding, the padding's length among them."""
    if len(content) < least:
        raise Fault(FRAME_SIZE_ERROR, "a padded frame is too short")
    if content[0] > len(content) - least:
        raise Fault(PROTOCOL_ERROR, "a frame is nothing but padding")
    return content[1 : len(content) - content[0]]


def _is_valid(pairs: Sequence[tuple[bytes, bytes]], *, is_trailers: bool) -> bool:
    """By RFC 9113, 8.2 and 8.3."""
    pseudo = set()
    is_plain = False
    for name, value in pairs:
        if name.startswith(b":"):
            if is_plain or is_trailers or name in pseudo or name not in PSEUDO_HEADERS:
                return False
            pseudo.add(name)
        else:
            is_plain = True
            if (
                not name
                or not TOKEN.fullmatch(name)
                or name in CONNECTION_HEADERS
                or (name == b"te" and value != b"trailers")
            ):
                return False
        if not VALUE.fullmatch(value):
            return False
    return is_trailers or (pseudo >= {b":method", b":scheme", b":path"} and dict(pairs)[b":path"] != b"")
