"""When is each request due? Pure: the same seed gives the same times."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson(rate_rps: float, duration_s: float, seed: int) -> Iterator[float]:
    """Times from 0 on: independent arrivals, whose gaps are exponential."""
    chance = random.Random(seed)
    due_s = chance.expovariate(rate_rps)
    while due_s < duration_s:
        yield due_s
        due_s += chance.expovariate(rate_rps)
