"""How many servers should each pool have now, and when does waking one pay? One function for any number of pools of all sizes.

All are weighed at once (`fleet.cheapest_mix`). Changing to the cheapest mix costs cold starts, so a pool is woken when staying has cost as
much: the rule for renting skis, which never pays more than twice what knowing the future would have cost. Staying costs what is paid for,
servers that are held for the next burst included, and the work that those which answer leave undone. Where the demand is more than could
ever be done it is woken after `patience_s`; what the pool's past bursts say (`bursts.py`) is heard before either. One that is not in the
cheapest mix goes when keeping it has cost as much, and only when nothing is awaited that may replace it. What does not come is replaced at
once, by the cheapest of the rest, and still asked for. Rule: flapping is bounded by not sleeping, never by not waking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Literal

from serving.decisions.break_even import break_even_load
from serving.decisions.bursts import QUIET_S, Habit, Needs, costing, habit, is_due, observe, price_of_early
from serving.decisions.cold_start import ColdStart, measured_s
from serving.decisions.demand import Demand, Demands
from serving.decisions.fleet import (
    EPSILON,
    Load,
    Mix,
    ModelLoad,
    Quota,
    Shortage,
    Supply,
    cards,
    cheapest_mix,
    obtainable,
)
from serving.decisions.prices import EQUAL_PER_HOUR, HOUR_S
from serving.settings import SCALING_RULES, GatewaySettings, PoolSettings, ScalingRules, comes_and_goes

GIVE_UP_RATIO = 2.0  # cold starts without a server more: it cannot be had; one is told as a mean; a guess, not measured
LEAST_GIVE_UP_S = (
    60.0  # the same at least, because a cold start of a node that is there says nothing of one to buy; a guess
)


@dataclass(frozen=True, slots=True)
class WarmNodes:
    """Nodes without a server, for whichever of the pools wants one next. `node_start_s`: of a cold start, that one saves."""

    pools: tuple[str, ...]
    max_nodes: int
    node_start_s: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """What can be had of each pool, which of them come and go, what several may have together, and which nodes may be kept for them."""

    supplies: Mapping[str, Supply]
    coming: frozenset[str]
    quotas: tuple[Quota, ...] = ()
    warm: Mapping[str, WarmNodes] = field(default_factory=dict)


GPU_COLD_START_S = 300.0  # a node, a driver, an image of 15 GB, a model; a guess, not measured
COLD_START_S = 40.0  # an image that is there, and a model; a guess, not measured


def sizes_of(settings: GatewaySettings) -> Sizes:
    pools = settings.pools
    coming = frozenset(name for name, pool in pools.items() if comes_and_goes(name, pool))
    return Sizes(
        {name: replace(supply_of(name, it), has_gpu=name in coming) for name, it in pools.items()},
        coming,
        tuple(Quota(frozenset(it.pools), it.max_cards) for it in settings.quotas.values()),
        {name: WarmNodes(it.pools, it.max_nodes, it.node_start_s) for name, it in settings.warm_nodes.items()},
    )


def supply_of(name: str, pool: PoolSettings) -> Supply:
    is_coming = comes_and_goes(name, pool)
    least = pool.min_replicas
    if least is None:
        least = 0 if is_coming else min(1, pool.max_replicas or 1)
    most = pool.max_replicas
    if most is None:
        most = max(least, len(pool.urls))
    cold_start_s = pool.cold_start_s
    if cold_start_s is None:
        cold_start_s = GPU_COLD_START_S if is_coming else COLD_START_S
    price = pool.price_per_hour or EQUAL_PER_HOUR
    return Supply(
        price,
        min(least, most),
        most,
        cold_start_s,
        pool.min_billing_s or 0.0,
        servers_per_card=pool.servers_per_card,
        memory_bytes=inf if pool.memory_bytes is None else pool.memory_bytes,
        consolidation_s=pool.consolidation_s or 0.0,
    )


def as_measured(sizes: Sizes, cold_starts: Sequence[ColdStart]) -> Sizes:
    """With the cold starts that were seen in the place of those that the settings say."""
    known = {name: measured_s(cold_starts, name) for name in sizes.supplies}
    if not any(known.values()):
        return sizes
    supplies = {
        name: it if (seen := known[name]) is None else replace(it, cold_start_s=seen)
        for name, it in sizes.supplies.items()
    }
    return replace(sizes, supplies=supplies)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Servers that are wanted and do not answer: since when, and how many answered then."""

    since: float
    num_ready: int


