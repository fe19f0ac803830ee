"""Hands large tensors to a Triton on this machine in memory that both map, instead of over a socket.

Triton 2.51 reads a body in pieces of 4 KiB, two system calls each, into memory that is new every time: 1.8 s of CPU per GB. Of shared
memory it takes 0.15 s (docs/measurements.md). A segment is made for one server and registered there; from then on it has no name. Where
anything about it fails, the request goes over the socket, as it does to other machines. Rules: a segment is used again only when Triton has
answered, or long after; one that Triton may be reading is never unregistered, because 2.51 would read on.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import inf, prod
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import orjson

from serving.gateway.eager import own_task
from serving.gateway.fleet.upstream import Answer, Lost, Target
from serving.protocol.tensors import BINARY

Chunk = bytes | memoryview
FOLDER = Path("/dev/shm")
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
FROM_BYTES = 256 * 1024  # of a body; a smaller one gains less than half a millisecond of Triton's time
STEP_BYTES = 4 * 2**20  # sizes of segments
MOST_BYTES = 256 * 2**20  # for one server: what all requests may hold unless told otherwise
SPARED_BYTES = 256 * 2**20  # that stay free for Triton's own; a container has 64 MiB in all unless told otherwise
ALIGNED_BYTES = 64  # where each tensor begins: the longest vector
TURN_BYTES = 2**20  # copied before others have their turn: 0.2 ms
IDLE_S = 60.0  # without a request, until segments are given back; this and the next two are guesses, not measured
REST_S = 60.0  # until a segment is used again whose request was given up
CLOSED_S = 10.0  # until new ones are tried where there was no room, or where Triton knew ours no more: it is a new one
ANSWER_S = 2.0  # for a registration
UNKNOWN = b"nable to find shared memory region"


class Place(NamedTuple):
    """Of one tensor in a segment: its entry in the request, where it begins, its length in bytes."""

    entry: dict[str, Any]
    start: int
    size: int


class Segment:
    """`era`: of the server's process in which it is registered."""

    __slots__ = ("era", "memory", "name", "rests_until", "size", "was_given_up")

    memory: mmap.mmap

    def __init__(self, size: int, era: int) -> None:
        self.size = size
        self.era = era
        self.name = f"{_prefix()}{os.getpid()}-{os.urandom(8).hex()}"
        self.rests_until = 0.0  # perf_counter
        self.was_given_up = False  # Triton may read it yet

    async def allocate(self) -> None:
        """Step by step, each of 1 ms, and others have their turn between them.

        Raises OSError where not all of it is there: a page that is missing later would end the process.
        """
        room = os.statvfs(FOLDER)
        if room.f_bavail * room.f_frsize < self.size + SPARED_BYTES:
            raise OSError("too little shared memory is free")
        file = os.open(FOLDER / self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for start in range(0, self.size, STEP_BYTES):
                os.posix_fallocate(file, start, STEP_BYTES)
                await asyncio.sleep(0)
            self.memory = mmap.mmap(file, self.size)
        except BaseException:
            self.unlink()
            raise
        finally:
            os.close(file)

    def unlink(self) -> None:
        (FOLDER / self.name).unlink(missing_ok=True)


class Placed:
    """A request whose tensors are in a segment: `body` is JSON alone. It is given back when nobody holds this any more.

    Who sends it holds it until Triton has answered, or says that nobody waits for that (`is_given_up`).
    """

    __slots__ = ("_of", "_segment", "body", "is_given_up")

    def __init__(self, of: SharedMemory, segment: Segment) -> None:
        self._of = of
        self._segment = segment
        self.body = b""
        self.is_given_up = False

    @property
    def framing(self) -> bytes:
        """The last lines of its head."""
        return b"Content-Length: %d\r\n\r\n" % len(self.body)

    def is_unknown(self, answer: Answer) -> bool:
        """Whether this is the answer of a Triton that never heard of its segment."""
        return answer.status == 404 and UNKNOWN in answer.start

    def __del__(self) -> None:
        self._of.take_back(self._segment, is_given_up=self.is_given_up)


class SharedMemory:
    """The segments of one server."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[Segment] = []
        self._resting: list[Segment] = []
        self._num_bytes = 0  # of all segments
        self._era = 0
        self._closed_until = 0.0 if target.host in LOOPBACK else inf
        self._placed_at = 0.0
        self._trimming: asyncio.Task[None] | None = None
        self._making: set[asyncio.Task[Segment | None]] = set()  # asyncio itself keeps no task alive
        # Regions of gateways that were dead when the first of this era was registered, and ours that Triton may know: it did not say.
        self._left: set[str] = set()

    async def place(self, head: bytes, chunks: Sequence[Chunk], until: float) -> Placed | None:
        """Copies a body's tensors; `chunks` begin with its JSON part `head`. None where it is to be sent as it is.

        It waits for a segment until `until` (perf_counter) at most.
        """
        if perf_counter() < self._closed_until:
            return None
        request = orjson.loads(head)
        places = _places(request.get("inputs"), sum(map(len, chunks)) - len(head))
        if not places:
            return None
        await own_task()
        segment = await self._segment(places[-1].start + places[-1].size, until)
        if segment is None:
            return None
        placed = Placed(self, segment)
        self._placed_at = perf_counter()
        await _copy(_behind(chunks, len(head)), memoryview(segment.memory), places)
        for place in places:
            place.entry["parameters"] = {
                "shared_memory_region": segment.name,
                "shared_memory_offset": place.start,
                "shared_memory_byte_size": place.size,
            }
        placed.body = orjson.dumps(request)
        return placed

    def take_back(self, segment: Segment, *, is_given_up: bool) -> None:
        """Called by what held it last, whatever the thread."""
        if segment.era != self._era:
            return
        if is_given_up:
            segment.was_given_up, segment.rests_until = True, perf_counter() + REST_S
            self._resting.append(segment)
        else:
            self._idle.append(segment)

    def forget(self) -> None:
        """The server is another process than the one that knew them."""
        self._era += 1
        self._num_bytes = 0
        self._idle, self._resting, self._left = [], [], set()
        self._closed_until = perf_counter() + CLOSED_S

    def sweep(self, now: float) -> None:
        """Called a few times a second."""
        while self._resting and self._resting[0].rests_until <= now:
            self._idle.append(self._resting.pop(0))
        is_due = bool(self._idle or self._left) and now - self._placed_at > IDLE_S
        if is_due and (self._trimming is None or self._trimming.done()):
            self._trimming = asyncio.create_task(self.trim())

    async def trim(self) -> None:
        """Gives idle segments back to the system, but for those that Triton may read yet; and what killed gateways left."""
        given = [segment for segment in self._idle if not segment.was_given_up]
        self._idle = [segment for segment in self._idle if segment.was_given_up]
        left, self._left, era = self._left, set(), self._era
        await asyncio.gather(*(self._unregister(name) for name in (*left, *(segment.name for segment in given))))
        if self._era == era:
            self._num_bytes -= sum(segment.size for segment in given)

    async def _segment(self, size: int, until: float) -> Segment | None:
        fitting = [segment for segment in self._idle if segment.size >= size]
        if fitting:
            segment = min(fitting, key=lambda one: one.size)
            self._idle.remove(segment)
            return segment
        making = asyncio.create_task(self._new_segment(-(-size // STEP_BYTES) * STEP_BYTES))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        is_taken = False
        try:
            await asyncio.wait({making}, timeout=min(ANSWER_S, until - perf_counter()))
            is_taken = making.done()
            return making.result() if is_taken else None
        finally:
            if not is_taken:  # its request goes on, or ends, without it
                making.add_done_callback(self._keep)

    def _keep(self, making: asyncio.Task[Segment | None]) -> None:
        """For the next request."""
        if not making.cancelled() and making.exception() is None and (segment := making.result()) is not None:
            self.take_back(segment, is_given_up=False)

    async def _new_segment(self, size: int) -> Segment | None:
        """In a task of its own, so that what Triton knows is known here, whatever becomes of who asked."""
        if self._num_bytes + size > MOST_BYTES:
            await self.trim()
            if self._num_bytes + size > MOST_BYTES:
                return None
        segment = Segment(size, self._era)
        self._num_bytes += size
        is_known, answer = False, None
        try:
            await segment.allocate()
            if size == self._num_bytes:  # the first one there
                _unlink_dead()
                self._left |= await self._dead()
            key = orjson.dumps({"key": f"/{segment.name}", "offset": 0, "byte_size": size})
            answer = await self._ask(b"POST", f"region/{segment.name}/register", key)
            is_known = answer is not None and answer.status == 200
        except OSError:
            self._closed_until = perf_counter() + CLOSED_S
            return None
        finally:
            segment.unlink()
            if not is_known and segment.era == self._era:
                self._num_bytes -= size
                if answer is None:
                    self._left.add(segment.name)
        if (
            not is_known
        ):  # where it refused, it runs elsewhere, and what is at our address is a way there; 503: it is ending
            is_for_good = answer is not None and answer.status != 503
            self._closed_until = inf if is_for_good else perf_counter() + CLOSED_S
        return segment if is_known and segment.era == self._era else None

    async def _unregister(self, name: str) -> None:
        await self._ask(b"POST", f"region/{name}/unregister")

    async def _dead(self) -> set[str]:
        """Regions there of gateways that are no more."""
        answer = await self._ask(b"GET", "status")
        if answer is None or answer.status != 200:
            return set()
        names = {str(region["name"]) for region in orjson.loads(answer.body)}
        return {name for name in names if name.startswith(_prefix()) and not _is_alive(name)}

    async def _ask(self, method: bytes, what: str, body: bytes = b"") -> Answer | None:
        """None where there was no answer. In a task of its own."""
        head = b"%b /v2/systemsharedmemory/%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n"
        filled = head % (method, what.encode(), self._target.host_header, len(body))
        with suppress(Lost, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return await self._target.ask(filled, (body,), perf_counter() + ANSWER_S)
        return None


@cache
def _prefix() -> str:
    """Of segments of gateways whose processes this one can see."""
    return f"tandem-{Path('/proc/self/ns/pid').stat().st_ino}-"


def _is_alive(name: str) -> bool:
    return Path("/proc", name.removeprefix(_prefix()).partition("-")[0]).exists()


def _unlink_dead() -> None:
    """Segments of gateways that were killed before they had taken their names away."""
    for path in FOLDER.glob(f"{_prefix()}*"):
        if not _is_alive(path.name):
            path.unlink(missing_ok=True)


def _places(inputs: object, size: int) -> list[Place] | None:
    """None where not every tensor is one of `size` bytes of numbers, exactly as long as its shape says."""
    found, start = [], 0
    for entry in inputs if isinstance(inputs, list) else []:
        if not isinstance(entry, dict):
            return None
        parameters, shape, letter = entry.get("parameters"), entry.get("shape"), BINARY.get(str(entry.get("datatype")))
        if letter is None or "data" in entry or not isinstance(shape, list) or not isinstance(parameters, dict):
            return None
        length = parameters.get("binary_data_size")
        if (
            len(parameters) != 1
            or type(length) is not int
            or not length
            or length != prod(shape) * np.dtype(letter).itemsize
        ):
            return None
        found.append(Place(entry, start, length))
        size -= length
        start += -(-length // ALIGNED_BYTES) * ALIGNED_BYTES
    return None if size else found


def _behind(chunks: Iterable[Chunk], length: int) -> Iterator[memoryview]:
    """All but the first `length` bytes."""
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        yield view[length:]
        length = max(0, length - len(view))


async def _copy(pieces: Iterable[memoryview], memory: memoryview, places: Iterable[Place]) -> None:
    """Others have their turn between times."""
    rest, at, left, num_copied = iter(places), 0, 0, 0
    for piece in pieces:
        while piece:
            if not left:
                _, at, left = next(rest)
            size = min(len(piece), left, TURN_BYTES)
            memory[at : at + size] = piece[:size]
            piece, at, left, num_copied = piece[size:], at + size, left - size, num_copied + size
            if num_copied >= TURN_BYTES:
                num_copied = 0
                await asyncio.sleep(0)
