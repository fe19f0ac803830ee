"""What do whole servers of a kind cost at a rate, and from which rate on is the GPU the cheaper one for good?

    price an hour = max(fewest, ceil(rate / (highest rate of a server × headroom))) × price of a server

A price per million requests is that, over the requests of an hour. Rule: whole servers everywhere; where they are taken as divisible, the
name says `continuous`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from serving.decisions.plan.result import CostPoint, Objective, Priced
from serving.decisions.prices import HOUR_S

EPSILON = 1e-9  # of a server: what rounding leaves is no server more
MAX_EDGES = 20_000  # of whole servers that are looked at for a break-even, a fifth of a second; beyond, a bound is told
NUM_POINTS = 60  # of a curve: finer than a picture shows


def usable_rps(priced: Priced, objective: Objective) -> float:
    """What one server is planned with."""
    return priced.max_rate.rate_rps * objective.headroom_ratio


def replicas(priced: Priced, rate_rps: float, objective: Objective) -> int:
    needed = math.ceil(rate_rps / usable_rps(priced, objective) - EPSILON)
    return max(needed, objective.min_replicas, 1)


def per_million(per_hour: float, rate_rps: float) -> float:
    """Of requests that really come, on servers that are paid for anyway."""
    return per_hour / (HOUR_S * rate_rps) * 1e6


def cheapest(servers: Sequence[Priced], rate_rps: float, objective: Objective) -> tuple[Priced, int] | None:
    """The server of which whole ones carry the rate for the least money, and how many; of equals the first."""
    counts = ((priced, replicas(priced, rate_rps, objective)) for priced in servers if priced.max_rate.rate_rps > 0)
    return min(counts, key=lambda it: it[0].per_hour * it[1], default=None)


def cost_point(cpu: Sequence[Priced], gpu: Sequence[Priced], rate_rps: float, objective: Objective) -> CostPoint:
    sides: list[tuple[int | None, float | None]] = []
    for servers in (cpu, gpu):
        best = cheapest(servers, rate_rps, objective)
        sides.append((None, None) if best is None else (best[1], best[0].per_hour * best[1]))
    (num_cpu, cpu_price), (num_gpu, gpu_price) = sides
    return CostPoint(rate_rps, num_cpu, cpu_price, num_gpu, gpu_price)


def curve(
    cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective, min_replicas: int, max_rps: float
) -> tuple[CostPoint, ...]:
    """From nothing to `max_rps`, the objective's own rates among them."""
    fewest = replace(objective, min_replicas=min_replicas)
    rates = {max_rps * k / NUM_POINTS for k in range(NUM_POINTS + 1)} | {rate for _, rate in objective.rates}
    return tuple(cost_point(cpu, gpu, rate, fewest) for rate in sorted(rates) if rate <= max_rps)


# -- the break-even ----------------------------------------------------------------------------------------------------


def break_even_rps(cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective) -> float | None:
    """The lowest rate above which the cheapest whole GPU servers cost less than the cheapest whole CPU servers, and stay so.

    0: at any rate. None: never, or a kind is missing. Above a bound that follows from the slopes the GPU is the cheaper one; from
    there it looks down, from one change of a number of servers to the next.
    """
    cpu, gpu = ([p for p in side if p.max_rate.rate_rps > 0] for side in (cpu, gpu))
    if not cpu or not gpu:
        return None
    upper = _surely_cheaper_from(cpu, gpu, objective)
    if upper is None:
        return None
    edges = _edges_down(upper, [usable_rps(p, objective) for p in (*cpu, *gpu)])
    for _, lower in zip(range(MAX_EDGES), edges, strict=False):
        if not _gpu_is_cheaper(cpu, gpu, (lower + upper) / 2, objective):
            return upper
        upper = lower
    return upper


def continuous_break_even_rps(cpu: Priced, gpu: Priced, objective: Objective) -> float | None:
    """The same were servers divisible above their fewest: where the CPU's share of a price reaches that of the fewest GPUs."""
    cpu_price, gpu_price = _slope(cpu, objective), _slope(gpu, objective)
    fewest = max(objective.min_replicas, 1)
    if gpu_price >= cpu_price:
        return None
    return 0.0 if gpu.per_hour < cpu.per_hour else fewest * gpu.per_hour / cpu_price


def _slope(priced: Priced, objective: Objective) -> float:
    """Price an hour of one request per second, where servers are busy."""
    return priced.per_hour / usable_rps(priced, objective)


def _surely_cheaper_from(cpu: Sequence[Priced], gpu: Sequence[Priced], objective: Objective) -> float | None:
    """Whole servers cost at least their slope, and at most that and the fewest servers more."""
    slope = min(_slope(p, objective) for p in cpu)
    fewest = max(objective.min_replicas, 1)
    gaps = [(p, slope - _slope(p, objective)) for p in gpu]
    return min((fewest * p.per_hour / gap for p, gap in gaps if gap > slope * EPSILON), default=None)


def _edges_down(upper: float, steps: Sequence[float]) -> Iterator[float]:
    """Where a number of whole servers changes, below `upper`, the highest first; 0 at the end."""
    counts = [math.ceil(upper / step) - 1 for step in steps]
    while (lower := max(count * step for count, step in zip(counts, steps, strict=True))) > 0:
        yield lower
        same = lower * (1 - EPSILON)
        counts = [count - (count * step >= same) for count, step in zip(counts, steps, strict=True)]
    yield 0.0


def _gpu_is_cheaper(cpu: Sequence[Priced], gpu: Sequence[Priced], rate_rps: float, objective: Objective) -> bool:
    point = cost_point(cpu, gpu, rate_rps, objective)
    if point.cpu_per_hour is None or point.gpu_per_hour is None:
        return False
    return point.gpu_per_hour < point.cpu_per_hour * (1 - EPSILON)
