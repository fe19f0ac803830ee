"""Refuses requests under which servers died. Which digest, and for how long, is decided in `serving/scheduling/outliers.py`.

A digest is computed only of what is as long as a request that is remembered, and on a thread where that is long. Several requests die with
one server; each is noted once for that death. What was sent after the model was seen to serve again died another time. Rule: what was
answered is no suspect any more, or one popular request would be refused for what another did.

A server may also be stuck with a request, and be restarted once all that was sent there has expired
(`serving/local/containment.py`): that counts as a death, and what it left unanswered is tried on no other pool until it is answered.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from serving import errors
from serving.gateway.fleet.server import Server
from serving.gateway.request.dispatch import InferRequest, Lease
from serving.scheduling.outliers import REFUSED_S, Deaths

# A process that is gone still fails requests until it is loaded again, about a second later (`make prove`), which may be over before
# anybody has looked.
SAME_DEATH_S = 2.0
MAX_NOTED = 4096  # digests come from clients, and servers from names that mean others tomorrow
HASHED_HERE_BYTES = 2**20  # in a millisecond


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request that a server, restarted so often until then, had not answered long after it expired. `until` by perf_counter."""

    server: Server
    pool: str
    num_restarts: int
    until: float


class QueriesOfDeath:
    def __init__(self) -> None:
        self.are_known = False  # until the first death there is nothing to ask here
        self._deaths = Deaths()
        # Of a model there, of its last death, by perf_counter: when it was noticed, and when what noticed it had been sent.
        self._died: dict[tuple[Server, str], tuple[float, float]] = {}
        self._unanswered: dict[bytes, Unanswered] = {}  # the one that is forgotten first stands first
        self._num_restarts: dict[Server, int | None] = {}  # of servers with such requests, when these were last judged
        self._noted: dict[bytes, tuple[Server, float]] = {}  # digest -> the death it was last noted for
        self._lengths: set[tuple[str, int]] = set()  # of all that is remembered, by the model's name

    async def require_innocent(self, request: InferRequest) -> None:
        """Raises UpstreamLost for a request under which servers died again and again.

        One that a server left unanswered may go to that pool alone: others are not to be stuck with it, too.
        """
        now = perf_counter()
        self._judge(now)
        if not self._unanswered and not self._deaths.knows_any(now):
            self._lengths.clear()
        if _length(request) not in self._lengths:
            return
        digest = _digest(request) or await _hashing(request)
        left_s = self._deaths.refused_for_s(digest.hex(), now)
        if left_s is not None:
            raise errors.UpstreamLost("servers died while they worked on this very request", retry_after_s=left_s)
        if (left := self._unanswered.get(digest)) is not None:
            request.only_pool = left.pool

    def died(self, request: InferRequest, lease: Lease) -> None:
        """Its server died while it worked on this. What was sent before that death was noticed, or a little later, belongs to it."""
        self.are_known = True
        now, server, name = perf_counter(), lease.server, lease.destination.name
        if len(self._died) >= MAX_NOTED:
            self._died.clear()
        last = self._died.get((server, name))
        if last is None or _is_another(*last, lease.ticket.sent, server.back.get(name)):
            last = self._died[server, name] = now, lease.ticket.sent
        _with_digest(request, partial(self._note, _length(request), (server, last[0]), now))

    def _note(self, length: tuple[str, int], death: tuple[Server, float], now: float, digest: bytes) -> None:
        self._remember_length(length)
        if self._noted.get(digest) == death:
            return
        if len(self._noted) >= MAX_NOTED:
            self._noted.clear()
        self._noted[digest] = death
        self._deaths.died(digest.hex(), now)

    def unanswered(self, request: InferRequest, lease: Lease) -> None:
        """It expired, and its server had not answered it long after."""
        self.are_known = True
        now, server = perf_counter(), lease.server
        self._judge(now)
        self._num_restarts.setdefault(server, server.num_restarts)
        left = Unanswered(server, lease.destination.pool, server.num_restarts or 0, until=now + REFUSED_S)
        _with_digest(request, partial(self._leave, _length(request), left))

    def _leave(self, length: tuple[str, int], left: Unanswered, digest: bytes) -> None:
        self._remember_length(length)
        self._unanswered.pop(digest, None)
        if len(self._unanswered) >= MAX_NOTED:
            del self._unanswered[next(iter(self._unanswered))]
        self._unanswered[digest] = left

    def _remember_length(self, length: tuple[str, int]) -> None:
        if len(self._lengths) >= MAX_NOTED:
            self._lengths.clear()
        self._lengths.add(length)

    def _judge(self, now: float) -> None:
        """What servers were restarted for counts as a death, once, and all is forgotten in time. Asked for each request, of thousands."""
        while self._unanswered and self._unanswered[oldest := next(iter(self._unanswered))].until <= now:
            del self._unanswered[oldest]
        if not self._unanswered:
            self._num_restarts.clear()
        if all(server.num_restarts == judged for server, judged in self._num_restarts.items()):
            return
        self._num_restarts = {server: server.num_restarts for server in self._num_restarts}
        for digest, left in self._unanswered.items():
            if (num_restarts := left.server.num_restarts or 0) > left.num_restarts:
                self._deaths.died(digest.hex(), now)
                self._unanswered[digest] = replace(left, num_restarts=num_restarts)

    def answered(self, request: InferRequest) -> None:
        if _length(request) in self._lengths:
            _with_digest(request, self._forget)

    def _forget(self, digest: bytes) -> None:
        self._unanswered.pop(digest, None)
        self._deaths.answered(digest.hex())


def _is_another(noticed: float, noticed_by: float, sent: float, back: float | None) -> bool:
    """Whether what was sent then died another time than when a death was last noticed.

    Triton says it a second late, when the model may serve again already: what counts is that it came back after what noticed the death
    had been sent.
    """
    return sent > noticed + SAME_DEATH_S or (back is not None and noticed_by < back <= sent)


def _length(request: InferRequest) -> tuple[str, int]:
    return request.route.name, sum(map(len, request.chunks))


def _with_digest(request: InferRequest, use: Callable[[bytes], None]) -> None:
    """At once, or when a thread has read it."""
    if (digest := _digest(request)) is not None:
        use(digest)
    else:
        _hashing(request).add_done_callback(lambda read: None if read.cancelled() else use(read.result()))


def _digest(request: InferRequest) -> bytes | None:
    """None where it has to be waited for."""
    if request.digest is None and _length(request)[1] <= HASHED_HERE_BYTES:
        request.digest = digest_of(request)
    return request.digest


def _hashing(request: InferRequest) -> asyncio.Future[bytes]:
    if request.hashing is None:
        request.hashing = asyncio.get_running_loop().run_in_executor(None, digest_of, request)
    return request.hashing


def digest_of(request: InferRequest) -> bytes:
    """Of the model's name and the whole body."""
    digest = hashlib.blake2b(request.route.name.encode(), digest_size=16)
    for chunk in request.chunks:
        digest.update(chunk)
    return digest.digest()
