"""How sure is a median over rounds, or the ratio of two that did not run in the same turns? Bootstrap, resampling rounds.

Pure. With few rounds an interval is no wider than from the least to the most, which holds the true median less often than 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtest.claims.values import Reading
from serving.export.speed.intervals import CONFIDENCE, NUM_RESAMPLES

MIN_ROUNDS = 2  # one alone says nothing about another


def median(rounds: Sequence[float]) -> Reading:
    """ValueError without any."""
    return apart(rounds, (1.0, 1.0))


def apart(top: Sequence[float], bottom: Sequence[float], *, seed: int = 0) -> Reading:
    """The ratio of the medians. Each side's rounds are drawn by themselves, because they were not measured together."""
    if not top or not bottom:
        raise ValueError("no rounds, no ratio")
    middle = float(np.median(top) / np.median(bottom))
    if len(top) < MIN_ROUNDS or len(bottom) < MIN_ROUNDS:
        return Reading(middle)
    rng = np.random.default_rng(seed)
    above, below = (np.median(rng.choice(rounds, (NUM_RESAMPLES, len(rounds))), axis=1) for rounds in (top, bottom))
    low, high = np.quantile(above / below, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Reading(middle, min(float(low), middle), max(float(high), middle))
