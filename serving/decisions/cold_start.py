"""Where did the time go between "a server is wanted" and its first good answer? By phase, out of the moments at which things were seen.

    decision     until a pod was made: the autoscaler's own time
    node         until the pod had a node: bought, booted, ready (next to nothing where one was there)
    image        until its container ran: pulled, models copied
    load         until the pod was ready: models loaded
    warm_up      until gateways sent traffic there
    first_answer until the first good answer came
    total        from the decision to that answer

Moments are seconds of 1970, Kubernetes' own in whole seconds. Rule: a phase with an end that nobody saw is left out, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from statistics import median

WHOLE_S = 1.0  # Kubernetes cuts off fractions of seconds: what was made after a decision may bear a time before it
PHASES = ("decision", "node", "image", "load", "warm_up", "first_answer", "total")
MOST_KEPT = 50  # cold starts that are told of; a guess at what anybody reads


@dataclass(frozen=True, slots=True)
class Server:
    """One pod of a pool, with the node it got. None: not yet, or nobody may see it."""

    name: str
    created_at: float | None = None
    node_created_at: float | None = None
    node_ready_at: float | None = None
    scheduled_at: float | None = None
    started_at: float | None = None
    ready_at: float | None = None


MOMENTS = tuple(each.name for each in fields(Server) if each.name != "name")


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Of a pool of which nothing answered. `is_given_up`: it was no longer wanted before it answered."""

    pool: str
    decided_at: float
    server: Server | None = None
    warm_at: float | None = None
    answered_at: float | None = None
    is_given_up: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_given_up or self.answered_at is not None

    @property
    def phases(self) -> dict[str, float]:
        """Seconds, of those phases whose ends were seen. Never below 0, though clocks differ."""
        it = self.server or Server("")
        moments = (self.decided_at, it.created_at, it.scheduled_at, it.started_at, it.ready_at, self.warm_at)
        ends = (*zip(moments, (*moments[1:], self.answered_at), strict=True), (self.decided_at, self.answered_at))
        return {
            name: max(0.0, end - begin)
            for name, (begin, end) in zip(PHASES, ends, strict=True)
            if begin is not None and end is not None
        }


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One look at one pool. `has_answered`: some gateway has counted another good answer of it since the look before."""

    num_wanted: int
    num_ready: int
    is_warm: bool
    has_answered: bool
    servers: Sequence[Server] = ()


NUM_TELLING = 5  # of a pool's last cold starts: nodes of yesterday's kind say little; a guess


def measured_s(all_of_them: Iterable[ColdStart], pool: str) -> float | None:
    """The median of a pool's last cold starts, until gateways sent there; None without one. An answer may wait for traffic."""
    took = [it.warm_at - it.decided_at for it in all_of_them if it.pool == pool and it.warm_at is not None]
    return median(took[-NUM_TELLING:]) if took else None


def follow(
    old: tuple[ColdStart, ...], now: float, was_wanted: Mapping[str, int], seen: Mapping[str, PoolSnapshot]
) -> tuple[ColdStart, ...]:
    """The cold starts with what this look adds, oldest first. `was_wanted`: at the look before; what is missing there begins none."""
    after = [it if it.is_over or it.pool not in seen else _further(it, now, seen[it.pool]) for it in old]
    going_on = {it.pool for it in after if not it.is_over}
    for pool, look in seen.items():
        is_new = was_wanted.get(pool, look.num_wanted) == 0 and look.num_wanted > 0 and look.num_ready == 0
        if is_new and pool not in going_on:
            after.append(ColdStart(pool, now))
    return tuple(after[-MOST_KEPT:])


def _further(it: ColdStart, now: float, look: PoolSnapshot) -> ColdStart:
    if look.num_wanted == 0 and look.num_ready == 0:
        return replace(it, is_given_up=True)
    server = _farthest(it, look.servers)
    warm_at = now if it.warm_at is None and look.is_warm else it.warm_at
    answered_at = now if warm_at is not None and look.has_answered else None
    return replace(it, server=server, warm_at=warm_at, answered_at=answered_at)


def _farthest(it: ColdStart, servers: Sequence[Server]) -> Server | None:
    """Of the pods that this decision made, the one that is ready first, or will be."""
    made = {s.name: s for s in servers if s.created_at is not None and s.created_at >= it.decided_at - WHOLE_S}
    if it.server is not None:
        made[it.server.name] = _first_of_each(it.server, made.get(it.server.name, it.server))
        if it.server.ready_at is not None:
            return made[it.server.name]
    return max(made.values(), key=_how_far, default=None)


def _first_of_each(old: Server, new: Server) -> Server:
    """What was seen once stays: a container may start again, and readiness be lost."""
    return Server(old.name, *(getattr(old if getattr(old, name) is not None else new, name) for name in MOMENTS))


def _how_far(server: Server) -> tuple[int, float]:
    moments = [moment for name in MOMENTS if (moment := getattr(server, name)) is not None]
    return len(moments), -max(moments, default=-inf)
