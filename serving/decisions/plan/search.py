"""Which variant on which machines, and how many of them, carries the objective for the least money, or the least energy?

Every server that was profiled and is in time, on the machine that stands for its own: CPU servers alone, GPU servers alone, and both,
at each rate the cheapest fleet (`decisions/fleet.py`). Rule: nothing that was not measured at the objective takes part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

from serving.decisions.break_even import break_even_rps, break_evens
from serving.decisions.fleet import Fleet, carrying, cheapest_alone, curve
from serving.decisions.plan.caveats import caveats, why_not
from serving.decisions.plan.result import Objective, Plan, PoolPlan, PricedServer, Step, WhatIf
from serving.decisions.prices import HOUR_S, PriceList, exact, is_less, match, may_be_served, per_million
from serving.decisions.profile import Profile


@dataclass(frozen=True, slots=True)
class Way:
    """Servers of one kind, or of both, and the cheapest fleet of them at each rate (hours, requests per second) of the objective."""

    cpu: PricedServer | None
    gpu: PricedServer | None
    fleets: tuple[tuple[float, float, Fleet], ...]

    @property
    def per_day(self) -> Decimal:
        return sum((exact(hours) * fleet.price for hours, _, fleet in self.fleets), Decimal(0))

    @property
    def at_peak(self) -> Decimal:
        return max(fleet.price for _, _, fleet in self.fleets)

    @property
    def is_of_one(self) -> bool:
        return self.cpu is None or self.gpu is None

    @property
    def joules_per_day(self) -> float | None:
        """Of servers of one kind; of two, and where nobody measured them, None. What idle ones take is in nobody's figures."""
        only = self.gpu if self.cpu is None else self.cpu if self.gpu is None else None
        joules = None if only is None else only.server.joules_per_request
        return None if joules is None else sum(hours * HOUR_S * rate * joules for hours, rate, _ in self.fleets)

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(Step(hours, rate, it.num_cpu, it.num_gpu, it.price_per_hour) for hours, rate, it in self.fleets)


def make_plan(
    model: str,
    objective: Objective,
    profiles: Sequence[Profile],
    prices: PriceList,
    *,
    instances: Mapping[str, str] | None = None,
    gateway_per_hour: float = 0.0,
    today: str | None = None,
    published: Sequence[Profile] = (),
) -> Plan:
    """`instances`: pool -> name of the offer to price its machines by. `today` (ISO 8601) tells old prices, beside the profiles' dates.

    `published`: cards that are told as what-ifs and never planned.
    """
    known = [profile for profile in profiles if profile.model == model]
    considered = _considered(known, objective, prices, instances or {})
    cpu, gpu = (_fronts([p for p in considered if p.pool == pool]) for pool in ("cpu", "gpu"))
    by_energy = objective.minimise == "energy"
    ways = list(_ways_by_energy(considered, objective) if by_energy else _ways(cpu, gpu, objective))
    gateway = exact(gateway_per_hour)
    cap = Decimal("inf") if objective.max_price_per_hour is None else exact(objective.max_price_per_hour)
    possible = [way for way in ways if not is_less(cap, way.at_peak + gateway)]
    if by_energy:
        possible = [way for way in possible if way.joules_per_day is not None]
    best = min(possible, key=lambda way: _rank(way, objective), default=None)
    prices_at_peak = [float(way.at_peak) for way in ways]
    bindings = (
        () if best else why_not(model, objective, known, considered, prices_at_peak, gateway_per_hour, prices.currency)
    )
    break_even = break_even_rps(cpu, gpu, objective)
    reach = 2 * max(objective.peak_rps, break_even or 0.0)
    fewest = max(1, objective.min_replicas)
    return Plan(
        model=model,
        objective=objective,
        currency=prices.currency,
        pools=_pools(best),
        per_hour_at_peak=float(best.at_peak + gateway) if best else None,
        per_day=float(best.per_day + 24 * gateway) if best else None,
        break_even_rps=break_even,
        per_million=_per_million(best, cpu, gpu, objective, gateway_per_hour),
        curve=curve(cpu, gpu, objective, fewest, reach),
        considered=considered,
        bindings=bindings,
        caveats=caveats(known, _said(best, cpu, gpu, objective), objective, prices, instances or {}, today),
        steps=best.steps if best else (),
        curve_of_two=curve(cpu, gpu, objective, max(2, fewest), reach),
        gateway_per_hour=gateway_per_hour,
        joules_per_day=best.joules_per_day if best else None,
        what_ifs=_what_ifs(considered, _considered(published, objective, prices, instances or {}), objective),
    )


# -- what may take part ------------------------------------------------------------------------------------------------


def _considered(
    profiles: Sequence[Profile], objective: Objective, prices: PriceList, instances: Mapping[str, str]
) -> tuple[PricedServer, ...]:
    """The cheapest per request first."""
    found = []
    for profile in profiles:
        for server in profile.servers:
            max_rate = server.max_rate_rps(objective.latency_p99_s, objective.batch_size)
            matched = match(profile, server, prices, instances) if may_be_served(server) else None
            if max_rate is not None and max_rate.rate_rps > 0 and matched is not None:
                priced = matched.offer, matched.share, matched.per_hour, max_rate, matched.fit
                found.append(PricedServer(profile, server, *priced))
    return tuple(sorted(found, key=lambda priced: (priced.per_million(), priced.pool, priced.server.label)))


