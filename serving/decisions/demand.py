"""Sums the demand of all gateways for each pool, also when some are silent or gone.

Each publishes the demand of its own traffic alone; demands add up. When a gateway dies its clients go to the others, whose demand rises as
its own would have faded (`scheduling/bridge.Demand`). So until that is done its last word only fills up to what all of them said when all
were last heard: neither a hole nor a hump. Rule: values in, values out; what is missing never counts as nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, inf

from serving.scheduling.bridge import WINDOW_S

FRESH_S = 5.0  # a gateway is asked every second: one answer in five may be late; a guess, not measured
# Named by DNS, and silent: a node that died leaves the endpoints after 50 s (default of node-monitor-grace-period), DNS is cached for 30 s.
SILENT_S = 80.0
GONE_S = 3 * WINDOW_S  # after so long 5 % of a demand have not shown up elsewhere yet


@dataclass(frozen=True, slots=True)
class Demand:
    """Servers of one pool that the traffic it may answer would keep busy, those of them that nobody else may, and how many answer.

    `unseen_replicas` of them at most: a gateway that never saw the pool does not know what it takes there. `shared_replicas` of them by
    traffic that just several pools may answer and not all, by those pools' names (`bridge.SHARED_BY`).
    """

    replicas: float
    only_replicas: float
    num_ready: int
    unseen_replicas: float = 0.0
    shared_replicas: Mapping[str, float] = field(default_factory=dict)


Demands = Mapping[str, Demand]  # by pool


@dataclass(frozen=True, slots=True)
class Gateway:
    """`said` None: it has never answered. `read_at`: when it said that, or else when it was first named."""

    said: Demands | None
    read_at: float
    left_at: float | None = None  # when DNS named it no more

    def is_heard(self, now: float) -> bool:
        """At this very look."""
        return self.said is not None and self.left_at is None and self.read_at >= now

    def is_fresh(self, now: float) -> bool:
        return self.said is not None and self.left_at is None and now - self.read_at <= FRESH_S

    def is_missed(self, now: float) -> bool:
        """Not heard, and still to be reckoned with."""
        if self.left_at is not None:
            return now - self.left_at < GONE_S
        return not self.is_fresh(now) and now - self.read_at < SILENT_S

    def counts(self, now: float) -> bool:
        """Not given up."""
        return self.is_fresh(now) or self.is_missed(now)

    def remains(self, now: float) -> float:
        """Share of its last demand that has not had time to show up at the others."""
        if self.left_at is None:
            return 1.0
        return exp(-max(0.0, now - self.read_at) / WINDOW_S)


@dataclass(frozen=True, slots=True)
class Gateways:
    """All that are known, by address. `whole`: their sum when each was last heard at once; `heard_since`: since when some always are."""

    known: Mapping[str, Gateway] = field(default_factory=dict)
    whole: Demands = field(default_factory=dict)
    heard_since: float | None = None
    are_named: bool = False  # the names could be looked up this time


@dataclass(frozen=True, slots=True)
class Total:
    """`demands` None: nobody answers. `missed`: addresses of gateways because of which nothing may be let go."""

    demands: Demands | None
    missed: tuple[str, ...]
    may_lower: bool


def update(
    old: Gateways, now: float, addresses: Collection[str], heard: Mapping[str, Demands], are_named: bool = True
) -> Gateways:
    """To be asked at every look. `addresses`: what names mean now, or last meant if not `are_named`; `heard`: who answered."""
    known: dict[str, Gateway] = {}
    for address in addresses:
        before = old.known.get(address)
        if address in heard:
            known[address] = Gateway(heard[address], now)
        elif before is None:
            known[address] = Gateway(None, now)
        else:
            known[address] = replace(before, left_at=None)
    for address, before in old.known.items():
        if address not in known and before.said is not None:
            left = before if before.left_at is not None else replace(before, left_at=now)
            if left.is_missed(now):
                known[address] = left
    counting = [it for it in known.values() if it.counts(now)]
    is_whole = bool(counting) and all(it.is_heard(now) for it in counting)
    whole = _sum(counting, now) if is_whole else old.whole
    since = None
    if any(it.is_fresh(now) for it in known.values()):
        since = now if old.heard_since is None else old.heard_since
    return Gateways(known, whole, since, are_named)


def total_of(of: Gateways, now: float) -> Total:
    missed = tuple(sorted(address for address, it in of.known.items() if it.is_missed(now)))
    fresh = [it for it in of.known.values() if it.is_fresh(now)]
    if not fresh:
        return Total(None, missed, may_lower=False)
    heard = _sum([it for it in fresh if it.is_heard(now)], now)
    rest = [it for it in of.known.values() if it.counts(now) and not it.is_heard(now)]
    silent, servers = _sum(rest, now), _sum(fresh, now)
    demands = {}
    for pool, seen in servers.items():
        demand, more, most = heard.get(pool, NO_DEMAND), silent.get(pool, NO_DEMAND), of.whole.get(pool, ANY_DEMAND)
        demands[pool] = Demand(
            _filled(demand.replicas, more.replicas, most.replicas),
            _filled(demand.only_replicas, more.only_replicas, most.only_replicas),
            seen.num_ready,
            _filled(demand.unseen_replicas, more.unseen_replicas, most.unseen_replicas),
            _shared(demand.shared_replicas, more.shared_replicas, of.whole.get(pool)),
        )
    return Total(demands, missed, may_lower=of.are_named and not missed)


NO_DEMAND = Demand(0.0, 0.0, 0)
ANY_DEMAND = Demand(inf, inf, 0, inf)


def _filled(heard: float, missing: float, whole: float) -> float:
    return max(heard, min(heard + missing, whole))


def _shared(heard: Mapping[str, float], missing: Mapping[str, float], whole: Demand | None) -> dict[str, float]:
    return {
        names: _filled(
            heard.get(names, 0.0),
            missing.get(names, 0.0),
            inf if whole is None else whole.shared_replicas.get(names, 0.0),
        )
        for names in sorted(heard.keys() | missing.keys())
    }


def _sum(gateways: Iterable[Gateway], now: float) -> dict[str, Demand]:
    """Servers are the same for all gateways: one that has just started sees fewer of them, so the most counts."""
    total: dict[str, Demand] = {}
    for it in gateways:
        share = it.remains(now)
        for pool, said in (it.said or {}).items():
            so_far = total.get(pool, NO_DEMAND)
            shared = dict(so_far.shared_replicas)
            for names, replicas in said.shared_replicas.items():
                shared[names] = shared.get(names, 0.0) + share * replicas
            total[pool] = Demand(
                so_far.replicas + share * said.replicas,
                so_far.only_replicas + share * said.only_replicas,
                max(so_far.num_ready, said.num_ready),
                so_far.unseen_replicas + share * said.unseen_replicas,
                shared,
            )
    return total
