"""What are bursts? One meaning, for what is simulated and for what is sent: a rate that changes between two values at random times.

The rate that is asked for is the mean of both. Rule: it begins between two bursts, and draws a time only when the one before was asked for,
so that a generator may be shared with whoever draws the arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Protocol


class Generator(Protocol):
    def expovariate(self, lambd: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Bursts:
    """Raises ValueError where bursts would be none, or never end."""

    times: float  # within a burst the rate is so many times what it is outside
    every_s: float  # from the start of one to the start of the next, on average
    lasting_s: float  # on average; how long they last and are apart is exponential

    def __post_init__(self) -> None:
        if not (self.times >= 1 and 0 < self.lasting_s < self.every_s and isfinite(self.times * self.every_s)):
            raise ValueError("a burst has at least the usual rate, and ends before the next one begins, on average")

    def calm_rps(self, mean_rps: float) -> float:
        """Outside, where both together have this mean."""
        share = self.lasting_s / self.every_s
        return mean_rps / (1 - share + share * self.times)

    def switches(self, generator: Generator) -> Iterator[float]:
        """When a burst begins, when it ends, when the next begins, and so on for ever."""
        at = 0.0
        while True:
            at += generator.expovariate(1 / (self.every_s - self.lasting_s))
            yield at
            at += generator.expovariate(1 / self.lasting_s)
            yield at
