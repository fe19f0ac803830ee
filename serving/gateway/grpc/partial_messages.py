"""Messages that are being received: how much of them is here, counted in the one budget of memory, and how long each may take.

gRPC tells of a message when it is whole. Until then the system's counter of what came on its connection (Linux) says how
much there is: all, less what whole messages had. Large ones are taken from gRPC one by one, because that copies them on the
event loop. Rules: what is not known counts as memory that is held; a read that has begun is never cancelled, because gRPC
never frees a message that became whole meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

from serving import errors
from serving.gateway.grpc.status import Answer
from serving.gateway.http.body import HERE_BYTES
from serving.gateway.http.compression import decompress
from serving.gateway.http.connections import Connections
from serving.gateway.listeners import held
from serving.gateway.threads import Threads
from serving.protocol.memory import Memory
from serving.settings import LimitSettings

# Between looks while a message comes, or one was awaited so long; what came since is not counted yet: 13 MB at 10 Gbit/s.
SOON_S = 0.01
LOOK_S = 0.1  # while messages are awaited of which nothing comes
REST_S = 1.0  # between looks otherwise, for connections that are too many; a guess, not measured
LOOKING_RATIO = 0.05  # of a processor, at most: a look takes 0.3 ms, and 30 µs more for each connection (measured)
# What a stream may send before it is read (`WINDOW` in server.py); as much is not counted, as a body that comes over HTTP in one read.
SMALL_BYTES = 64 * 1024
# How a message begins that was compressed; no plain one does, because no message here has fields 3 and 15 of these kinds.
PACKED = {b"\x1f\x8b": b"gzip", b"\x78": b"deflate"}
AROUND_BYTES = 1024  # metadata and frames of one message: more than most have. A guess, not measured.
# A message that may be as long whatever the models take: gRPC's own default. Its limit for all messages cannot be changed while it serves.
LEAST_BYTES = 4 * 2**20
RECEIVED_AT, RECEIVED_END = 128, 136  # tcpi_bytes_received in the system's struct tcp_info, since Linux 4.1


class _Read:
    """An RPC that waits for a message. `error`: why it shall do so no longer."""

    __slots__ = ("began", "error", "is_stream", "task")

    def __init__(self, began: float, *, is_stream: bool) -> None:
        self.began = began
        self.is_stream = is_stream
        self.error: errors.RequestError | None = None
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    def end(self, error: errors.RequestError) -> None:
        if self.error is None:
            self.error = error
            self.task.cancel()


class _Connection:
    """`address`: of the client where it counts as a connection. Bytes are since the connection began; times are the event loop's.

    `base`: received when no message that is awaited now had begun; `finished`: of messages that became whole since.
    `seen`: received at the last look; `fresh`: of messages that began and became whole since. `is_large`: whether what was not whole was
    more than SMALL_BYTES.
    """

    def __init__(self, memory: Memory) -> None:
        self.reads: set[_Read] = set()
        self.claim = memory.claim()
        self.address: str | None = None
        self.base = self.finished = 0
        self.seen, self.seen_at, self.fresh = 0, -inf, 0
        self.is_large = False
        self.grew_at = self.small_at = -inf

    def whole(self, num_bytes: int, began: float) -> None:
        self.claim.give_back(num_bytes)
        self.finished += num_bytes + AROUND_BYTES
        if began >= self.seen_at:
            self.fresh += num_bytes + AROUND_BYTES

    def look(self, received: int, now: float, limits: LimitSettings, max_message_bytes: float) -> bool:
        """Whether more of a message has come since the last look."""
        if all(read.began >= self.seen_at for read in self.reads):
            self.base, self.finished = self.seen, self.fresh
        is_growing = received > self.seen
        if is_growing:
            self.grew_at = now
        self.seen, self.seen_at, self.fresh = received, now, 0
        most = len(self.reads) * limits.max_body_bytes
        unfinished = min(most, received - self.base - self.finished)
        self.is_large = unfinished > SMALL_BYTES
        if not self.is_large:
            unfinished, self.small_at = 0, now
        self._end_late(now, limits)
        self._end_large(unfinished, max_message_bytes)
        self.claim.give_back(self.claim.held - unfinished)
        try:
            self.claim.take(unfinished - self.claim.held)
        except errors.RequestError as error:
            self.claim.release()
            for read in self.reads:
                read.end(error)
            return True
        return is_growing and self.is_large

    def _end_late(self, now: float, limits: LimitSettings) -> None:
        """A stream may wait for its next message as long as it likes, as long as nothing of it has come."""
        for read in self.reads:
            since = max(read.began, self.small_at) if read.is_stream else read.began
            paused_s = now - max(since, self.grew_at)
            if now - since > limits.body_timeout_s or paused_s > limits.body_pause_s:
                read.end(errors.TooSlow("the message came too slowly (body_timeout_s, body_pause_s)"))

    def _end_large(self, unfinished: int, max_message_bytes: float) -> None:
        """Only where all that came is of the messages that are awaited: of others it is not exactly known how much they were."""
        if not self.finished and unfinished > len(self.reads) * max_message_bytes:
            for read in self.reads:
                read.end(
                    errors.TooLarge(
                        f"the message has more than {max_message_bytes:.0f} bytes; no model here takes more"
                    )
                )


class _Turns:
    """One call in two rounds of the event loop, so that others get theirs in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._waiting[0]()
        self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._loop.call_soon, self._next)


