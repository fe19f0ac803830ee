"""Which variant on which machines, and how many of them, carries the objective for the least money, or the least energy?

Every server that was profiled and is in time, on the machine that stands for its own: CPU servers alone, GPU servers alone, and both,
where at each rate the cheaper mix runs (`decisions/wake.py`'s, as the gateway decides it). Rule: servers are whole, each at most as busy
as the headroom allows; nothing that was not measured at the objective takes part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from serving.decisions import cost
from serving.decisions.plan.bindings import why_not
from serving.decisions.plan.caveats import caveats
from serving.decisions.plan.matching import match, may_be_served
from serving.decisions.plan.result import Objective, Plan, PoolPlan, Priced, Step
from serving.decisions.prices import HOUR_S, PriceList
from serving.decisions.profile import Profile
from serving.decisions.wake import EPSILON, Needed, Supply, WakeRules
from serving.decisions.wake import cheapest as cheapest_mix

# Servers of a kind at one rate beyond which a mix is not looked for: it could save less than one of so many. A guess.
MAX_MIXED = 2000


@dataclass(frozen=True, slots=True)
class Way:
    """Servers of one kind, or of both, over all rates of the objective."""

    cpu: Priced | None
    gpu: Priced | None
    steps: tuple[Step, ...]

    @property
    def per_day(self) -> float:
        return sum(step.hours * step.per_hour for step in self.steps)

    @property
    def at_peak(self) -> float:
        return max(step.per_hour for step in self.steps)

    @property
    def joules_per_day(self) -> float | None:
        """Of servers of one kind. What idle ones take is in nobody's figures."""
        (only,) = [it for it in (self.cpu, self.gpu) if it is not None]
        joules = only.server.joules_per_request
        if joules is None:
            return None
        return sum(step.hours * HOUR_S * step.rate_rps * joules for step in self.steps)


def make_plan(
    model: str,
    objective: Objective,
    profiles: Sequence[Profile],
    prices: PriceList,
    *,
    instances: Mapping[str, str] | None = None,
    gateway_per_hour: float = 0.0,
    today: str | None = None,
) -> Plan:
    """`instances`: pool -> name of the offer to price its machines by. `today` (ISO 8601) tells old prices, beside the profiles' dates."""
    known = [profile for profile in profiles if profile.model == model]
    considered = _considered(known, objective, prices, instances or {})
    cpu, gpu = (_fronts([p for p in considered if p.pool == pool]) for pool in ("cpu", "gpu"))
    ways = list(
        _ways_by_energy(considered, objective) if objective.minimise == "energy" else _ways(cpu, gpu, objective)
    )
    cap = math.inf if objective.max_price_per_hour is None else objective.max_price_per_hour
    possible = [way for way in ways if way.at_peak + gateway_per_hour <= cap * (1 + EPSILON)]
    if objective.minimise == "energy":
        possible = [way for way in possible if way.joules_per_day is not None]
    best = min(possible, key=lambda way: _rank(way, objective), default=None)
    bindings = (
        ()
        if best
        else why_not(model, objective, known, considered, [w.at_peak for w in ways], gateway_per_hour, prices.currency)
    )
    break_even = cost.break_even_rps(cpu, gpu, objective)
    reach = 2 * max(objective.peak_rps, break_even or 0.0)
    fewest = max(1, objective.min_replicas)
    return Plan(
        model=model,
        objective=objective,
        currency=prices.currency,
        pools=_pools(best),
        per_hour_at_peak=best.at_peak + gateway_per_hour if best else None,
        per_day=best.per_day + 24 * gateway_per_hour if best else None,
        break_even_rps=break_even,
        per_million=_per_million(best, cpu, gpu, objective, gateway_per_hour),
        curve=cost.curve(cpu, gpu, objective, fewest, reach),
        considered=considered,
        bindings=bindings,
        caveats=caveats(known, _said(best, cpu, gpu, objective), objective, prices, instances or {}, today),
        steps=best.steps if best else (),
        curve_of_two=cost.curve(cpu, gpu, objective, max(2, fewest), reach),
        gateway_per_hour=gateway_per_hour,
        joules_per_day=best.joules_per_day if best and _is_of_one(best) else None,
    )


# -- what may take part ------------------------------------------------------------------------------------------------


def _considered(
    profiles: Sequence[Profile], objective: Objective, prices: PriceList, instances: Mapping[str, str]
) -> tuple[Priced, ...]:
    """The cheapest per request first."""
    found = []
    for profile in profiles:
        for server in profile.servers:
            max_rate = server.max_rate_rps(objective.latency_p99_s, objective.batch_size)
            matched = match(profile, server, prices, instances) if may_be_served(server) else None
            if max_rate is not None and max_rate.rate_rps > 0 and matched is not None:
                found.append(Priced(profile, server, matched.offer, matched.share, matched.per_hour, max_rate))
    return tuple(sorted(found, key=lambda priced: (priced.per_million(), priced.pool, priced.server.label)))


def _fronts(servers: Sequence[Priced]) -> list[Priced]:
    """Those that no other of their kind beats: as fast or faster for as much money or less."""
    by_price = sorted(servers, key=lambda p: (p.per_hour, -p.max_rate.rate_rps, -(p.server.accuracy or 0.0)))
    front: list[Priced] = []
    for priced in by_price:
        if not front or priced.max_rate.rate_rps > front[-1].max_rate.rate_rps:
            front.append(priced)
    return front