@dataclass(frozen=True, slots=True)
class FleetTarget:
    """Servers wanted now by pool, and what must be remembered until the next look, what staying as it is has cost
    (above 0: of having too few cards; below: too many), for how long the demand was more than there is, and past wakes.

    `since`: when the number of a pool that comes and goes last changed; `low_since`: since when fewer would do, of a pool that is always
    there.
    """

    replicas: Mapping[str, int]
    at: float = 0.0
    cost_of_staying: float = 0.0
    short_s: float = 0.0
    since: Mapping[str, float] = field(default_factory=dict)
    low_since: Mapping[str, float] = field(default_factory=dict)
    wakes: tuple[float, ...] = ()
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    shortages: tuple[Shortage, ...] = ()
    needs: Mapping[str, tuple[Needs, ...]] = field(default_factory=dict)
    warm: Mapping[str, int] = field(default_factory=dict)


def next_fleet(
    old: FleetTarget, now: float, demands: Demands, sizes: Sizes, rules: ScalingRules = SCALING_RULES
) -> FleetTarget:
    """To be asked every second or so."""
    waiting = _waiting(old, now, demands, sizes.coming)
    shortages = _shortages(now, waiting, sizes)
    supplies = obtainable(sizes.supplies, shortages, now)
    lacking = {it.pool for it in shortages}
    was = {name: within(supply, old.replicas[name]) for name, supply in sizes.supplies.items()}
    had = {name: within(supply, was[name]) for name, supply in supplies.items()}
    models = model_loads(demands)
    ideal = advised_mix(models, demands, was, sizes, rules)
    best = advised_mix(models, demands, had, replace(sizes, supplies=supplies), rules) if lacking else ideal
    staying = mix_with(had, models, supplies, sizes, rules)
    worth = _worth(models, supplies, rules)
    known_mixes = {tuple(had[name] for name in sorted(sizes.coming)): staying}

    def bridge_of(numbers: Mapping[str, int]) -> Mix:
        """What carries the rest beside those of them that answer."""
        there = {name: min(numbers[name], demands[name].num_ready) for name in sorted(sizes.coming)}
        key = tuple(there.values())
        if key not in known_mixes:
            known_mixes[key] = mix_with(there, models, supplies, sizes, rules)
        return known_mixes[key]

    passed_s = max(0.0, now - old.at)
    is_short = staying.short > best.short + EPSILON
    short_s = old.short_s + passed_s if is_short else max(0.0, old.short_s - passed_s)
    saved = max(0.0, staying.price_per_hour - best.price_per_hour) * passed_s / HOUR_S
    needs = observe(old.needs, now, {name: ideal.replicas[name] for name in sizes.coming}, rules.max_bursts)
    expected = {
        name: within(supplies[name], _expected(now, needs.get(name, ()), supplies[name], rules))
        for name in sizes.coming
    }
    more = [name for name in sizes.coming if best.replicas[name] > was[name]]
    enough = {name: max(best.replicas[name], ideal.replicas[name], expected[name]) for name in sizes.coming}
    fewer = [name for name in sizes.coming if cards(enough[name], it := supplies[name]) < cards(was[name], it)]
    cost, wakes = 0.0, tuple(at for at in old.wakes if at > now - HOUR_S)
    wanted = {name: was[name] for name in sizes.coming}
    ready = {name: min(was[name], demands[name].num_ready) for name in sizes.coming}
    rate = 0.0
    if any(best.replicas[name] > ready[name] for name in sizes.coming):
        rate = _rate(was, demands, staying, best, bridge_of(was), worth, sizes, rules)
        needs = _rated(needs, best, ready, rate)
    if more:
        cost = max(0.0, old.cost_of_staying) + rate * passed_s
        is_replaced = bool(lacking - {it.pool for it in old.shortages})  # what was decided cannot be had
        price = _price_of_change(more, was, best, supplies, rules)
        would = (cost > 0 and cost >= price) or (is_short and short_s >= rules.patience_s)
        woken = [
            name
            for name in more
            if is_replaced
            or (
                rate > 0
                and _has_lasted(would, now, _place(needs, name, was[name]), supplies[name], rules.patience_s, rules)
            )
        ]
        if woken:
            wanted |= {name: best.replicas[name] for name in woken}
            wakes = (*wakes, now)
    elif fewer:
        cost = min(0.0, old.cost_of_staying) - saved
        is_awaited = any(
            name not in lacking and was[name] > demands[name].num_ready for name in sizes.coming.difference(fewer)
        )
        free = [
            name for name in fewer if not (is_awaited or _is_held(name, now, old, supplies[name], rules, len(wakes)))
        ]
        price = _price_of_change(free, was, best, supplies, rules)
        saving = max(0.0, staying.price_per_hour - best.price_per_hour) / HOUR_S
        each = saving / max(1, sum(was[name] - enough[name] for name in fewer))
        for name in fewer:
            needs = _idled(needs, name, range(enough[name], was[name]), each)
        for name in free:
            kept = (
                at + 1
                for at in range(was[name] - 1, enough[name] - 1, -1)
                if _is_kept(-cost >= price, now, _place(needs, name, at), supplies[name], rules.patience_s, rules)
            )
            wanted[name] = next(kept, enough[name])
    elif next_one := _next_to_price(now, old.at, needs, was, supplies, sizes.coming):
        with_it = mix_with(
            {**{it: was[it] for it in sizes.coming}, next_one: was[next_one] + 1}, models, supplies, sizes, rules
        )
        idle = max(0.0, with_it.price_per_hour - best.price_per_hour) / HOUR_S
        needs = _idled(needs, next_one, range(was[next_one], len(needs[next_one])), idle)
    if early := [name for name in sizes.coming if expected[name] > wanted[name]]:
        wanted |= {name: expected[name] for name in early}
        wakes = (*wakes, now)
    there = {name: min(number, demands[name].num_ready) for name, number in wanted.items()}
    bridging = bridge_of(wanted).replicas
    is_handed_over = any(wanted.values()) and there == wanted
    hold_s = rules.handover_s if is_handed_over else rules.cpu_hold_s
    steady = {name: supply for name, supply in supplies.items() if name not in sizes.coming}
    needs = _steady_needs(needs, now, bridging, steady, worth, rules.max_bursts)
    holds_s = {name: min(hold_s, _pays_for_s(supply, worth[name])) for name, supply in steady.items()}
    low_since = _low_since(old, now, was, bridging, steady, holds_s)
    wanted |= {
        name: _steady(now, was[name], bridging[name], name in low_since, needs.get(name, ()), supply, rules)
        for name, supply in steady.items()
    }
    needs, warm = _warm_nodes(needs, now, ideal, wanted, sizes, rules)
    changed = [name for name in sizes.coming if wanted[name] != old.replicas[name]]
    if changed:
        cost = short_s = 0.0
    return FleetTarget(
        {name: wanted[name] for name in supplies},
        now,
        cost,
        short_s,
        {**old.since, **dict.fromkeys(changed, now)},
        low_since,
        wakes,
        waiting,
        shortages,
        needs,
        warm,
    )


