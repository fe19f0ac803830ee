"""What do whole servers of a kind alone cost at a rate, however many that takes?

    price an hour = max(fewest, ceil(rate / (highest rate of a server × headroom))) × price of a server

A price per million requests is that, over the requests of an hour. What can be had is no matter here; `fleet.py` minds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from serving.decisions.fleet import replicas
from serving.decisions.plan.result import CostPoint, Objective, PricedServer
from serving.decisions.prices import exact

NUM_POINTS = 60  # of a curve: finer than a picture shows


@dataclass(frozen=True, slots=True)
class Alone:
    """Whole servers of one kind. `price` is exact, of an hour."""

    priced: PricedServer
    num_servers: int
    price: Decimal


def cheapest_alone(servers: Sequence[PricedServer], rate_rps: float, objective: Objective) -> Alone | None:
    """Of which whole ones carry the rate for the least money; of equals the first."""
    counts = ((priced, replicas(priced, rate_rps, objective)) for priced in servers if priced.max_rate.rate_rps > 0)
    return min((Alone(p, n, exact(p.per_hour) * n) for p, n in counts), key=lambda it: it.price, default=None)


def cost_point(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], rate_rps: float, objective: Objective
) -> CostPoint:
    best = [cheapest_alone(side, rate_rps, objective) for side in (cpu, gpu)]
    ours, theirs = ((it.num_servers, float(it.price)) if it else (None, None) for it in best)
    return CostPoint(rate_rps, *ours, *theirs)


def curve(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], objective: Objective, min_replicas: int, max_rps: float
) -> tuple[CostPoint, ...]:
    """From nothing to `max_rps`, the objective's own rates among them."""
    fewest = replace(objective, min_replicas=min_replicas)
    rates = {max_rps * k / NUM_POINTS for k in range(NUM_POINTS + 1)} | {rate for _, rate in objective.rates}
    return tuple(cost_point(cpu, gpu, rate, fewest) for rate in sorted(rates) if rate <= max_rps)