# -- the ways to do it -------------------------------------------------------------------------------------------------


def _ways(cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective) -> Iterator[Way]:
    for one in cpu:
        yield from _whole(one, None, [_alone(one, None, *rate, objective) for rate in objective.rates])
    for one in gpu:
        yield from _whole(None, one, [_alone(None, one, *rate, objective) for rate in objective.rates])
    for base in cpu:
        for peak in gpu:
            yield from _whole(base, peak, [_together(base, peak, *rate, objective) for rate in objective.rates])


def _ways_by_energy(servers: Sequence[Priced], objective: Objective) -> Iterator[Way]:
    """Of one kind of server: what a request takes is known, what idle ones beside them take is not."""
    for one in servers:
        cpu, gpu = (one if one.pool == pool else None for pool in ("cpu", "gpu"))
        yield from _whole(cpu, gpu, [_alone(cpu, gpu, *rate, objective) for rate in objective.rates])


def _whole(cpu: Priced | None, gpu: Priced | None, steps: Sequence[Step | None]) -> Iterator[Way]:
    """Nothing where some rate is more than can be had carries."""
    there = tuple(step for step in steps if step is not None)
    if len(there) == len(steps):
        yield Way(cpu, gpu, there)


def _alone(cpu: Priced | None, gpu: Priced | None, hours: float, rate_rps: float, objective: Objective) -> Step | None:
    one = cpu or gpu
    assert one is not None
    count = cost.replicas(one, rate_rps, objective)
    if objective.max_replicas is not None and count > objective.max_replicas:
        return None
    return Step(hours, rate_rps, count if cpu else 0, 0 if cpu else count, count * one.per_hour)


def _together(cpu: Priced, gpu: Priced, hours: float, rate_rps: float, objective: Objective) -> Step | None:
    """The CPU pool is always there; GPUs come where they make it cheaper."""
    needed = Needed(rate_rps / cpu.max_rate.rate_rps, rate_rps / gpu.max_rate.rate_rps)
    rules = WakeRules(max_load_ratio=objective.headroom_ratio)
    fewest = max(1, objective.min_replicas)
    supplies = _supply(cpu, rate_rps, fewest, objective), _supply(gpu, rate_rps, 0, objective)
    if max(supply.max_replicas for supply in supplies) > MAX_MIXED:
        return None
    mix = cheapest_mix(needed, *supplies, rules)
    if mix.short > 1e-6:  # what wake.cheapest takes for nothing
        return None
    return Step(hours, rate_rps, mix.num_cpu, mix.num_gpu, mix.price_per_hour)


def _supply(priced: Priced, rate_rps: float, fewest: int, objective: Objective) -> Supply:
    most = cost.replicas(priced, rate_rps, objective)
    if objective.max_replicas is not None:
        most = min(most, objective.max_replicas)
    return Supply(priced.per_hour, min(fewest, most), most)


def _is_of_one(way: Way) -> bool:
    return way.cpu is None or way.gpu is None


def _rank(way: Way, objective: Objective) -> tuple[object, ...]:
    """Of equals one kind of server before two, CPUs before GPUs, and the more accurate."""
    joules = (way.joules_per_day or 0.0) if objective.minimise == "energy" else 0.0
    accuracy = sum(p.server.accuracy or 0.0 for p in (way.cpu, way.gpu) if p is not None)
    return joules, round(way.per_day, 9), not _is_of_one(way), way.gpu is not None, -accuracy


# -- what is said of it ------------------------------------------------------------------------------------------------


def _pools(way: Way | None) -> tuple[PoolPlan, ...]:
    """Those of which a server runs at some rate."""
    if way is None:
        return ()
    sides = (("cpu", way.cpu, [s.num_cpu for s in way.steps]), ("gpu", way.gpu, [s.num_gpu for s in way.steps]))
    return tuple(PoolPlan(name, one, min(n), max(n)) for name, one, n in sides if one is not None and max(n) > 0)


def _said(way: Way | None, cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective) -> tuple[Priced, ...]:
    """Servers that a number of the plan stands on: those that it has, and the cheapest of each kind at the peak."""
    best = [it[0] for side in (cpu, gpu) if (it := cost.cheapest(side, objective.peak_rps, objective))]
    chosen = [one for one in (way.cpu, way.gpu) if one is not None] if way else []
    return tuple({id(one): one for one in (*chosen, *best)}.values())


def _per_million(
    way: Way | None, cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective, gateway_per_hour: float
) -> tuple[tuple[str, float], ...]:
    said = []
    for pool, side in (("cpu", cpu), ("gpu", gpu)):
        if best := cost.cheapest(side, objective.peak_rps, objective):
            loads = (("at its highest rate", 1.0), ("at 70 % of it", 0.7), ("at 50 % of it", 0.5))
            said += [(f"{pool} {what}", best[0].per_million(ratio)) for what, ratio in loads]
    for step in {step.rate_rps: step for step in way.steps if step.rate_rps > 0}.values() if way else ():
        price = cost.per_million(step.per_hour + gateway_per_hour, step.rate_rps)
        said.append((f"the plan at {step.rate_rps:g}/s", price))
    return tuple(said)
