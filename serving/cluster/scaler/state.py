"""Holds the scaler's newest result for its readers: the HTTP threads, gRPC's streams, the metrics.

Each result replaces the one before as a whole, so that no lock is needed. Counts only grow, and their number is bounded by the pools.
Rule: only `reconcile` publishes, and `apply` who leads.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from serving.cluster.scaler.leader import LeaderSnapshot
from serving.decisions.bursts import note_of
from serving.decisions.cold_start import ColdStart
from serving.decisions.prices import HOUR_S
from serving.decisions.scaling import Scaling
from serving.settings import PoolSettings
from serving.usage.stores import add_seconds

# From a pod on a node that is there, with its image, to a node that is hard to buy and 15 GB to pull; guesses.
BOUNDS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, inf)


class PhaseHistogram:
    """How long one phase of a pool took, over all cold starts that ended in an answer."""

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts = [0] * len(BOUNDS_S)

    def count(self, took_s: float) -> None:
        self.sum_s += took_s
        self._counts[bisect_left(BOUNDS_S, took_s)] += 1

    @property
    def up_to(self) -> list[tuple[float, int]]:
        """(upper bound in seconds, how many took no longer)."""
        return list(zip(BOUNDS_S, accumulate(self._counts), strict=True))


class ColdStartTotals:
    """`ends`: by (pool, "answered" or "given_up"); `phases`: by (pool, phase)."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[str, str]] = Counter()
        self.phases: defaultdict[tuple[str, str], PhaseHistogram] = defaultdict(PhaseHistogram)

    def count(self, it: ColdStart) -> None:
        self.ends[it.pool, "given_up" if it.is_given_up else "answered"] += 1
        if it.answered_at is not None:
            for phase, took_s in it.phases.items():
                self.phases[it.pool, phase].count(took_s)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of the last minute, over all gateways: answered well, and failed by no client's fault."""

    num_good: float = 0.0
    num_failed: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The last change of a pool's number. `decided_at`: seconds of 1970."""

    before: int
    after: int
    reason: str
    sentence: str
    decided_at: float


@dataclass(slots=True)
class Bill:
    """What a pool costs since this scaler has known its number. `price_per_hour`: of a card, None without one.

    Paid for is every card, or server where none is shared, that is wanted or still answers.
    """

    price_per_hour: float | None = None
    servers_per_card: int = 1
    num_cards: int | None = None  # now; None before the first number
    card_s: float = 0.0
    by_minute: dict[int, tuple[float, float]] = field(
        default_factory=dict
    )  # card seconds, of these answering; from 1970
    _num_answering: int = 0
    _at: float = 0.0

    def count(self, now: float, num_servers: int | None, num_ready: int, wall: float) -> None:
        """`num_servers` None: nobody knows, so that what was paid for is taken to go on. `wall`: the same moment, seconds of 1970."""
        if self.num_cards is not None:
            took_s = max(0.0, now - self._at)
            self.card_s += self.num_cards * took_s
            add_seconds(self.by_minute, wall - took_s, wall, self.num_cards, self._num_answering)
        if num_servers is not None:
            self.num_cards = -(-num_servers // self.servers_per_card)
            self._num_answering = min(self.num_cards, -(-num_ready // self.servers_per_card))
        self._at = now

    @property
    def per_hour(self) -> float | None:
        return None if self.price_per_hour is None or self.num_cards is None else self.price_per_hour * self.num_cards

    @property
    def spent(self) -> float | None:
        return None if self.price_per_hour is None else self.price_per_hour * self.card_s / HOUR_S


def bills_of(pools: Mapping[str, PoolSettings]) -> dict[str, Bill]:
    return {name: Bill(it.price_per_hour, it.servers_per_card) for name, it in pools.items()}


@dataclass(frozen=True, slots=True)
class Result:
    """`silent`: why a gateway did not answer, by its address. `is_api_readable` None: there is no Kubernetes API here.

    `nodes`: how many each pool's pods are on; None where nobody may see that.
    """

    scaling: Scaling = field(default_factory=Scaling)
    silent: Mapping[str, str] = field(default_factory=dict)
    cold_starts: tuple[ColdStart, ...] = ()
    is_api_readable: bool | None = None
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    nodes: Mapping[str, int] | None = None


def _num_ready(scaling: Scaling, pool: str) -> int:
    return scaling.demands[pool].num_ready if scaling.demands and pool in scaling.demands else 0


class ScalerState:
    """Made inside a running event loop. `decisions`: numbers of changes by pool, direction and reason; `totals`: of all cold starts."""

    def __init__(self, pools: tuple[str, ...], bills: Mapping[str, Bill] | None = None) -> None:
        self.pools = pools
        self.bills = bills or {name: Bill() for name in pools}
        self.began = time.time()
        self.result = Result()
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        self.last_decisions: dict[str, Decision] = {}  # by pool
        self.holds_since: float | None = time.monotonic()  # since when no number is published
        self.totals = ColdStartTotals()
        self.leader: LeaderSnapshot | None = None  # None: this scaler sets no replicas
        self.note: str | None = None  # of the leader before, about bursts: a text of `bursts.note_of`
        self.has_looked = False
        self.has_published = False  # a number was known once
        self.is_over = False  # nothing more is published
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def publish(self, result: Result) -> None:
        before = {(it.pool, it.decided_at) for it in self.result.cold_starts if it.is_over}
        for it in result.cold_starts:
            if it.is_over and (it.pool, it.decided_at) not in before:
                self.totals.count(it)
        self.result = result
        self.has_looked = True
        self.has_published |= result.scaling.replicas is not None
        for pool, bill in self.bills.items():
            wanted, ready = result.scaling.replicas, _num_ready(result.scaling, pool)
            paid = None if wanted is None else max(wanted.get(pool, 0), ready)
            bill.count(result.scaling.at, paid, ready, time.time())
        if result.scaling.replicas is not None:
            self.holds_since = None
        elif self.holds_since is None:
            self.holds_since = result.scaling.at
        for change in result.scaling.changes:
            self.last_decisions[change.pool] = Decision(
                change.before, change.after, change.reason, change.sentence, time.time()
            )
            direction = "up" if change.after > change.before else "down"
            self.decisions[change.pool, direction, change.reason] += 1
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        waited, self._next = self._next, asyncio.get_running_loop().create_future()
        waited.set_result(None)

    async def next(self) -> None:
        """Returns when something is published, or nothing more will be."""
        await asyncio.shield(self._next)

    def note_of_bursts(self) -> str | None:
        """For the scaler after this one; None before the first number."""
        scaling = self.result.scaling
        return None if scaling.target is None else note_of(scaling.target.needs, time.monotonic(), time.time())

    def replicas(self, pool: str) -> int | None:
        """Of a pool, or of nodes that are kept warm; None while it is unknown or not reliable."""
        scaling = self.result.scaling
        if scaling.replicas is None:
            return None
        warm = {} if scaling.target is None else scaling.target.warm
        return scaling.replicas.get(pool, warm.get(pool))
