"""All cold starts that came to an end, counted: for rates and quantiles, which the last one's numbers cannot tell.

Rule: counts only grow, and their number is bounded by the pools.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import accumulate
from math import inf

from serving.planning.cold_start import ColdStart

# From a pod on a node that is there, with its image, to a node that is hard to buy and 15 GB to pull; guesses.
BOUNDS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, inf)


class Phase:
    """How long one phase of a pool took, over all cold starts that ended in an answer."""

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts = [0] * len(BOUNDS_S)

    def count(self, took_s: float) -> None:
        self.sum_s += took_s
        self._counts[bisect_left(BOUNDS_S, took_s)] += 1

    @property
    def up_to(self) -> list[tuple[float, int]]:
        """(upper bound in seconds, how many took no longer)."""
        return list(zip(BOUNDS_S, accumulate(self._counts), strict=True))


class Ended:
    """`ends`: by (pool, "answered" or "given_up"); `phases`: by (pool, phase)."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[str, str]] = Counter()
        self.phases: defaultdict[tuple[str, str], Phase] = defaultdict(Phase)

    def count(self, it: ColdStart) -> None:
        self.ends[it.pool, "given_up" if it.is_given_up else "answered"] += 1
        if it.answered_at is not None:
            for phase, took_s in it.phases.items():
                self.phases[it.pool, phase].count(took_s)
