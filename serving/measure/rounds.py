"""In which order are things measured, and what do several rounds say together?

Pure. Machines drift, so each round measures every target once, in a rotated order, and only what stands in the same round is divided.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, and their ends."""

    median: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "min": self.low, "max": self.high}


def rotated(targets: Sequence[str], num_rounds: int) -> list[tuple[str, ...]]:
    """Each target comes first, and last, equally often; every other turn runs backwards, so that neighbours change too."""
    orders = []
    for index in range(num_rounds):
        start = index % len(targets)
        order = (*targets[start:], *targets[:start])
        orders.append(order if index // len(targets) % 2 == 0 else order[::-1])
    return orders


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(top: Sequence[float], bottom: Sequence[float]) -> Spread:
    """Round by round."""
    return spread([a / b for a, b in zip(top, bottom, strict=True)])