def _fronts(servers: Sequence[PricedServer]) -> list[PricedServer]:
    """Those that no other of their kind beats: as fast or faster for as much money or less."""
    by_price = sorted(servers, key=lambda p: (p.per_hour, -p.max_rate.rate_rps, -(p.server.accuracy or 0.0)))
    front: list[PricedServer] = []
    for priced in by_price:
        if not front or priced.max_rate.rate_rps > front[-1].max_rate.rate_rps:
            front.append(priced)
    return front


# -- the ways to do it -------------------------------------------------------------------------------------------------


def _ways(cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], objective: Objective) -> Iterator[Way]:
    for ours, theirs in (*product(cpu, [None]), *product([None], gpu), *product(cpu, gpu)):
        yield from _way(ours, theirs, objective)


def _ways_by_energy(servers: Sequence[PricedServer], objective: Objective) -> Iterator[Way]:
    """Of one kind of server: what a request takes is known, what idle ones beside them take is not."""
    for one in servers:
        cpu, gpu = (one if one.pool == pool else None for pool in ("cpu", "gpu"))
        yield from _way(cpu, gpu, objective)


def _way(cpu: PricedServer | None, gpu: PricedServer | None, objective: Objective) -> Iterator[Way]:
    """Nothing where some rate is more than can be had carries."""
    fleets = []
    for hours, rate_rps in objective.rates:
        fleet = carrying(cpu, gpu, rate_rps, objective)
        if fleet is None:
            return
        fleets.append((hours, rate_rps, fleet))
    yield Way(cpu, gpu, tuple(fleets))


def _rank(way: Way, objective: Objective) -> tuple[object, ...]:
    """Of equals one kind of server before two, CPUs before GPUs, and the more accurate."""
    joules = (way.joules_per_day or 0.0) if objective.minimise == "energy" else 0.0
    accuracy = sum(p.server.accuracy or 0.0 for p in (way.cpu, way.gpu) if p is not None)
    return joules, round(way.per_day, 9), not way.is_of_one, way.gpu is not None, -accuracy


def _what_ifs(
    considered: Sequence[PricedServer], published: Sequence[PricedServer], objective: Objective
) -> tuple[WhatIf, ...]:
    """Of every card that is known by published figures, whether or not it may be planned."""
    cpu = [priced for priced in considered if priced.pool == "cpu"]
    found = []
    for card in (*considered, *published):
        if card.pool != "gpu" or card.profile.provenance != "published":
            continue
        known, profile = card.max_rate, card.profile
        low, _, high = break_evens(cpu, [card], objective)
        slowest, fastest = (known.rate_rps if end is None else end for end in (known.low_rps, known.high_rps))
        named = card.server.device_name, card.offer.name, card.share, card.per_hour
        found.append(WhatIf(*named, slowest, fastest, low, high, profile.note or "", profile.date))
    never = float("inf")
    return tuple(
        sorted(
            found,
            key=lambda one: [
                never if at is None else at for at in (one.break_even_high_rps, one.break_even_low_rps, one.per_hour)
            ],
        )
    )


# -- what is said of it ------------------------------------------------------------------------------------------------


def _pools(way: Way | None) -> tuple[PoolPlan, ...]:
    """Those of which a server runs at some rate."""
    if way is None:
        return ()
    sides = (
        ("cpu", way.cpu, [it.num_cpu for _, _, it in way.fleets]),
        ("gpu", way.gpu, [it.num_gpu for _, _, it in way.fleets]),
    )
    return tuple(PoolPlan(name, one, min(n), max(n)) for name, one, n in sides if one is not None and max(n) > 0)


def _said(
    way: Way | None, cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], objective: Objective
) -> tuple[PricedServer, ...]:
    """Servers that a number of the plan stands on: those that it has, and the cheapest of each kind at the peak."""
    best = [it.priced for side in (cpu, gpu) if (it := cheapest_alone(side, objective.peak_rps, objective))]
    chosen = [one for one in (way.cpu, way.gpu) if one is not None] if way else []
    return tuple({id(one): one for one in (*chosen, *best)}.values())


def _per_million(
    way: Way | None,
    cpu: Sequence[PricedServer],
    gpu: Sequence[PricedServer],
    objective: Objective,
    gateway_per_hour: float,
) -> tuple[tuple[str, float], ...]:
    said = []
    for pool, side in (("cpu", cpu), ("gpu", gpu)):
        if best := cheapest_alone(side, objective.peak_rps, objective):
            loads = (("at its highest rate", 1.0), ("at 70 % of it", 0.7), ("at 50 % of it", 0.5))
            said += [(f"{pool} {what}", best.priced.per_million(ratio)) for what, ratio in loads]
    for step in {step.rate_rps: step for step in way.steps if step.rate_rps > 0}.values() if way else ():
        price = per_million(step.per_hour + gateway_per_hour, step.rate_rps)
        said.append((f"the plan at {step.rate_rps:g}/s", price))
    return tuple(said)