WARM = "warm-"  # before the name of nodes that are kept, among pools' names


def _warm_nodes(
    needs: Mapping[str, tuple[Needs, ...]],
    now: float,
    ideal: Mix,
    wanted: Mapping[str, int],
    sizes: Sizes,
    rules: ScalingRules,
) -> tuple[Mapping[str, tuple[Needs, ...]], dict[str, int]]:
    """How many nodes to keep beyond those of the servers that are wanted: as long as the bursts of all their pools together say that it
    costs less than to start one."""
    warm = {}
    for name, it in sizes.warm.items():
        supplies = {pool: sizes.supplies[pool] for pool in it.pools}
        needed, had = (
            sum(cards(numbers[pool], supply) for pool, supply in supplies.items())
            for numbers in (ideal.replicas, wanted)
        )
        needs = observe(needs, now, {WARM + name: needed}, rules.max_bursts)
        idle = min(supply.price_per_hour for supply in supplies.values()) / HOUR_S
        rates = [need.rate for pool in it.pools for need in needs.get(pool, ()) if need.rate is not None]
        known = needs.get(WARM + name, ())[had : had + it.max_nodes]
        warm[WARM + name] = 0
        for need in known:
            if not need.is_known or need.last_at is None or not rates:
                break
            costing = replace(need, rate=max(rates), idle=idle)
            keep_s = habit(costing, 0.0, it.node_start_s, rules.change_ratio * idle * it.node_start_s).keep_s
            if keep_s <= QUIET_S or now - need.last_at >= keep_s:
                break
            warm[WARM + name] += 1
    return needs, warm


