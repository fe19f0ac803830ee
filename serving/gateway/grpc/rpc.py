"""One RPC: its metadata and deadline, the messages that come, and what is sent back.

A connection hands it bytes as they come (`add`) and whoever answers it takes messages. Rules: a message's length is judged by its first
five bytes; what has come of one that is not whole counts against the memory for requests; a client may send as much as is wanted now and
one window beside.
"""

from __future__ import annotations

import asyncio
import mmap
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Protocol

from serving import errors
from serving.gateway.request.dispatch import stopping
from serving.gateway.request.request_headers import Headers, join_lists, require_once
from serving.protocol.http2 import WINDOW_BYTES, Head, Piece
from serving.protocol.memory import Claim

PREFIX_BYTES = 5  # whether a message is compressed, and its length
# That a client may send of a message before it hears that some was taken: more is faster where the network is far. A guess, not measured.
AHEAD_BYTES = 2**20
SMALL_PIECE_BYTES = (
    4096  # less is put behind what came before it, or a message of single bytes would take forty times its size
)
# A message of which more has come is put together in pages of its own: they are taken as they are written, and given back when it is read.
PLACE_ABOVE_BYTES = 2**20
PAGE_BYTES = 2 * 2**20  # of these: 0.12 s of the kernel's time per GB, of 4 KiB each 0.6 to 0.9
MESSAGE_BYTES = 200  # of one that is queued, beside its content
UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
PERHAPS_EXPIRED_S = 0.02  # a client that leaves so shortly before its deadline has kept it; a guess, not measured
RETRY_AFTER_S = 1.0  # until another gateway is connected; a guess, not measured

Metadata = dict[bytes, bytes]
UnaryAnswer = Callable[[bytes, "Rpc"], Awaitable[Sequence[Piece]]]  # to the one message
StreamAnswer = Callable[["Rpc"], AsyncIterator[Sequence[Piece]]]


@dataclass(frozen=True, slots=True)
class Method:
    """One of `unary` and `stream`, or nothing.

    `is_open`: needs no key; `is_inference`: ends by its deadline itself where it is unary, and is counted where its message is not taken.
    """

    unary: UnaryAnswer | None = None
    stream: StreamAnswer | None = None
    is_open: bool = False
    is_inference: bool = False


class Call:
    """What the headers of an RPC say; of the same headers the same object. `timeout_s`: inf where none is said that makes sense."""

    __slots__ = ("coding", "is_sensible", "metadata", "pairs", "timeout_s")

    def __init__(self, head: Head) -> None:
        self.metadata: Metadata = {
            name: value.strip() for name, value in head.fields.items() if not name.endswith(b"-bin")
        }
        self.pairs = head.pairs
        if head.pairs is not None:
            join_lists(self.metadata, head.pairs)
        self.coding = head.fields.get(b"grpc-encoding", b"identity").lower()
        said = head.fields.get(b"grpc-timeout")
        matched = None if said is None else TIMEOUT.fullmatch(said)
        self.timeout_s = inf if matched is None else int(matched[1]) * UNITS_S[matched[2]]
        self.is_sensible = said is None or matched is not None


def call_of(head: Head) -> Call:
    if not isinstance(head.made, Call):
        head.made = Call(head)
    return head.made