class _Coming:
    """Drives gRPC's coroutine, so that `whole` can be left and the coroutine goes on. It copies the message when it runs for the last time:
    of a connection that has sent much, in its turn.
    """

    __slots__ = ("_connection", "_steps", "_turns", "whole")

    def __init__(self, coming: Awaitable[Any], connection: _Connection, turns: _Turns) -> None:
        self.whole: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._steps: Generator[asyncio.Future[Any]] = coming.__await__()
        self._connection = connection
        self._turns = turns
        self._go_on()

    def _go_on(self) -> None:
        try:
            awaited = next(self._steps)
        except StopIteration as ended:
            if not self.whole.done():
                self.whole.set_result(ended.value)
        except BaseException as error:
            if not self.whole.done():
                self.whole.set_exception(error)
        else:
            awaited.add_done_callback(self._in_turn)

    def _in_turn(self, _: object) -> None:
        if self._connection.is_large:
            self._turns.wait(self._go_on)
        else:
            self._go_on()


class PartialMessages:
    """Of the listener at `port`. `connections`: those of it, counted and bounded. `most_bytes`: of a message that any model takes now.

    Made inside a running event loop.
    """

    def __init__(
        self,
        port: int,
        memory: Memory,
        limits: LimitSettings,
        connections: Connections,
        threads: Threads,
        most_bytes: Callable[[], float],
    ) -> None:
        self._port = port
        self._memory = memory
        self._limits = limits
        self._connections = connections
        self._threads = threads
        self._most_bytes = most_bytes
        self._by_peer: dict[str, _Connection] = {}
        self._num_reads = 0
        self._unseen: dict[_Read, None] = {}  # begun since the last look, in order
        self._is_awaited = asyncio.Event()  # since `watch` last paused
        self._loop = asyncio.get_running_loop()
        self._turns = _Turns(self._loop)

    def whole(self, answer: Answer) -> Answer:
        """The same, for an RPC of which nothing was read."""

        async def read_and_answer(_: object, context: Any) -> bytes:
            return await answer(await self.message(context), context)

        return read_and_answer

    async def message(self, context: Any) -> bytes:
        """The one message of an RPC. Raises as `of`, and CancelledError where none comes, because the client left."""
        message = await self.of(context.read(), context)
        if not isinstance(message, bytes):
            raise asyncio.CancelledError
        return message

    async def of(self, coming: Awaitable[Any], context: Any, *, is_stream: bool = False) -> Any:
        """The message that comes, unpacked, or EOF.

        Raises Overloaded, TooLarge or TooSlow where the whole of it is not to be waited for, or BadRequest where it cannot be unpacked.
        """
        peer = context.peer()
        connection = self._by_peer.get(peer)
        if connection is None:
            connection = self._by_peer[peer] = _Connection(self._memory)
        read = _Read(self._loop.time(), is_stream=is_stream)
        connection.reads.add(read)
        self._num_reads += 1
        self._unseen[read] = None
        self._is_awaited.set()
        try:
            came = await _Coming(coming, connection, self._turns).whole
        except asyncio.CancelledError:
            if read.error is None:
                raise
            read.task.uncancel()
            raise read.error from None
        finally:
            connection.reads.discard(read)
            self._num_reads -= 1
            self._unseen.pop(read, None)
        if not isinstance(came, bytes):
            return came
        connection.whole(len(came), read.began)
        coding = next((coding for begin, coding in PACKED.items() if came.startswith(begin)), None)
        if coding is None:
            return came
        unpack = partial(self._unpacked, came, coding, int(min(self._limits.max_body_bytes, self._longest_bytes())))
        return unpack() if len(came) <= HERE_BYTES else await self._threads.run(unpack)

    def _longest_bytes(self) -> float:
        """That a message may be, by the models that are served now."""
        return max(LEAST_BYTES, self._most_bytes())

    def _unpacked(self, message: bytes, coding: bytes, max_bytes: int) -> bytes:
        """The claim ends here, because whoever waits may leave meanwhile. Raises Overloaded, TooLarge or BadRequest."""
        claim = self._memory.claim()
        try:
            claim.take(len(message))
            return b"".join(decompress(message, coding, max_bytes, claim))
        finally:
            claim.release()

    async def watch(self) -> None:
        """For as long as the listener is there."""
        looked_at, pause_s, is_growing = -inf, SOON_S, False
        while True:
            if not is_growing and not self._unseen and not self._is_awaited.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S if self._num_reads else REST_S):
                        await self._is_awaited.wait()
            self._is_awaited.clear()
            await asyncio.sleep(pause_s)
            pause_s = SOON_S
            oldest = next(iter(self._unseen), None)
            now = self._loop.time()
            if (
                is_growing
                or (oldest is not None and oldest.began <= now - SOON_S)
                or now - looked_at >= (LOOK_S if self._num_reads else REST_S)
            ):
                looked_at = now
                received, took_s = await self._loop.run_in_executor(None, _received, self._port)
                while self._unseen and next(iter(self._unseen)).began < looked_at:
                    del self._unseen[next(iter(self._unseen))]
                is_growing = self._look(received)
                pause_s = max(SOON_S, took_s / LOOKING_RATIO)

    def _look(self, received: dict[str, tuple[str, int]]) -> bool:
        """Whether messages are coming."""
        now = self._loop.time()
        is_growing = False
        too_many = set()
        max_message_bytes = self._longest_bytes()
        for peer, (address, num_bytes) in received.items():
            connection = self._by_peer.get(peer)
            if connection is None:
                connection = self._by_peer[peer] = _Connection(self._memory)
            if connection.address is None:
                if self._connections.begin(address) is not None:
                    too_many.add(peer)
                    continue
                connection.address = address
            is_growing |= connection.look(num_bytes, now, self._limits, max_message_bytes)
        for peer in self._by_peer.keys() - received.keys():
            connection = self._by_peer[peer]
            if not connection.reads:
                connection.claim.release()
                if connection.address is not None:
                    self._connections.end(connection.address)
                del self._by_peer[peer]
        if too_many:
            _close(self._port, too_many)
        return is_growing


def _received(port: int) -> tuple[dict[str, tuple[str, int]], float]:
    """By peer, as gRPC writes it: its address, and how many bytes have come from it; and the processor seconds that this took."""
    began_s = time.thread_time()
    found = {}
    for it in held(port):
        if not it.is_listening:
            with suppress(OSError):
                peer, address = _peer(it.copy)
                info = it.copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED_END)
                if len(info) == RECEIVED_END:
                    found[peer] = address, struct.unpack_from("Q", info, RECEIVED_AT)[0]
    return found, time.thread_time() - began_s


def _peer(connection: socket.socket) -> tuple[str, str]:
    host, port = connection.getpeername()[:2]
    host = host.removeprefix("::ffff:")
    return (f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"), host


def _close(port: int, peers: set[str]) -> None:
    for it in held(port):
        if not it.is_listening:
            with suppress(OSError):
                if _peer(it.copy)[0] in peers:
                    it.copy.shutdown(socket.SHUT_RDWR)
