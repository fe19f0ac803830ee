"""Which servers does a known demand need? A plan for every slot of time, and the peak that always-warm servers are sized for.

Dynamic programming over slots: the first aim is that nothing is short, the second the price, cold starts included. How close to the edge
servers may be loaded comes in with the demand. What a policy wants at each moment stands at the end. Rule: what is known here beforehand
is for comparison alone; it is not proven best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil, inf, prod

import numpy as np

from serving.decisions.demand import Demands
from serving.decisions.fleet import Mix, ModelLoad, Quota, cards, cheapest_mix, whole
from serving.decisions.prices import HOUR_S
from serving.decisions.simulate.arrivals import Arrivals, num_seconds
from serving.decisions.simulate.flow import by_scaler
from serving.decisions.simulate.outcome import SLOT_S
from serving.decisions.simulate.scenario import Policy, PoolSetting, Setting
from serving.decisions.sizes import Sizes, mix_with, within
from serving.scheduling.choice import able, that_take

SHORT_PRICE = 1e6  # of an hour in which a server's work is short: more than any server
MAX_STATES = (
    64  # numbers of GPU servers that a plan weighs for each slot; of more those that are cheapest in one (a guess)
)

Work = Mapping[tuple[str, ...], tuple[float, ...]]  # pools that may answer -> servers of each that this would keep busy


def models_of(work: Work) -> list[ModelLoad]:
    return [ModelLoad(dict(zip(names, servers, strict=True))) for names, servers in work.items() if any(servers)]


def times(work: Work, ratio: float) -> Work:
    return {names: tuple(it * ratio for it in servers) for names, servers in work.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """Servers of each pool per slot of `SLOT_S`."""

    servers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def most(self, pool: str, now: float, ahead_s: float) -> int:
        """At any time from now on until so far ahead."""
        slots = self.servers[pool]
        first, end = (min(int(at / SLOT_S), len(slots) - 1) for at in (now, now + ahead_s))
        return max(slots[first : end + 1])


class Costs:
    """Seconds of one server that requests take of each pool which may answer them, by `able`, as in the gateway."""

    def __init__(self, pools: Sequence[PoolSetting], objective_s: float) -> None:
        self._pools, self._objective_s = pools, objective_s
        self._known: dict[float, tuple[tuple[str, ...], tuple[float, ...]]] = {}

    def of(self, asked: Mapping[float, int]) -> Work:
        """`asked`: rows -> requests. Those that no pool answers in time are no demand."""
        found: dict[tuple[str, ...], tuple[float, ...]] = {}
        for rows, number in asked.items():
            names, costs = self._known.get(rows) or self._add(rows)
            if names:
                before = found.get(names, (0.0,) * len(names))
                found[names] = tuple(it + cost * number for it, cost in zip(before, costs, strict=True))
        return found

    def _add(self, rows: float) -> tuple[tuple[str, ...], tuple[float, ...]]:
        may = sorted(able(that_take(self._pools, rows), rows, self._objective_s), key=lambda it: it.name)
        one = tuple(it.name for it in may), tuple(it.service.cost_s(rows) for it in may)
        self._known[rows] = one
        return one


def demands(arrivals: Arrivals, setting: Setting) -> list[Work]:
    """What each slot needs of the setting's pools."""
    costs = Costs(setting.pools, setting.objective_s)
    slots: list[dict[tuple[str, ...], list[float]]] = [{} for _ in range(int(arrivals.duration_s / SLOT_S) + 1)]
    for second in range(num_seconds(arrivals)):
        slot = slots[int(second / SLOT_S)]
        for names, seconds in costs.of(arrivals.asked(second)).items():
            servers = slot.setdefault(names, [0.0] * len(names))
            for at, it in enumerate(seconds):
                servers[at] += it / SLOT_S
    return [{names: tuple(servers) for names, servers in slot.items()} for slot in slots]


def peak(slots: Sequence[Work], setting: Setting) -> dict[str, int]:
    """The cheapest servers that carry every slot, and one at least."""
    most: dict[tuple[str, ...], tuple[float, ...]] = {}
    for slot in slots:
        for names, servers in slot.items():
            most[names] = tuple(map(max, servers, most.get(names, servers)))
    sizes = setting.sizes
    replicas = dict(cheapest_mix(models_of(most), sizes.supplies, sizes.quotas, setting.wake.max_load_ratio).replicas)
    if not any(replicas.values()):
        cheapest = min(setting.pools, key=lambda it: it.price_per_hour)
        replicas[cheapest.name] = min(1, cheapest.max_replicas)
    return replicas


