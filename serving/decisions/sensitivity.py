"""What would change the answer: other prices, rates, speeds or idle hours, one at a time and all else as it is? Pure.

`sensitivity` says what holds at given values, from whole servers of one kind alone; the fewest of each stay when nothing comes. `flips`
searches for the value at which the verdict's own comparison turns, by the middle of what was measured at the highest rate asked for.
Rule: a reading that nobody measured, and a turn beyond a hundredfold, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from serving.decisions.break_even import break_even_rps
from serving.decisions.fleet import EPSILON, cheapest_alone, choice, cost_point
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
        yield "cpu_price", ratio, _dearer(cpu, ratio), gpu
    for ratio in PRICE_RATIOS:
        yield "gpu_price", ratio, cpu, _dearer(gpu, ratio)


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


PRECISION = 1e-4  # of a number that would change the answer


@dataclass(frozen=True, slots=True)
class Flip:
    """What would change the answer, all else as it is: from `now` to `at`. `price` and `speed` are of one server."""

    what: Literal["rate", "gpu_price", "cpu_price", "gpu_speed", "idle"]
    now: float
    at: float
    to: Literal["pays", "does_not_pay"]


def flips(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], break_even_rps: float | None, objective: Objective
) -> tuple[Flip, ...]:
    """At the highest rate asked for, by the middle of what was measured."""
    at = objective.peak_rps
    now = choice(cpu, gpu, at, objective)
    if now.cpu is None or now.gpu is None:
        return ()
    pays = now.gpu_is_cheaper
    to: Literal["pays", "does_not_pay"] = "does_not_pay" if pays else "pays"
    found = []
    if break_even_rps is not None and (break_even_rps < at) == pays and break_even_rps > 0:
        found.append(Flip("rate", at, break_even_rps, to))

    def is_cheaper(cpu_price: float, gpu_price: float, gpu_speed: float) -> bool:
        ours, theirs = _dearer(cpu, cpu_price), _dearer(_faster(gpu, gpu_speed), gpu_price)
        return choice(ours, theirs, at, objective).gpu_is_cheaper

    card, processor = now.gpu.servers[0][0], now.cpu.servers[0][0]
    dearer_gpu = _turning(lambda ratio: is_cheaper(1.0, ratio, 1.0), pays, up=pays)
    dearer_cpu = _turning(lambda ratio: is_cheaper(ratio, 1.0, 1.0), pays, up=not pays)
    faster_gpu = _turning(lambda ratio: is_cheaper(1.0, 1.0, ratio), pays, up=not pays)
    if dearer_gpu is not None:
        found.append(Flip("gpu_price", card.per_hour, card.per_hour * dearer_gpu, to))
    if dearer_cpu is not None:
        found.append(Flip("cpu_price", processor.per_hour, processor.per_hour * dearer_cpu, to))
    if faster_gpu is not None:
        found.append(Flip("gpu_speed", card.max_rate.rate_rps, card.max_rate.rate_rps * faster_gpu, to))
    if pays and dearer_gpu is not None:
        found.append(Flip("idle", 0.0, 1 - 1 / dearer_gpu, to))
    return tuple(found)


def _dearer(servers: Sequence[PricedServer], ratio: float) -> list[PricedServer]:
    return [replace(p, per_hour=p.per_hour * ratio) for p in servers]


def _faster(servers: Sequence[PricedServer], ratio: float) -> list[PricedServer]:
    return [replace(p, max_rate=replace(p.max_rate, rate_rps=p.max_rate.rate_rps * ratio)) for p in servers]


def _turning(pays_at: Callable[[float], bool], now: bool, *, up: bool) -> float | None:
    """The ratio at which the answer turns, looked for within a hundredfold; None where it does not."""
    near, far = 1.0, 100.0 if up else 0.01
    if pays_at(far) == now:
        return None
    while abs(math.log(far / near)) > PRECISION:
        middle = math.sqrt(near * far)
        near, far = (middle, far) if pays_at(middle) == now else (near, middle)
    return math.sqrt(near * far)
