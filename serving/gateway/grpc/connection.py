"""One client's connection: HTTP/2 becomes RPCs, and what answers them becomes HTTP/2 again.

What frames mean is `protocol/http2.py`'s, what RPCs do is `service.py`'s. Rules: a key is looked at before a message is read; nothing here
works for long in one go; what a client does not take is not made for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, cast

from serving import errors
from serving.gateway.fleet.upstream import JOIN_BELOW_BYTES
from serving.gateway.grpc.rpc import RETRY_AFTER_S, Message, Method, Rpc, call_of
from serving.gateway.grpc.status import Code, code_of, error_metadata
from serving.gateway.http.body import HERE_BYTES
from serving.gateway.http.compression import WINDOWS, decompress
from serving.gateway.http.connections import Connections
from serving.gateway.request.dispatch import ClientLeft, stopping
from serving.gateway.request.request_headers import Headers
from serving.gateway.threads import Threads
from serving.protocol.http2 import MAX_STREAMS, Data, Event, Fault, Http2, Piece, Pong, Request, Reset, literal
from serving.protocol.memory import Memory
from serving.settings import LimitSettings

# Bytes that are taken apart in one go: what is in them asks for a thousand RPCs at most, of some 10 us each. A guess, not measured.
SLICE_BYTES = 32 * 1024
WRITE_BYTES = 256 * 1024  # to the socket in one go, while it takes them
# Of answers that a client has not taken: beyond, nothing more is begun for it. A guess, not measured.
MAX_UNSENT_BYTES = 4 * 2**20
LOOK_S = 2.0  # between two looks at a connection
FORGIVEN_PER_S = 1000  # frames that ask for nothing; a guess at what no client needs
SILENT_S, PONG_S = (
    60.0,
    20.0,
)  # a machine that is gone without a word is noticed within 80 s where an RPC of its is open
UNTAKEN_S = 60.0  # answers of which a client takes less in so long are for nobody; a guess, not measured
LEAST_TAKEN_BYTES = 16 * 1024  # or all that is there
CLOSING_S = 10.0  # for the last bytes of a connection that ends; a guess, not measured
# Clients are asked to connect anew so often, so that they spread over new gateways, and have gone elsewhere when this one stops. A guess.
AGE_S = 10.0
# That a message may have whatever the models take: gRPC's own default.
LEAST_BYTES = 4 * 2**20
MAX_TEXT_BYTES = 2048  # of a status: clients take 8 KiB of trailing metadata in all
LAST_WORDS = b"goodbye!"  # of the ping after which a client has read that it is to go
PLAIN_TEXT = frozenset(range(0x20, 0x7F)) - {ord("%")}
HEAD_BLOCK = (
    b"\x88"  # :status 200, of HPACK's static table
    + literal(b"content-type", b"application/grpc")
    + literal(b"grpc-accept-encoding", b"identity,gzip,deflate")
)
GRPC, WEB = b"application/grpc", b"application/grpc-web"
OK_BLOCK = literal(b"grpc-status", b"0")
_kept_literal = lru_cache(512)(literal)  # of receipts, which hardly differ
NOT_KEPT = frozenset(
    (b"server-timing", b"grpc-message", b"retry-after-ms", b"grpc-retry-pushback-ms", b"tandem-request-id")
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listener:
    """What all connections of a port share. `guard`: whose RPC it is (a tenant), by its path and metadata; raises RequestError for whom
    its method is closed. `counted` hears of what is refused unread of inferences; `worded`: the error in the words that clients hear.
    `partial`: RPCs of whose message something is missing; `open`: connections.
    """

    methods: Mapping[str, Method]
    guard: Callable[[Method, Rpc], str]
    counted: Callable[[errors.RequestError], None]
    worded: Callable[[errors.RequestError], errors.RequestError]
    limits: LimitSettings
    memory: Memory
    connections: Connections
    threads: Threads
    most_bytes: Callable[[], float]
    partial: dict[Rpc, Connection]
    open: set[Connection]


class Connection(asyncio.Protocol):
    """Times are the event loop's. `peer`: the client's address."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._http2 = Http2()
        self._transport: asyncio.Transport | None = None
        self._rpcs: dict[int, Rpc] = {}
        self._num_abandoned = 0  # RPCs whose clients have left, and that are still worked on
        self._unread: deque[bytes] = deque()
        self._held_back: dict[Rpc, Message] = {}
        self._drained: list[asyncio.Future[None]] = []
        self._is_flush_due = self._is_paused = self._is_closing = False
        self._leaves_at: float | None = None  # since it was asked to
        self._is_over = False  # and was told which of its RPCs are the last
        self.peer = ""
        self.began = self.heard_at = self._loop.time()
        self.pinged_at: float | None = None
        self._sent_at: float | None = (
            None  # LEAST_TAKEN_BYTES, or there was nothing to send before; None: there is nothing
        )
        self._num_sent_bytes = 0  # since then
        self._head_awaited = 0, self.began  # frames that were whole when a head was awaited, and since when
        self._age_s = AGE_S * random.uniform(0.9, 1.1)
        self._timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None

    # -- of asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]).removeprefix("::ffff:") if name else ""
        if self._listener.connections.begin(self.peer) is not None:
            self._is_closing = True
            self._transport.abort()
            return
        self._listener.open.add(self)
        self._timer = self._loop.call_later(LOOK_S, self._look)
        self._flush_soon()

    def connection_lost(self, _: Exception | None) -> None:
        if self not in self._listener.open:
            return
        self._listener.open.discard(self)
        self._listener.connections.end(self.peer)
        for timer in (self._timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        self._is_closing = True
        self._unread.clear()
        self._held_back.clear()
        for rpc in list(self._rpcs.values()):
            self._abandon(rpc)
        self._let_go_on()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        self.heard_at = self._loop.time()
        self.pinged_at = None
        if len(data) <= SLICE_BYTES and not self._unread:
            self._receive(data)
            return
        is_first = not self._unread
        self._unread.extend(data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES))
        if is_first:
            assert self._transport is not None
            self._transport.pause_reading()
            self._read_on()

    def eof_received(self) -> bool:
        """Whoever closes its side waits for nothing."""
        return False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush_soon()

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """A slice, and others get their turn."""
        if self._is_closing:
            return
        self._receive(self._unread.popleft())
        if self._unread:
            self._loop.call_soon(self._read_on)
        elif self._transport is not None and not self._is_closing:
            self._transport.resume_reading()

    def _receive(self, data: bytes) -> None:
        touched: dict[Rpc, None] = {}
        try:
            for event in self._http2.receive(data):
                self._take(event, touched)
        except Fault as fault:
            log.debug("a gRPC client's connection ends: %s", fault)
            self._close()
            return
        for rpc in touched:
            self._settle(rpc)
        self._flush_soon()

    def _take(self, event: Event, touched: dict[Rpc, None]) -> None:
        if type(event) is Data:
            rpc = self._rpcs.get(event.stream)
            if rpc is not None and rpc.error is None:
                self._add(rpc, event, touched)
        elif type(event) is Request:
            self._begin(event, touched)
        elif type(event) is Reset:
            rpc = self._rpcs.get(event.stream)
            if rpc is not None:
                self._abandon(rpc)
        elif type(event) is Pong and event.content == LAST_WORDS:
            self._say_last_word()

    def _begin(self, request: Request, touched: dict[Rpc, None]) -> None:
        head, stream, listener = request.head, request.stream, self._listener
        kind = head.fields.get(b"content-type", b"")
        is_grpc = kind.startswith(GRPC) and not kind.startswith(WEB)
        if head.method != b"POST" or not is_grpc:
            status = b"415" if head.method == b"POST" else b"405"
            self._http2.send_trailers(stream, literal(b":status", status))
            return
        if len(self._rpcs) + self._num_abandoned >= 2 * MAX_STREAMS:
            self._http2.refuse(stream)
            return
        method = listener.methods.get(head.path.decode("latin-1"), NO_METHOD)
        call = call_of(head)
        claim = listener.memory.claim()
        most = self._max_bytes if method.is_inference else self._max_control_bytes
        rpc = Rpc(self, stream, method, call, claim, most, self._unpacked)
        self._rpcs[stream] = rpc
        try:
            if head.is_too_large:
                raise errors.TooLarge("the metadata have more than 16 KiB")
            if method is NO_METHOD:
                raise errors.Unsupported(f"there is no method {head.path[:200].decode('latin-1')} here")
            if not call.is_sensible:
                raise errors.BadRequest("grpc-timeout is a number of at most eight digits and one of HMSmun")
            rpc.claim = listener.memory.claim(listener.guard(method, rpc))
        except errors.RequestError as error:
            self._refuse(rpc, error)
            return
        rpc.has_client_ended = request.has_ended
        if method.stream is not None:
            self._run(rpc, self._stream(rpc))
        elif request.has_ended:
            self._refuse(rpc, errors.BadRequest("the RPC has no message"))
            return
        touched[rpc] = None

    def _max_bytes(self, size: int) -> float:
        """Models are asked only where it matters: there may be hundreds."""
        most = LEAST_BYTES if size <= LEAST_BYTES else max(LEAST_BYTES, self._listener.most_bytes())
        return min(self._listener.limits.max_body_bytes, most)

    def _max_control_bytes(self, _: int) -> float:
        """Of what names a model and little more."""
        return min(self._listener.limits.max_body_bytes, LEAST_BYTES)

    def _add(self, rpc: Rpc, data: Data, touched: dict[Rpc, None]) -> None:
        if rpc.is_whole:
            return  # a second message
        try:
            message = rpc.add(data.content, data.num_bytes)
        except errors.RequestError as error:
            self._refuse(rpc, error)
            return
        except OSError:  # no pages for a large message
            self._refuse(
                rpc, errors.Overloaded("there is no memory for the message; try again", retry_after_s=RETRY_AFTER_S)
            )
            return
        if message is not None:
            touched.pop(rpc, None)
            self._listener.partial.pop(rpc, None)
            rpc.since = None
            self._start(rpc, message)
            return
        touched[rpc] = None
        if data.has_ended:
            rpc.has_client_ended = True
            if rpc.method.unary is not None or rpc.is_partial:
                self._refuse(rpc, errors.BadRequest("the RPC ended before its message did"))
            rpc.wake()

    def _settle(self, rpc: Rpc) -> None:
        """What is here of messages that nobody has taken yet counts, and has its time."""
        if rpc.error is not None or rpc.stream not in self._rpcs:
            return
        more = rpc.buffered_bytes - rpc.claim.held
        if more > 0:
            try:
                rpc.claim.take(more)
            except errors.RequestError as error:
                self._refuse(rpc, error)
                return
        if rpc.is_partial or (rpc.method.unary is not None and not rpc.is_whole):
            if rpc.since is None:
                rpc.since = self._loop.time()
                self._listener.partial[rpc] = self
        else:
            rpc.since = None
            self._listener.partial.pop(rpc, None)

    def check_time(self, rpc: Rpc, now: float) -> None:
        """Of one whose message is not whole."""
        limits, since = self._listener.limits, rpc.since
        if since is None:
            return
        if rpc.has_queued:  # it waits for us, not we for its client
            rpc.since = now
        elif now - since > limits.body_timeout_s or now - max(since, self.heard_at) > limits.body_pause_s:
            self._refuse(rpc, errors.TooSlow("the message came too slowly (body_timeout_s, body_pause_s)"))

    def _refuse(self, rpc: Rpc, error: errors.RequestError) -> None:
        """One whose message is not read, or not further."""
        self._listener.partial.pop(rpc, None)
        rpc.drop_partial()
        if rpc.method.is_inference:
            self._listener.counted(error)
        errors.without_frames(error)
        if rpc.task is not None:
            rpc.fail(error)
        else:
            rpc.error = error
            self._fail(rpc, error)

    # -- who answers --------------------------------------------------------------------------------------------------

    def _start(self, rpc: Rpc, message: Message) -> None:
        if self._http2.unsent_bytes > MAX_UNSENT_BYTES:
            self._held_back[rpc] = message
            try:
                rpc.claim.take(max(0, message.size - rpc.claim.held))
            except errors.RequestError as error:
                self._refuse(rpc, error)
        else:
            self._run(rpc, self._unary(rpc, message))

    def _run(self, rpc: Rpc, answering: Any) -> None:
        left_s = rpc.left_s()
        if left_s < inf and not (rpc.method.is_inference and rpc.method.unary is not None):
            rpc.timer = self._loop.call_later(left_s, self._expire, rpc)
        rpc.task = self._loop.create_task(answering)
        rpc.task.add_done_callback(lambda task: self._done(rpc, task))

    def _done(self, rpc: Rpc, task: asyncio.Task[None]) -> None:
        """Also where it was cancelled before its first step."""
        if task.cancelled() and not rpc.has_left:
            self._fail(rpc, stopping())
        self._forget(rpc)

    def _expire(self, rpc: Rpc) -> None:
        self._fail(rpc, errors.DeadlineExpired("the deadline of the RPC has passed"))
        if rpc.task is not None:
            rpc.has_left = True
            rpc.task.cancel()

    async def _unary(self, rpc: Rpc, message: Message) -> None:
        try:
            answer = rpc.method.unary
            assert answer is not None
            if message.is_compressed or len(message.pieces) != 1:
                pieces = await answer(await self._unpacked(message, rpc), rpc)
            else:
                whole = _whole(message, rpc)
                del message
                pieces = await answer(whole, rpc)
            if rpc.stream in self._rpcs:
                self._http2.send_headers(rpc.stream, HEAD_BLOCK)
                self._http2.send(rpc.stream, _framed(pieces))
                self._end(rpc, OK_BLOCK + _block(rpc.trailing))
        except BaseException as error:
            self._fail_with(rpc, error)

    async def _stream(self, rpc: Rpc) -> None:
        try:
            answer = rpc.method.stream
            assert answer is not None
            async for message in answer(rpc):
                await self.send(rpc, message)
            self._end(rpc, OK_BLOCK if rpc.has_begun else HEAD_BLOCK + OK_BLOCK)
        except BaseException as error:
            self._fail_with(rpc, error)

    async def send(self, rpc: Rpc, message: Sequence[Piece]) -> None:
        """Of a stream: waits while the client takes nothing."""
        while self._http2.unsent_bytes > MAX_UNSENT_BYTES and self._http2.has(rpc.stream):
            drained = self._loop.create_future()
            self._drained.append(drained)
            await drained
        if not rpc.has_begun:
            rpc.has_begun = True
            self._http2.send_headers(rpc.stream, HEAD_BLOCK)
        self._http2.send(rpc.stream, _framed(message))
        self._flush_soon()

    async def _unpacked(self, message: Message, rpc: Rpc) -> bytes:
        """In one piece. Raises RequestError where it cannot be unpacked."""
        if not message.is_compressed:
            return _whole(message, rpc)
        coding = rpc.call.coding
        if coding == b"identity":
            raise errors.BadRequest("the message says that it is compressed, and the RPC has no grpc-encoding")
        if coding not in WINDOWS:
            raise errors.Unsupported(
                f"messages are not taken in {coding[:40].decode('latin-1')}; in gzip and deflate they are"
            )

        def unpack() -> bytes:
            most = int(rpc.max_bytes(LEAST_BYTES + 1))
            return decompress(b"".join(message.pieces), coding, most, rpc.claim)

        return unpack() if message.size <= HERE_BYTES else await self._listener.threads.run(unpack)

    def _fail_with(self, rpc: Rpc, error: BaseException) -> None:
        if isinstance(error, errors.RequestError):
            self._fail(rpc, error)
        elif isinstance(error, asyncio.CancelledError):
            if not rpc.has_left:
                self._fail(rpc, stopping())
        elif isinstance(error, ClientLeft):
            pass
        elif isinstance(error, Exception):
            log.error("a gRPC request failed", exc_info=error)
            self._fail(rpc, errors.Internal("the gateway failed on this request; its log says why"))
        else:
            raise error
        errors.without_frames(error)

    def _fail(self, rpc: Rpc, error: errors.RequestError) -> None:
        """An RPC's end without an answer, in the words of its error."""
        if rpc.stream not in self._rpcs:
            return
        error = self._listener.worded(error)
        block = _status(Code.UNIMPLEMENTED if rpc.method is NO_METHOD else code_of(error), str(error))
        self._end(rpc, (b"" if rpc.has_begun else HEAD_BLOCK) + block + _block(error_metadata(error)))
        if rpc.task is None:
            self._forget(rpc)

    def _end(self, rpc: Rpc, block: bytes) -> None:
        if self._rpcs.pop(rpc.stream, None) is not None:
            self._http2.send_trailers(rpc.stream, block)
            self._flush_soon()

    def _abandon(self, rpc: Rpc) -> None:
        """Its client waits for nothing any more."""
        del self._rpcs[rpc.stream]
        if rpc.task is None:
            rpc.has_left = True
            self._forget(rpc)
            return
        if not rpc.task.done():
            self._num_abandoned += 1
            rpc.task.add_done_callback(self._abandoned_ended)
        rpc.leave()

    def _abandoned_ended(self, _: object) -> None:
        self._num_abandoned -= 1

    def _forget(self, rpc: Rpc) -> None:
        self._rpcs.pop(rpc.stream, None)
        self._held_back.pop(rpc, None)
        rpc.claim.release()
        self._listener.partial.pop(rpc, None)
        if rpc.timer is not None:
            rpc.timer.cancel()
        self._close_if_idle()

    # -- what goes ----------------------------------------------------------------------------------------------------

    def grant(self, stream: int, num_bytes: int) -> None:
        self._http2.grant(stream, num_bytes)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Once in a round of the event loop, so that answers of one round go in one write."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        if transport is None or self._is_closing:
            return
        while not self._is_paused and (pieces := self._http2.take(WRITE_BYTES)):
            size = sum(map(len, pieces))
            self._num_sent_bytes += size
            if size < JOIN_BELOW_BYTES:
                transport.write(b"".join(pieces))
            else:
                transport.writelines(pieces)
        if not self._http2.unsent_bytes:
            self._sent_at = None
        elif self._sent_at is None or self._num_sent_bytes >= LEAST_TAKEN_BYTES:
            self._sent_at, self._num_sent_bytes = self._loop.time(), 0
        if self._http2.unsent_bytes <= MAX_UNSENT_BYTES:
            self._let_go_on()
        self._close_if_idle()

    def _let_go_on(self) -> None:
        drained, self._drained = self._drained, []
        for one in drained:
            if not one.done():
                one.set_result(None)
        while self._held_back and self._http2.unsent_bytes <= MAX_UNSENT_BYTES:
            rpc = next(iter(self._held_back))
            self._run(rpc, self._unary(rpc, self._held_back.pop(rpc)))

    # -- how it ends --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """By and by: whether its client is still there, and how long it has been."""
        now = self._loop.time()
        self._timer = self._loop.call_later(LOOK_S, self._look)
        self._http2.forgive(int(LOOK_S * FORGIVEN_PER_S))
        if self._is_head_late(now):
            self._close()
        elif (self.pinged_at is not None and now - self.pinged_at > PONG_S) or (
            self._sent_at is not None and now - self._sent_at > UNTAKEN_S
        ):
            self._abort()
        elif self._rpcs and self.pinged_at is None and now - self.heard_at > SILENT_S:
            self.pinged_at = now
            self._http2.ping(b"whether?")
            self._flush_soon()
        elif self._leaves_at is not None and now - self._leaves_at > PONG_S:
            self._say_last_word()
        elif now - self.began > self._age_s:
            self.leave()

    def _is_head_late(self, now: float) -> bool:
        """Whether the same head, or the greeting, has been awaited for too long, whatever trickled in meanwhile."""
        num_frames, since = self._head_awaited
        if self._http2.awaits_head and num_frames == self._http2.num_frames:
            return now - since > self._listener.limits.head_timeout_s
        self._head_awaited = self._http2.num_frames, now
        return False

    def leave(self) -> None:
        """Its client is asked to connect anew: what it has begun by then is answered, and nothing else."""
        if not self._http2.is_greeted:
            self._close()
        elif self._leaves_at is None:
            self._leaves_at = self._loop.time()
            self._http2.go_away(is_last_word=False)
            self._http2.ping(LAST_WORDS)
            self._flush_soon()

    def end_streams(self) -> None:
        for rpc in list(self._rpcs.values()):
            if rpc.method.stream is not None:
                rpc.stop()

    def cancel(self) -> None:
        """What is still worked on: its clients are told that the gateway stops."""
        for rpc in list(self._rpcs.values()):
            if rpc.task is None:
                self._refuse(rpc, stopping())
            else:
                rpc.task.cancel()

    def _say_last_word(self) -> None:
        if self._leaves_at is not None and not self._is_over:
            self._is_over = True
            self._http2.go_away(is_last_word=True)
            self._flush_soon()

    def _close_if_idle(self) -> None:
        if self._is_over and not self._rpcs and not self._http2.can_send and not self._http2.unsent_bytes:
            self.close()

    def close(self) -> None:
        """After what was written."""
        if self._transport is not None and not self._is_closing:
            self._is_closing = True
            self._transport.close()
            self._end_timer = self._loop.call_later(CLOSING_S, self._transport.abort)

    def _close(self) -> None:
        """With what is to be said last."""
        if self._transport is not None and not self._is_closing:
            self._transport.write(b"".join(self._http2.take(0)))
            self.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._is_closing = True
            self._transport.abort()


NO_METHOD = Method()


def _whole(message: Message, rpc: Rpc) -> bytes:
    """A large one for inference is a view, which its reader takes as well."""
    if len(message.pieces) != 1:
        return b"".join(message.pieces)
    (only,) = message.pieces
    return cast(bytes, only) if rpc.method.is_inference else bytes(only)


def _framed(pieces: Sequence[Piece]) -> list[Piece]:
    return [b"\0" + sum(map(len, pieces)).to_bytes(4), *pieces]


def _block(metadata: Headers) -> bytes:
    """Trailing metadata in HPACK."""
    return b"".join([(literal if name in NOT_KEPT else _kept_literal)(name, value) for name, value in metadata])


def _status(code: Code, text: str) -> bytes:
    told = text.encode()[:MAX_TEXT_BYTES]
    message = b"".join(bytes((it,)) if it in PLAIN_TEXT else b"%%%02X" % it for it in told)
    return literal(b"grpc-status", b"%d" % code) + literal(b"grpc-message", message)