PRICED_EVERY_S = 10.0  # what a pool's next server would cost that is not needed now


def _next_to_price(
    now: float,
    before: float,
    needs: Mapping[str, tuple[Needs, ...]],
    was: Mapping[str, int],
    supplies: Mapping[str, Supply],
    coming: Iterable[str],
) -> str | None:
    """One pool after the other, of those that had bursts and could have a server more."""
    slot = int(now / PRICED_EVERY_S)
    known = [it for it in sorted(coming) if len(needs.get(it, ())) > was[it] and was[it] < supplies[it].max_replicas]
    return known[slot % len(known)] if known and slot != int(before / PRICED_EVERY_S) else None


def _rate(
    was: Mapping[str, int],
    demands: Demands,
    staying: Mix,
    best: Mix,
    bridge: Mix,
    worth: Mapping[str, float],
    sizes: Sizes,
    rules: ScalingRules,
) -> float:
    """What a second costs more than it would with the best mix: of servers that are paid for, and of what those that answer leave undone.

    What nobody could do, however long it is waited for, counts as a server's work at least, as the mixes have it. `bridge`: what would
    carry the rest beside the servers that answer.
    """
    supplies = sizes.supplies
    paid = sum(cards(number, supplies[name]) * supplies[name].price_per_hour for name, number in was.items())
    charge = max(it.price_per_hour for it in supplies.values()) * rules.undone_ratio / HOUR_S
    late = sum(
        worth[name] * max(0, bridge.replicas[name] - demands[name].num_ready)
        for name in supplies
        if name not in sizes.coming
    )
    undone = max(0.0, bridge.undone - best.undone) * charge + late
    never = max(0.0, staying.price_per_hour - best.price_per_hour) / HOUR_S
    never += max(0.0, staying.short - best.short) * charge
    return max(never, (paid - best.price_per_hour) / HOUR_S + undone)


def _rated(
    needs: Mapping[str, tuple[Needs, ...]], best: Mix, ready: Mapping[str, int], rate: float
) -> Mapping[str, tuple[Needs, ...]]:
    """With what each server that is missing costs a second, of those that would come or are on their way."""
    missing = {
        name: range(it, best.replicas[name]) for name, it in ready.items() if name in needs and best.replicas[name] > it
    }
    each, found = rate / max(1, sum(map(len, missing.values()))), dict(needs)
    for name, places in missing.items():
        found[name] = tuple(costing(it, each) if at in places else it for at, it in enumerate(needs[name]))
    return found


