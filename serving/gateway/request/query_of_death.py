"""Refuses requests under which servers died. Which digest, and for how long, is decided in `serving/scheduling/outliers.py`.

A digest is computed only while some death is remembered. Several requests die with one server; each is noted once for that death. What was
sent after the model was seen to serve again died another time. Rule: what was answered is no suspect any more, or one popular request
would be refused for what another did.

A server may also be stuck with a request, and be restarted once all that was sent there has expired
(`serving/local/containment.py`). Of what it left unanswered, the request that was sent first is the cause, as far as a gateway can tell,
and one such restart is enough to refuse it; those behind it count as after a death.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from time import perf_counter

from serving import errors
from serving.gateway.fleet.server import Server
from serving.gateway.request.dispatch import InferRequest, Lease
from serving.scheduling.outliers import Deaths

# A process that is gone still fails requests until it is loaded again, about a second later (`make prove`), which may be over before
# anybody has looked.
SAME_DEATH_S = 2.0
DEADLY = 2  # deaths
JUDGED_S = 15.0  # in which a server that is stuck with a request has been restarted for it, if it will be
MAX_NOTED = 4096  # digests come from clients, and servers from names that mean others tomorrow


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request that expired, and that its server, restarted so often until then, had not answered long after. Times by perf_counter."""

    sent: float
    digest: bytes
    noted: float
    num_restarts: int


class QueriesOfDeath:
    def __init__(self) -> None:
        self.are_known = False  # until the first death there is nothing to ask here
        self._deaths = Deaths()
        # Of a model there, of its last death, by perf_counter: when it was noticed, and when what noticed it had been sent.
        self._died: dict[tuple[Server, str], tuple[float, float]] = {}
        self._unanswered: dict[Server, list[Unanswered]] = {}
        self._noted: dict[bytes, tuple[Server, float]] = {}  # digest -> the death it was last noted for

    def require_innocent(self, request: InferRequest) -> None:
        """Raises UpstreamLost for a request under which servers died again and again."""
        now = perf_counter()
        causes = self._causes(now)
        if not causes and not self._deaths.knows_any(now):
            return
        digest = _digest(request)
        if digest in causes:
            raise errors.UpstreamLost("a server is stuck with this very request", retry_after_s=causes[digest] - now)
        left_s = self._deaths.refused_for_s(digest.hex(), now)
        if left_s is not None:
            raise errors.UpstreamLost("servers died while they worked on this very request", retry_after_s=left_s)

    def died(self, request: InferRequest, lease: Lease) -> None:
        """Its server died while it worked on this. What was sent before that death was noticed, or a little later, belongs to it."""
        self.are_known = True
        now, server, name = perf_counter(), lease.server, lease.destination.name
        if len(self._died) >= MAX_NOTED:
            self._died.clear()
        last = self._died.get((server, name))
        if last is None or _is_another(*last, lease.ticket.sent, server.back.get(name)):
            last = self._died[server, name] = now, lease.ticket.sent
        digest, death = _digest(request), (server, last[0])
        if self._noted.get(digest) == death:
            return
        if len(self._noted) >= MAX_NOTED:
            self._noted.clear()
        self._noted[digest] = death
        self._deaths.died(digest.hex(), now)

    def unanswered(self, request: InferRequest, lease: Lease) -> None:
        """It expired, and its server had not answered it long after."""
        self.are_known = True
        server, sent = lease.server, lease.ticket.sent
        noted = self._unanswered.setdefault(server, [])
        if len(noted) < MAX_NOTED:
            noted.append(Unanswered(sent, _digest(request), perf_counter(), server.num_restarts or 0))

    def _causes(self, now: float) -> dict[bytes, float]:
        """What servers may be stuck with now, and until when that is open. Judges what they were restarted for."""
        causes: dict[bytes, float] = {}
        for server, noted in list(self._unanswered.items()):
            noted.sort(key=lambda one: one.sent)
            if (server.num_restarts or 0) > noted[0].num_restarts:
                for digest in dict.fromkeys(one.digest for one in noted):
                    self._deaths.died(digest.hex(), now, DEADLY if digest == noted[0].digest else 1)
                del self._unanswered[server]
            elif now > noted[-1].noted + JUDGED_S:
                del self._unanswered[server]
            else:
                causes[noted[0].digest] = max(one.noted for one in noted) + JUDGED_S
        return causes

    def answered(self, request: InferRequest) -> None:
        if self._noted and self._deaths.knows_any(perf_counter()):
            self._deaths.answered(_digest(request).hex())


def _is_another(noticed: float, noticed_by: float, sent: float, back: float | None) -> bool:
    """Whether what was sent then died another time than when a death was last noticed.

    Triton says it a second late, when the model may serve again already: what counts is that it came back after what noticed the death
    had been sent.
    """
    return sent > noticed + SAME_DEATH_S or (back is not None and noticed_by < back <= sent)


def _digest(request: InferRequest) -> bytes:
    """Of the model's name and the whole body."""
    digest = hashlib.blake2b(request.route.name.encode(), digest_size=16)
    for chunk in request.chunks:
        digest.update(chunk)
    return digest.digest()
