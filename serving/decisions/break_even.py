"""From which load on does a GPU cost less? The two meanings of break-even that Tandem has, and no third.

`break_even_rps` compares GPU servers alone with CPU servers alone, over rates that are planned: from where on the GPU is the cheaper one
for good. `break_even_load` compares fleets as they can be had, for traffic that is there: from where on one GPU more pays. Both walk along
the loads at which a number of whole servers changes, for nothing changes between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from serving.decisions.fleet import (
    ENDS,
    EPSILON,
    Load,
    Supply,
    at_end,
    cheapest,
    cheapest_alone,
    usable_rps,
)
from serving.decisions.plan.result import Objective, PricedServer
from serving.decisions.prices import is_less

MAX_EDGES = 20_000  # of whole servers that are looked at for a break-even, a fifth of a second; beyond, a bound is told
A_LITTLE = 1e-3  # of a server: more than rounding, and nothing that anybody would notice


def break_even_load(load: Load, cpu: Supply, gpu: Supply, max_load_ratio: float) -> float | None:
    """The demand, in GPU servers, from which on a GPU more than the fewest pays, were there more or less of the same traffic.

    None where it never does. The cheapest fleet changes where one more CPU server would be needed, and nowhere else.
    """
    shared = load.cpu - load.cpu_only
    if load.gpu_only > 0:
        return 0.0
    if shared <= 0 or load.gpu <= 0:
        return None
    for num_cpu in range(cpu.max_replicas + 1):
        carried = max(0.0, num_cpu * max_load_ratio - load.cpu_only)
        scale = (carried + A_LITTLE) / shared
        more = Load(shared * scale + load.cpu_only, load.gpu * scale, 0.0, load.cpu_only)
        if cheapest(more, cpu, gpu, max_load_ratio).num_gpu > gpu.min_replicas:
            return load.gpu * carried / shared
    return None


def break_even_rps(cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], objective: Objective) -> float | None:
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


def break_evens(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], objective: Objective
) -> tuple[float | None, float | None, float | None]:
    """Where the GPU is fast and the CPU slow, in the middle, and the other way round."""
    low, middle, high = (
        break_even_rps([at_end(p, a, objective) for p in cpu], [at_end(p, b, objective) for p in gpu], objective)
        for a, b in ENDS
    )
    return low, middle, high


def _slope(priced: PricedServer, objective: Objective) -> float:
    """Price an hour of one request per second, where servers are busy."""
    return priced.per_hour / usable_rps(priced, objective)


def _surely_cheaper_from(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], objective: Objective
) -> float | None:
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


def _gpu_is_cheaper(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], rate_rps: float, objective: Objective
) -> bool:
    ours, theirs = (cheapest_alone(side, rate_rps, objective) for side in (cpu, gpu))
    return ours is not None and theirs is not None and is_less(theirs.price, ours.price)