def plan(slots: Sequence[Work], setting: Setting) -> Plan:
    sizes = setting.sizes
    coming, known = sorted(sizes.coming), dict[tuple[tuple[int, ...], int], Mix]()
    models = [models_of(slot) for slot in slots]
    states = _states(models, setting, coming)
    starts = np.array(
        [
            [
                sum(
                    (it := sizes.supplies[name]).price_per_hour * it.cold_start_s / HOUR_S * max(0, after - before)
                    for name, before, after in zip(coming, old, new, strict=True)
                )
                for new in states
            ]
            for old in states
        ]
    )
    costs, origins = starts[0].copy(), []
    for at, slot in enumerate(models):
        for state in states:
            known[state, at] = mix_with(
                dict(zip(coming, state, strict=True)), slot, sizes.supplies, sizes, setting.wake
            )
        through = costs[:, None] + starts
        origins.append(through.argmin(axis=0))
        mixes = [known[state, at] for state in states]
        paid = [(it.price_per_hour + SHORT_PRICE * it.short) * SLOT_S / HOUR_S for it in mixes]
        costs = through.min(axis=0) + np.array(paid)
    last, chosen = int(costs.argmin()), list[Mix]()
    for at in reversed(range(len(slots))):
        chosen.append(known[states[last], at])
        last = int(origins[at][last])
    chosen.reverse()
    return Plan({name: tuple(it.replicas[name] for it in chosen) or (0,) for name in sizes.supplies})


def _states(models: Sequence[Sequence[ModelLoad]], setting: Setting, coming: Sequence[str]) -> list[tuple[int, ...]]:
    """Numbers of servers that come and go, the fewest first: all, or those that are cheapest in some slot."""
    sizes, rules = setting.sizes, setting.wake
    ranges = [range((it := sizes.supplies[name]).min_replicas, it.max_replicas + 1) for name in coming]
    if prod(map(len, ranges)) <= MAX_STATES:
        every = ((state, dict(zip(coming, state, strict=True))) for state in product(*ranges))
        return [state for state, numbers in every if all(_allows(it, numbers, sizes) for it in sizes.quotas)]
    mixes = (cheapest_mix(it, sizes.supplies, sizes.quotas, rules.max_load_ratio) for it in models)
    fewest = tuple(it.start for it in ranges)
    return sorted({fewest, *(tuple(it.replicas[name] for name in coming) for it in mixes)})


def _allows(quota: Quota, numbers: Mapping[str, int], sizes: Sizes) -> bool:
    there = sum(cards(number, sizes.supplies[name]) for name, number in numbers.items() if name in quota.pools)
    return there <= quota.max_cards


def first_servers(slots: Sequence[Work], setting: Setting) -> dict[str, int]:
    """The fewest of pools that come and go, and of the others as many as the first minute needs."""
    first, sizes = slots[: ceil(60 / SLOT_S)], setting.sizes
    mean: dict[tuple[str, ...], tuple[float, ...]] = {}
    for slot in first:
        for names, servers in times(slot, 1 / len(first)).items():
            mean[names] = tuple(map(sum, zip(mean.get(names, (0.0,) * len(names)), servers, strict=True)))
    fewest = {it.name: it.min_replicas for it in setting.gpus}
    mix = mix_with(fewest, models_of(mean), sizes.supplies, sizes, setting.wake)
    return {
        it.name: mix.replicas[it.name] if it.first_replicas is None else within(it.supply, it.first_replicas)
        for it in setting.pools
    }


class Scaler:
    """`setting`: with the pools that the policy uses."""

    def __init__(self, policy: Policy, setting: Setting, slots: Sequence[Work], plan: Plan) -> None:
        self._policy, self._setting, self._plan, self._sizes = policy, setting, plan, setting.sizes
        self.first = self._foreseen(0.0) if policy.scaler == "oracle" else first_servers(slots, setting)
        self._by_scaler = by_scaler(self._sizes, setting.wake, self.first)
        self._last_came = -inf

    def came(self, now: float) -> None:
        self._last_came = now

    def wanted(self, now: float, demands: Demands, asked: Mapping[str, int]) -> Mapping[str, int]:
        """Servers by pool; `asked` counts those on their way, too."""
        if self._policy.scaler == "oracle":
            return self._foreseen(now)
        if self._policy.scaler == "always":
            return {name: it.min_replicas for name, it in self._sizes.supplies.items()}
        if self._policy.scaler == "demand":
            return {name: self._by_demand(now, name, demands[name].replicas, asked[name]) for name in asked}
        return self._by_scaler(now, demands)

    def _foreseen(self, now: float) -> dict[str, int]:
        """Asked for a cold start and a handover ahead, and kept while needed again within that time."""
        bridge = self._setting.bridge
        handover_s = {True: bridge.settle_s + bridge.ramp_s, False: 0.0}
        return {
            it.name: self._plan.most(it.name, now, it.cold_start.mean_s + handover_s[it.has_gpu] + SLOT_S)
            for it in self._setting.pools
        }

    def _by_demand(self, now: float, pool: str, needed: float, asked: int) -> int:
        """As many as the demand needs, at once; to none after the cool-down, and not to fewer before."""
        supply = self._sizes.supplies[pool]
        if now - self._last_came > self._setting.cooldown_s:
            return supply.min_replicas
        wanted = whole(needed / self._setting.wake.max_load_ratio)
        return min(max(1, wanted, asked), supply.max_replicas) if self._last_came > -inf else asked