def _habit(need: Needs, supply: Supply, least_s: float, rules: ScalingRules) -> Habit:
    price = _price_of_one(supply, rules)
    return habit(need, least_s, supply.cold_start_s, price, price_of_early(need, price))


def _price_of_one(supply: Supply, rules: ScalingRules) -> float:
    """Of waking one server and of the time that it must stay beyond the least that any is kept."""
    billed_s = supply.cold_start_s + supply.consolidation_s
    stays_s = max(0.0, max(rules.hold_s, supply.min_billing_s) - QUIET_S)
    return supply.price_per_hour / HOUR_S * (rules.change_ratio * billed_s + stays_s)


def _has_lasted(would: bool, now: float, need: Needs, supply: Supply, least_s: float, rules: ScalingRules) -> bool:
    """Whether to wake it now. `would`: by prices and patience alone, which count until two bursts were seen, and beyond all that were."""
    if not need.is_known or need.rate is None or need.since is None:
        return would
    wait = _habit(need, supply, least_s, rules).wait_s
    return now - need.since >= wait and (would or any(length > wait for length in need.lengths))


def _is_kept(would_go: bool, now: float, need: Needs, supply: Supply, least_s: float, rules: ScalingRules) -> bool:
    """Whether to keep it for the next burst. `would_go`: by prices alone, which count until two bursts were seen."""
    if not need.is_known or need.rate is None or need.last_at is None:
        return not would_go
    return now - need.last_at < _habit(need, supply, least_s, rules).keep_s


def _expected(now: float, known: Sequence[Needs], supply: Supply, rules: ScalingRules) -> int:
    """Servers that the next burst needs, if it is due before they could come."""
    price, found = _price_of_one(supply, rules), 0
    for at, need in enumerate(known):
        if need.is_on(now):
            continue
        if not need.is_known or not is_due(need, now, supply.cold_start_s):
            break
        if price_of_early(need, price) >= _habit(need, supply, rules.patience_s, rules).cold:
            break
        found = at + 1
    return found


def _idled(
    needs: Mapping[str, tuple[Needs, ...]], name: str, places: range, idle: float
) -> Mapping[str, tuple[Needs, ...]]:
    """With what it costs to have these servers while they are not needed."""
    known = needs.get(name, ())
    return {**needs, name: tuple(replace(it, idle=idle) if at in places else it for at, it in enumerate(known))}


def _place(needs: Mapping[str, tuple[Needs, ...]], name: str, at: int) -> Needs:
    return _at(needs.get(name, ()), at)


def _at(known: Sequence[Needs], at: int) -> Needs:
    return known[at] if at < len(known) else Needs()


def _worth(models: Sequence[ModelLoad], supplies: Mapping[str, Supply], rules: ScalingRules) -> dict[str, float]:
    """What a second of a server's work costs that is not done, by pool: a slow server's is less than that of one which does more."""
    charge = max(it.price_per_hour for it in supplies.values()) * rules.undone_ratio / HOUR_S
    found = {}
    for name in supplies:
        here = [it.servers for it in models if name in it.servers]
        work = sum(it[name] for it in here)
        found[name] = charge * (sum(min(it.values()) for it in here) / work if work > 0 else 1.0)
    return found


def _steady_needs(
    needs: Mapping[str, tuple[Needs, ...]],
    now: float,
    needed: Mapping[str, int],
    steady: Mapping[str, Supply],
    worth: Mapping[str, float],
    max_bursts: int,
) -> Mapping[str, tuple[Needs, ...]]:
    found = dict(observe(needs, now, {name: needed[name] for name in steady}, max_bursts))
    for name, supply in steady.items():
        idle = supply.price_per_hour / HOUR_S
        found[name] = tuple(
            it if (it.rate, it.idle) == (worth[name], idle) else replace(it, rate=worth[name], idle=idle)
            for it in found.get(name, ())
        )
    return found


