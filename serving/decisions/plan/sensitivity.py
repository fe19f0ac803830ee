"""What would change the answer: other prices, servers as slow or as fast as was measured, more hours without load?

One thing at a time, all else as it is. Servers of one kind against servers of the other over the day of the objective; the fewest of
each stay when nothing comes. Rule: a reading that nobody measured is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from serving.decisions.break_even import break_even_rps
from serving.decisions.cost import cheapest_alone, cost_point
from serving.decisions.fleet import EPSILON
from serving.decisions.plan.result import Objective, PricedServer

# `…_price`: `at` is the ratio to today's. `…_rate`: requests per second of the cheapest server of the kind, at an end of what was measured.
# `idle_hours`: of a day, taken from all rates alike.
What = Literal["cpu_price", "gpu_price", "cpu_rate", "gpu_rate", "idle_hours"]
PRICE_RATIOS = (0.5, 0.75, 1.25, 1.5)  # regions differ by a quarter, spot and reserved machines by half
IDLE_HOURS = (0.0, 8.0, 16.0, 22.0)  # around the clock, no nights, office hours, two hours a day


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Prices are of a day; None where a kind is missing. `cheaper` None: one is missing, or both cost the same."""

    what: What
    at: float
    cheaper: Literal["cpu", "gpu"] | None
    cpu_per_day: float | None
    gpu_per_day: float | None
    break_even_rps: float | None


def sensitivity(considered: Sequence[PricedServer], objective: Objective) -> tuple[Sensitivity, ...]:
    """`considered`: a plan's. In the order of `What`, each from its lowest to its highest value."""
    cpu, gpu = ([p for p in considered if p.pool == pool and p.max_rate.rate_rps > 0] for pool in ("cpu", "gpu"))
    return tuple(
        _answer(what, at, mine, theirs, asked)
        for changes in (_prices(cpu, gpu), _rates(cpu, gpu, objective))
        for what, at, mine, theirs, asked in ((*change, objective) for change in changes)
    ) + tuple(_answer("idle_hours", hours, cpu, gpu, with_idle(objective, hours)) for hours in IDLE_HOURS)


def with_idle(objective: Objective, idle_hours: float) -> Objective:
    """The same rates in what is left of the day. What already is without load counts."""
    busy = [(hours, rate) for hours, rate in objective.rates if rate > 0]
    if not busy:
        return objective
    scale = (24.0 - idle_hours) / sum(hours for hours, _ in busy)
    idle = ((idle_hours, 0.0),) if idle_hours > 0 else ()
    return replace(objective, rates=(*((hours * scale, rate) for hours, rate in busy), *idle))


Change = tuple[What, float, list[PricedServer], list[PricedServer]]


def _prices(cpu: list[PricedServer], gpu: list[PricedServer]) -> Iterator[Change]:
    for ratio in PRICE_RATIOS:
        yield "cpu_price", ratio, [replace(p, per_hour=p.per_hour * ratio) for p in cpu], gpu
    for ratio in PRICE_RATIOS:
        yield "gpu_price", ratio, cpu, [replace(p, per_hour=p.per_hour * ratio) for p in gpu]


def _rates(cpu: list[PricedServer], gpu: list[PricedServer], objective: Objective) -> Iterator[Change]:
    ends: tuple[Callable[[PricedServer], float | None], ...] = (
        lambda p: p.max_rate.low_rps,
        lambda p: p.max_rate.high_rps,
    )
    what: What
    for what, side in (("cpu_rate", cpu), ("gpu_rate", gpu)):
        for end in ends:
            best = cheapest_alone(side, objective.peak_rps, objective)
            at = end(best.priced) if best else None
            if at is not None and at > 0:
                other = [_at(p, end(p)) for p in side]
                yield what, at, other if what == "cpu_rate" else cpu, other if what == "gpu_rate" else gpu


def _at(priced: PricedServer, rate_rps: float | None) -> PricedServer:
    return priced if not rate_rps else replace(priced, max_rate=replace(priced.max_rate, rate_rps=rate_rps))


def _answer(
    what: What, at: float, cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], asked: Objective
) -> Sensitivity:
    points = [(hours, cost_point(cpu, gpu, rate, asked)) for hours, rate in asked.rates]
    cpu_day = sum(hours * (point.cpu_per_hour or 0.0) for hours, point in points) if cpu else None
    gpu_day = sum(hours * (point.gpu_per_hour or 0.0) for hours, point in points) if gpu else None
    cheaper: Literal["cpu", "gpu"] | None = None
    if cpu_day is not None and gpu_day is not None and abs(cpu_day - gpu_day) > EPSILON:
        cheaper = "gpu" if gpu_day < cpu_day else "cpu"
    return Sensitivity(what, at, cheaper, cpu_day, gpu_day, break_even_rps(cpu, gpu, asked))
