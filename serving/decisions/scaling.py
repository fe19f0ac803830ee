"""How many servers of each pool are wanted now, and may anybody be told so? What the scaler decides at every look.

The first pool that is always there and the first that comes and goes are weighed against each other (`demand.py`); any further pool is
wanted for the traffic that only it may answer. What is decided rests on gateways that were heard: while none is, nothing is told, and
whoever scales leaves things as they are. Rule: values in, values out; a number goes down only while every gateway is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from serving.decisions.demand import NO_DEMAND, Demand, Demands, Gateways, Total, total_of, update
from serving.decisions.fleet import Supply
from serving.decisions.prices import EQUAL_PER_HOUR
from serving.decisions.wake import (
    WAKE_RULES,
    Change,
    Pair,
    Target,
    WakeRules,
    advised,
    changes,
    load_of,
    supply_of,
    target_for,
)
from serving.scheduling.bridge import WINDOW_S
from serving.settings import PoolSettings, comes_and_goes

NO_POOL = ""  # stands in a pair for the kind of pool that is missing
NOTHING = Supply(EQUAL_PER_HOUR, 0, 0)


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """Pools that are weighed together. `is_first`: all traffic that the pools may answer is theirs, or else what nobody else may."""

    pair: Pair
    is_first: bool

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(name for name in (self.pair.steady, self.pair.coming) if name != NO_POOL)

    def demands(self, of_all: Demands) -> Demands:
        found = {name: of_all.get(name, NO_DEMAND) for name in self.pools}
        if len(found) == 2:
            return found
        [(name, demand)] = found.items()
        replicas = demand.replicas if self.is_first else demand.only_replicas
        return {NO_POOL: NO_DEMAND, name: Demand(replicas, replicas, demand.num_ready)}


def pool_groups(pools: Mapping[str, PoolSettings]) -> tuple[PoolGroup, ...]:
    supplies = {name: supply_of(name, pool) for name, pool in pools.items()}
    steady = [name for name, pool in pools.items() if not comes_and_goes(name, pool)]
    coming = [name for name in pools if name not in steady]
    first = _pair(steady[:1], coming[:1], supplies)
    rest = [_pair([name], [], supplies) for name in steady[1:]] + [_pair([], [name], supplies) for name in coming[1:]]
    return (PoolGroup(first, True), *(PoolGroup(pair, False) for pair in rest))


def unweighed(groups: Sequence[PoolGroup]) -> tuple[str, ...]:
    """Pools that come and go and are not weighed, because another comes first: wanted only for what no other pool may answer."""
    return tuple(group.pair.coming for group in groups if not group.is_first and group.pair.coming != NO_POOL)


def _pair(steady: list[str], coming: list[str], supplies: Mapping[str, Supply]) -> Pair:
    left, right = (steady or [NO_POOL])[0], (coming or [NO_POOL])[0]
    return Pair(left, right, supplies.get(left, NOTHING), supplies.get(right, NOTHING))


@dataclass(frozen=True, slots=True)
class ScalingInput:
    """What one reconciliation found. `there`: servers that the cluster was last told to run, by pool; None where that cannot be known.

    `is_there_known` False: somebody is still asking the cluster, and it is worth waiting for.
    """

    addresses: Collection[str]
    heard: Mapping[str, Demands]
    are_named: bool = True
    there: Mapping[str, int] | None = None
    is_there_known: bool = True


@dataclass(frozen=True, slots=True)
class Scaling:
    """`replicas`: what may be told, by pool; None while it may not, because of `holds`. `keeps`: why nothing goes down now."""

    at: float = -inf
    gateways: Gateways = field(default_factory=Gateways)
    groups: tuple[Target | None, ...] = ()
    replicas: Mapping[str, int] | None = None
    demands: Demands | None = None
    holds: str = "no gateway was asked yet"
    keeps: str = ""
    changes: tuple[Change, ...] = ()


def step(
    old: Scaling, now: float, snapshot: ScalingInput, groups: tuple[PoolGroup, ...], rules: WakeRules = WAKE_RULES
) -> Scaling:
    """To be asked every second or so. A clock that goes back is taken to stand still."""
    now = max(now, old.at)
    gateways = update(old.gateways, now, snapshot.addresses, snapshot.heard, snapshot.are_named)
    total = total_of(gateways, now)
    before = old.groups or (None,) * len(groups)
    holds = _holds(gateways, total, now, snapshot, is_new=not old.groups)
    if holds or total.demands is None:
        kept = tuple(None if it is None else _rested(it, now) for it in before)
        return Scaling(now, gateways, kept if old.groups else (), None, total.demands, holds, "", ())
    keeps = _keeps(total)
    after: list[Target] = []
    said: list[Change] = []
    for group, was in zip(groups, before, strict=True):
        demands = group.demands(total.demands)
        new = _began(group, now, demands, snapshot.there or {}, rules)
        if was is not None:
            new = target_for(was, now, group.pair, demands, rules)
            new = _not_lower(was, new) if keeps else new
            said += changes(was, new, group.pair, demands, rules)
        after.append(new)
    replicas = {
        name: number
        for group, it in zip(groups, after, strict=True)
        for name, number in ((group.pair.steady, it.cpu), (group.pair.coming, it.gpu))
        if name != NO_POOL
    }
    return Scaling(now, gateways, tuple(after), replicas, total.demands, "", keeps, tuple(said))


def _holds(gateways: Gateways, total: Total, now: float, snapshot: ScalingInput, is_new: bool) -> str:
    if total.demands is None:
        if not snapshot.addresses:
            return (
                "the gateways' name has no address" if snapshot.are_named else "the gateways' name cannot be looked up"
            )
        return "no gateway answers"
    since = gateways.heard_since
    if since is None or now - since < WINDOW_S:
        return f"gateways have been heard for less than {WINDOW_S:g} s"
    if is_new and not snapshot.is_there_known:
        return "what the cluster runs is not known yet"
    return ""


def _keeps(total: Total) -> str:
    if total.may_lower:
        return ""
    return f"{', '.join(total.missed)} not heard" if total.missed else "the gateways' name cannot be looked up"


def _began(group: PoolGroup, now: float, demands: Demands, there: Mapping[str, int], rules: WakeRules) -> Target:
    """What the cluster was last told, a server that is still on its way included: to be kept unless it does not pay.

    Where that cannot be known: what answers, or what pays at this demand if that is more. What was forgotten counts as done just now.
    """
    pair = group.pair
    num_ready = demands[pair.coming].num_ready
    best = advised(load_of(pair, demands), pair.supply, pair.coming_supply, num_ready, rules)
    num_cpu = there.get(pair.steady, max(demands[pair.steady].num_ready, best.num_cpu))
    num_gpu = there.get(pair.coming, max(num_ready, best.num_gpu))
    return Target(_between(pair.supply, num_cpu), _between(pair.coming_supply, num_gpu), now, gpu_since=now)


def _between(supply: Supply, number: int) -> int:
    return min(max(number, supply.min_replicas), supply.max_replicas)


def _rested(it: Target, now: float) -> Target:
    """Nobody knows what staying as it is costs meanwhile: nothing."""
    return replace(it, at=now, short_s=0.0, cpu_low_since=None)


def _not_lower(was: Target, new: Target) -> Target:
    """What goes up goes up; what would go down stays as it was and is asked again at the next look."""
    if new.gpu < was.gpu:
        new = replace(was, at=new.at, cpu=new.cpu, cpu_low_since=new.cpu_low_since)
    if new.cpu < was.cpu:
        new = replace(new, cpu=was.cpu, cpu_low_since=was.cpu_low_since)
    return new