def _steady(
    now: float, was: int, needed: int, is_held: bool, known: Sequence[Needs], supply: Supply, rules: ScalingRules
) -> int:
    """Of a pool that is always there: as many as are needed, once bursts lasted as long as pays, and as long as prices or bursts say."""
    if needed >= was:
        early = (at for at in range(was, needed) if not _has_lasted(True, now, _at(known, at), supply, 0.0, rules))
        needed = next(early, needed)
    else:
        kept = (
            at + 1
            for at in range(was - 1, needed - 1, -1)
            if (_is_kept(not is_held, now, known[at], supply, 0.0, rules) if at < len(known) else is_held)
        )
        needed = next(kept, needed)
    return max(needed, within(supply, _expected(now, known, supply, rules)))


def _pays_for_s(supply: Supply, worth: float) -> float:
    """How long to have a server costs no more than to miss it for a cold start."""
    price = supply.price_per_hour / HOUR_S
    return supply.cold_start_s * (1 + worth / price) if price > 0 else inf


def _low_since(
    old: FleetTarget,
    now: float,
    was: Mapping[str, int],
    needed: Mapping[str, int],
    steady: Mapping[str, Supply],
    holds_s: Mapping[str, float],
) -> dict[str, float]:
    """Pools that are always there and keep their servers, though fewer would do: since when."""
    low = {name: old.low_since.get(name, now) for name in steady if needed[name] < was[name]}
    return {name: since for name, since in low.items() if now - since < max(holds_s[name], steady[name].min_billing_s)}


def not_lower(was: FleetTarget, new: FleetTarget) -> FleetTarget:
    """What goes up goes up; what would go down stays as it was and is asked again at the next look."""
    kept = {name for name, number in new.replicas.items() if number < was.replicas[name]}
    if not kept:
        return new
    return replace(
        new,
        replicas={name: was.replicas[name] if name in kept else number for name, number in new.replicas.items()},
        cost_of_staying=was.cost_of_staying,
        since={**new.since, **{name: was.since[name] for name in kept if name in was.since}},
        low_since={**new.low_since, **{name: was.low_since[name] for name in kept if name in was.low_since}},
    )


def within(supply: Supply, number: int) -> int:
    return min(max(number, supply.min_replicas), supply.max_replicas)


def model_loads(demands: Demands) -> list[ModelLoad]:
    """One for each set of pools that some traffic may go to: one alone, several, or all of them."""
    shared: dict[str, dict[str, float]] = {}
    for_all: dict[str, float] = {}
    for name, demand in demands.items():
        for names, servers in demand.shared_replicas.items():
            shared.setdefault(names, {})[name] = servers
        for_all[name] = demand.replicas - demand.only_replicas - sum(demand.shared_replicas.values())
    sets = [for_all, *shared.values()]
    sets += [{name: demand.only_replicas} for name, demand in demands.items()]
    loads = [{name: servers for name, servers in each.items() if servers > EPSILON} for each in sets]
    return [ModelLoad(each) for each in loads if each]


