"""What is the cheapest fleet without a GPU, and the cheapest with one, at a rate, by each reading of what was measured? Pure.

Beside GPUs stand CPU servers where that is cheaper. Rule: servers are whole, and a side's cost is told at both ends of what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from serving.decisions import cost
from serving.decisions.plan.result import Objective, Priced

End = Literal["low", "middle", "high"]  # of what was measured of a server's rate
# What was measured of CPUs and of GPUs: where the GPU looks best, in the middle, and where it looks worst.
ENDS: tuple[tuple[End, End], ...] = (("low", "high"), ("middle", "middle"), ("high", "low"))

SPEEDS: tuple[End, ...] = ("low", "middle", "high")

MOST_MIXED = 25  # GPUs of a mix that are tried from either end: between, a mix costs what its slopes say


@dataclass(frozen=True, slots=True)
class Fleet:
    """Whole servers that carry a rate."""

    per_hour: float
    servers: tuple[tuple[Priced, int], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest without a GPU and the cheapest with one, by one reading of what was measured; None where there is none."""

    cpu: Fleet | None
    gpu: Fleet | None

    @property
    def gpu_is_cheaper(self) -> bool:
        return self.gpu is not None and (self.cpu is None or self.gpu.per_hour < self.cpu.per_hour * (1 - cost.EPSILON))


def at_end(priced: Priced, end: End, objective: Objective) -> Priced:
    """As if its rate were that end of what was measured."""
    measured = priced.max_rate
    if end == "high" and (measured.is_bounded_by_generator or is_stricter(priced, objective)):
        value: float | None = math.inf  # nobody has seen its limit
    else:
        value = {"low": measured.low_rps, "middle": measured.rate_rps, "high": measured.high_rps}[end]
    return priced if value is None else replace(priced, max_rate=replace(measured, rate_rps=value))


def is_stricter(priced: Priced, objective: Objective) -> bool:
    """Whether its rate was measured for a shorter time than is asked for, so that it carries at least that."""
    return priced.max_rate.objective_s < objective.latency_p99_s * (1 - cost.EPSILON)


def choices(
    cpu: Sequence[Priced], gpu: Sequence[Priced], rate_rps: float, objective: Objective
) -> tuple[Choice, Choice, Choice]:
    """At the GPU's best, in the middle, and at its worst: nothing within what was measured is beyond the first or the last.

    A CPU server stands in both sides, alone and beside GPUs, and a faster one makes both cheaper, by whole servers: so that either end
    has the dearest of one side against the cheapest of the other.
    """
    slow, middle, fast = (
        choice([at_end(p, end, objective) for p in cpu], [at_end(p, end, objective) for p in gpu], rate_rps, objective)
        for end in SPEEDS
    )
    return Choice(slow.cpu, fast.gpu), middle, Choice(fast.cpu, slow.gpu)


def choice(cpu: Sequence[Priced], gpu: Sequence[Priced], rate_rps: float, objective: Objective) -> Choice:
    alone = [_alone(side, rate_rps, objective) for side in (cpu, gpu)]
    mixed = [fleet for base in cpu for peak in gpu if (fleet := _mixed(base, peak, rate_rps, objective)) is not None]
    with_gpu = [fleet for fleet in (alone[1], *mixed) if fleet is not None]
    return Choice(alone[0], min(with_gpu, key=lambda fleet: fleet.per_hour, default=None))


def _alone(servers: Sequence[Priced], rate_rps: float, objective: Objective) -> Fleet | None:
    most = math.inf if objective.max_replicas is None else objective.max_replicas
    enough = [p for p in servers if p.max_rate.rate_rps > 0 and cost.replicas(p, rate_rps, objective) <= most]
    found = cost.cheapest(enough, rate_rps, objective)
    return None if found is None else Fleet(found[0].per_hour * found[1], (found,))


def _mixed(cpu: Priced, gpu: Priced, rate_rps: float, objective: Objective) -> Fleet | None:
    """Some GPUs, and the CPU pool, which is always there then, for the rest."""
    if min(cpu.max_rate.rate_rps, gpu.max_rate.rate_rps) <= 0:
        return None
    all_of_it = cost.replicas(gpu, rate_rps, replace(objective, min_replicas=1))
    counts = {*range(1, min(all_of_it, MOST_MIXED) + 1), *range(max(1, all_of_it - MOST_MIXED), all_of_it + 1)}
    fleets = []
    for num_gpu in counts:
        rest = max(0.0, rate_rps - num_gpu * cost.usable_rps(gpu, objective))
        num_cpu = cost.replicas(cpu, rest, objective)
        if objective.max_replicas is None or max(num_cpu, num_gpu) <= objective.max_replicas:
            fleets.append(Fleet(num_cpu * cpu.per_hour + num_gpu * gpu.per_hour, ((gpu, num_gpu), (cpu, num_cpu))))
    return min(fleets, key=lambda fleet: fleet.per_hour, default=None)