def _pages(size: int) -> memoryview:
    """Large ones where the system has them. Raises OSError."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel that was built without
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


class Wire(Protocol):
    """The connection, as an RPC needs it."""

    peer: str

    def grant(self, stream: int, num_bytes: int) -> None: ...


class Message:
    """One that came, in pieces."""

    __slots__ = ("is_compressed", "pieces", "size")

    def __init__(self, pieces: list[Piece | bytearray], size: int, *, is_compressed: bool) -> None:
        self.pieces = pieces
        self.size = size
        self.is_compressed = is_compressed


class Rpc:
    """`since`: when the message began that is awaited now, by the event loop's clock, None while a stream rests. `trailing`: metadata that
    go with the end of a good answer. `on_left` is called when the client leaves.
    """

    __slots__ = (
        "_ahead",
        "_is_compressed",
        "_is_stopping",
        "_pieces",
        "_place",
        "_prefix",
        "_queue",
        "_queued_bytes",
        "_rest_bytes",
        "_size",
        "_unpack",
        "_waiter",
        "_wire",
        "arrived",
        "call",
        "claim",
        "deadline",
        "error",
        "has_begun",
        "has_client_ended",
        "has_left",
        "is_whole",
        "max_bytes",
        "method",
        "on_left",
        "since",
        "stream",
        "task",
        "timer",
        "trailing",
    )  # fmt: skip

    def __init__(
        self,
        wire: Wire,
        stream: int,
        method: Method,
        call: Call,
        claim: Claim,
        max_bytes: Callable[[int], float],
        unpack: Callable[[Message, Rpc], Awaitable[bytes]],
    ) -> None:
        """`max_bytes`: that a message of so many may have; `unpack`: makes one of its pieces."""
        self.arrived = perf_counter()
        self.stream = stream
        self.method = method
        self.call = call
        self.claim = claim
        self.max_bytes = max_bytes
        self.deadline = self.arrived + call.timeout_s
        self.since: float | None = None
        self.trailing: Headers = []
        self.on_left: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.error: errors.RequestError | None = None
        self.has_begun = False  # to send
        self.has_client_ended = self.has_left = False
        self.is_whole = False  # the message of a unary RPC
        self._wire = wire
        self._unpack = unpack
        self._ahead = WINDOW_BYTES
        self._prefix = b""
        self._rest_bytes: int | None = None  # of the message that comes
        self._size = 0
        self._is_compressed = False
        self._pieces: list[Piece | bytearray] = []
        self._place: memoryview | None = None  # of a large message, which is put together as it comes
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_stopping = False

    # -- for whoever answers ------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> Metadata:
        """Without binary values. Raises BadRequest where one that counts came more than once."""
        if self.call.pairs is not None:
            require_once(self.call.pairs)
        return self.call.metadata

    @property
    def peer(self) -> str:
        return self._wire.peer

    def left_s(self) -> float:
        """Until its deadline, or inf."""
        return self.deadline - perf_counter()

    async def messages(self) -> AsyncIterator[bytes]:
        """What the client sends, until it or the listener ends. Raises RequestError."""
        while (message := await self._next()) is not None:
            whole = await self._unpack(message, self)
            self.claim.give_back(self.claim.held - self.buffered_bytes)
            yield whole

    async def message(self) -> bytes:
        """The first of a stream. Raises RequestError, also where none comes."""
        async for message in self.messages():
            return message
        raise errors.BadRequest("the RPC ended without a message")

    async def pause(self, seconds: float) -> None:
        """Less where the listener stops meanwhile. Raises NotReady then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_stopping:
                    await self._wait()
        self.require_going()

    def require_going(self) -> None:
        if self._is_stopping:
            raise stopping()

    async def _next(self) -> Message | None:
        while not self._queue or self.has_left:
            if self.has_left:
                return None
            if self.error is not None:
                raise self.error
            if self.has_client_ended:
                return None
            if self._rest_bytes is None and not self._prefix:
                self.require_going()
            self._grant()
            await self._wait()
        message = self._queue.popleft()
        self._queued_bytes -= message.size + MESSAGE_BYTES
        return message

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- for the connection -------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Of messages that nobody has taken."""
        coming = 0 if self._rest_bytes is None else self._size - self._rest_bytes
        if self._place is not None:
            coming = min(self._size, -(-coming // PAGE_BYTES) * PAGE_BYTES)
        return coming + self._queued_bytes

    @property
    def has_queued(self) -> bool:
        """Whether messages wait for whoever answers."""
        return bool(self._queue)

    @property
    def is_partial(self) -> bool:
        """Whether some of a message is here, and not all."""
        return self._rest_bytes is not None or bool(self._prefix)

    def add(self, content: bytes, num_bytes: int) -> Message | None:
        """What came; the message of a unary RPC once it is whole. Raises RequestError where it is not taken."""
        self._ahead -= num_bytes
        while True:
            if self._rest_bytes is None:
                content = self._prefix + content
                if len(content) < PREFIX_BYTES:
                    self._prefix = content
                    break
                self._begin(content[0], int.from_bytes(content[1:PREFIX_BYTES]))
                content = content[PREFIX_BYTES:]
            assert self._rest_bytes is not None
            if len(content) < self._rest_bytes:
                self._rest_bytes -= len(content)
                self._keep(content)
                break
            rest, content = content[: self._rest_bytes], content[self._rest_bytes :]
            if self._rest_bytes == self._size:  # it came in one piece, as nearly all do
                self._pieces, self._place = [rest], None
            else:
                self._rest_bytes = 0
                self._keep(rest)
            pieces: list[Piece | bytearray] = self._pieces if self._place is None else [self._place]
            message = Message(pieces, self._size, is_compressed=self._is_compressed)
            self._rest_bytes, self._pieces, self._place = None, [], None
            if self.method.unary is not None:
                self.is_whole = True
                return message
            self._queue.append(message)
            self._queued_bytes += message.size + MESSAGE_BYTES
            self.since = None
            self.wake()
            if not content:
                break
        if not self._queue:
            self._grant()
        return None

    def stop(self) -> None:
        """Once what is here was answered, a stream on which nothing is asked ends."""
        self._is_stopping = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def drop_partial(self) -> None:
        """What is here of a message that will not be read."""
        self._pieces, self._place = [], None

    def fail(self, error: errors.RequestError) -> None:
        """Whoever waits for a message hears this."""
        if self.error is None:
            self.error = error
            self.wake()

    def leave(self) -> None:
        """The client waits for nothing any more."""
        self.has_left = True
        self.wake()
        if self.on_left is not None:
            if self.left_s() > PERHAPS_EXPIRED_S:  # else it is over by its own deadline, and counted so
                self.on_left()
        elif self.task is not None:
            self.task.cancel()

    def _begin(self, flag: int, size: int) -> None:
        if flag > 1:
            raise errors.BadRequest("the message does not begin as gRPC's do")
        most = self.max_bytes(size)
        if size > most:
            raise errors.TooLarge(f"the message has {size} bytes; no model here takes more than {most:.0f}")
        self._prefix = b""
        self._is_compressed = bool(flag)
        self._rest_bytes = self._size = size

    def _keep(self, piece: bytes) -> None:
        """The last bytes that came, which are not in `_rest_bytes` any more."""
        end = self._size - (self._rest_bytes or 0)
        if self._place is None and end > PLACE_ABOVE_BYTES:
            self._place = _pages(self._size)
            before = b"".join(self._pieces)
            self._place[: len(before)] = before
            self._pieces = []
        if self._place is not None:
            self._place[end - len(piece) : end] = piece
            return
        last = self._pieces[-1] if self._pieces else None
        if len(piece) >= SMALL_PIECE_BYTES:
            self._pieces.append(piece)
        elif isinstance(last, bytearray) and len(last) < WINDOW_BYTES:
            last += piece
        elif piece:
            self._pieces.append(bytearray(piece))

    def _grant(self) -> None:
        """The client may send the rest of the message, or the next one."""
        wanted = min(AHEAD_BYTES, max(WINDOW_BYTES, (self._rest_bytes or 0) + PREFIX_BYTES))
        if self._ahead < wanted // 2:
            self._wire.grant(self.stream, wanted - self._ahead)
            self._ahead = wanted