def advised_mix(
    models: Sequence[ModelLoad], demands: Demands, was: Mapping[str, int], sizes: Sizes, rules: ScalingRules
) -> Mix:
    """The cheapest mix; of a pool that nobody has seen one server, or as many as are needed for sure.

    One of it is also had where it would save money if it took all of which nobody knows: by the upper bound it never would, and nobody
    would ever find out. It goes again when it is known and does not.
    """
    unseen = [name for name in sizes.supplies if name in sizes.coming and demands[name].unseen_replicas > 0]

    quotas = _allowing(sizes.supplies, sizes.quotas)

    def cheapest(of: Sequence[ModelLoad], supplies: Mapping[str, Supply]) -> Mix:
        return cheapest_mix(of, supplies, quotas, rules.max_load_ratio)

    if not unseen:
        return cheapest(models, sizes.supplies)
    known = model_loads({name: _known(demand) if name in unseen else demand for name, demand in demands.items()})
    for_sure = cheapest(known, sizes.supplies).replicas
    careful = dict(sizes.supplies)
    for name in unseen:
        supply = careful[name]
        most = max(1, was[name], supply.min_replicas, for_sure[name])
        careful[name] = replace(supply, max_replicas=min(most, supply.max_replicas))
    mixes = [cheapest(models, careful)]
    for name in unseen:
        if mixes[0].replicas[name] == 0 and careful[name].max_replicas > 0:
            tried = {**careful, name: replace(careful[name], min_replicas=1, max_replicas=1)}
            hoped = model_loads({other: _known(it) if other == name else it for other, it in demands.items()})
            if _allowing(tried, quotas) == quotas:
                mixes.append(cheapest(hoped, tried))
    return min(mixes, key=lambda mix: (round(mix.short, 6), mix.price))


def _known(demand: Demand) -> Demand:
    """As if what nobody knows took next to nothing: it is of all pools first, then of some."""
    for_all = demand.replicas - demand.only_replicas - sum(demand.shared_replicas.values())
    left, shared = demand.unseen_replicas, {}
    parts = {"": for_all, **demand.shared_replicas}
    for names, servers in parts.items():
        shared[names] = servers if servers <= EPSILON else max(NEXT_TO_NOTHING, servers - max(0.0, left))
        left -= max(0.0, servers)
    replicas = demand.only_replicas + sum(shared.values())
    del shared[""]
    return replace(demand, replicas=replicas, shared_replicas=shared, unseen_replicas=0.0)


NEXT_TO_NOTHING = 1e-6  # of a server: it runs there, so it is not nothing


def mix_with(
    coming: Mapping[str, int],
    models: Sequence[ModelLoad],
    supplies: Mapping[str, Supply],
    sizes: Sizes,
    rules: ScalingRules,
) -> Mix:
    """So many servers of the pools that come and go, and of the others as many as carry the rest for the least money."""
    fixed = {
        name: _exactly(supply, coming[name]) if name in sizes.coming else supply for name, supply in supplies.items()
    }
    return cheapest_mix(models, fixed, _allowing(fixed, sizes.quotas), rules.max_load_ratio)


@lru_cache(maxsize=256)  # a look asks for the same few numbers as the one before
def _exactly(supply: Supply, num_servers: int) -> Supply:
    return replace(supply, min_replicas=num_servers, max_replicas=num_servers)


def _allowing(supplies: Mapping[str, Supply], quotas: Iterable[Quota]) -> tuple[Quota, ...]:
    """Quotas that allow what is there: what somebody else has asked for is no error here."""
    there = [
        sum(cards(it.min_replicas, it) for name, it in supplies.items() if name in quota.pools) for quota in quotas
    ]
    return tuple(replace(it, max_cards=max(it.max_cards, few)) for it, few in zip(quotas, there, strict=True))


def _price_of_change(
    names: Iterable[str],
    was: Mapping[str, int],
    best: Mix,
    supplies: Mapping[str, Supply],
    rules: ScalingRules,
) -> float:
    """Of as many cards, while they start and after their last server has gone."""
    return rules.change_ratio * sum(
        (it := supplies[name]).price_per_hour
        * (it.cold_start_s + it.consolidation_s)
        / HOUR_S
        * abs(cards(best.replicas[name], it) - cards(was[name], it))
        for name in names
    )


def _is_held(name: str, now: float, old: FleetTarget, supply: Supply, rules: ScalingRules, num_wakes: int) -> bool:
    """Whether a pool may not have fewer servers now, though it would be cheaper."""
    is_young = now - old.since.get(name, -inf) < max(rules.hold_s, supply.min_billing_s)
    return is_young or num_wakes >= rules.max_wakes_per_hour


def _waiting(old: FleetTarget, now: float, demands: Demands, coming: Iterable[str]) -> dict[str, Waiting]:
    """A server more than before that answers, and the waiting begins anew."""
    found = {}
    for name in coming:
        before, num_ready = old.waiting.get(name), demands[name].num_ready
        if old.replicas[name] > num_ready:
            has_begun = before is None or num_ready > before.num_ready or old.since.get(name, -inf) > before.since
            found[name] = Waiting(now, num_ready) if before is None or has_begun else before
    return found


def _shortages(now: float, waiting: Mapping[str, Waiting], sizes: Sizes) -> tuple[Shortage, ...]:
    """As long as it is waited for and nothing comes. It is still asked for: when it comes, it can be had."""
    return tuple(
        Shortage(name, now, it.num_ready)
        for name, it in sorted(waiting.items())
        if now - it.since >= max(LEAST_GIVE_UP_S, GIVE_UP_RATIO * sizes.supplies[name].cold_start_s)
    )


Reason = Literal["short", "pays", "might_pay", "does_not_pay", "idle", "replaces"]


@dataclass(frozen=True, slots=True)
class Change:
    """Another number of servers is wanted of a pool. `reason`: what it went by, in a word."""

    pool: str
    before: int
    after: int
    reason: Reason
    sentence: str


def fleet_changes(
    old: FleetTarget, new: FleetTarget, demands: Demands, sizes: Sizes, rules: ScalingRules = SCALING_RULES
) -> list[Change]:
    """One for each pool of which another number is wanted."""
    changed = [name for name, number in new.replicas.items() if number != old.replicas[name]]
    if not changed:
        return []
    models, lacking = model_loads(demands), [it.pool for it in new.shortages]
    is_short = mix_with(old.replicas, models, sizes.supplies, sizes, rules).short > EPSILON
    quotas = _allowing(sizes.supplies, sizes.quotas)
    by_upper_bounds = cheapest_mix(models, sizes.supplies, quotas, rules.max_load_ratio).replicas
    found = []
    for name in changed:
        before, after = old.replicas[name], new.replicas[name]
        reason: Reason = "does_not_pay"
        if name not in sizes.coming:
            reason = "short" if after > before else "idle"
        elif after > before and lacking:
            reason = "replaces"
        elif after > before and not is_short:
            reason = "might_pay" if by_upper_bounds[name] < after else "pays"
        elif after > before:
            reason = "short"
        found.append(
            Change(name, before, after, reason, _sentence(name, after, reason, demands, sizes, lacking, rules))
        )
    return found


def _sentence(
    name: str, after: int, reason: Reason, demands: Demands, sizes: Sizes, lacking: Sequence[str], rules: ScalingRules
) -> str:
    told, demand = f"{name}: {_counted(after)}", f"demand {demands[name].replicas:.2g} servers"
    if name not in sizes.coming:
        return f"{told} would do ({demand})"
    if reason == "might_pay":
        return f"{told} might pay, which shows when it is there ({demand} at most)"
    if reason == "replaces":
        return f"{told} would pay while no more of {', '.join(lacking)} can be had ({demand})"
    return f"{told} would pay ({demand}{_break_even(name, demands, sizes, rules)})"


def _break_even(name: str, demands: Demands, sizes: Sizes, rules: ScalingRules) -> str:
    """Of one pool of each kind; between more there are as many as there are mixes."""
    steady = [other for other in sizes.supplies if other not in sizes.coming]
    if len(steady) != 1 or len(sizes.coming) != 1:
        return ""
    ours, theirs = demands[steady[0]], demands[name]
    load = Load(ours.replicas, theirs.replicas, theirs.only_replicas, ours.only_replicas)
    pays_from = break_even_load(load, sizes.supplies[steady[0]], sizes.supplies[name], rules.max_load_ratio)
    return "" if pays_from is None else f", break-even {pays_from:.2g}"


def _counted(number: int) -> str:
    return "no server" if number == 0 else f"{number} server" if number == 1 else f"{number} servers"
