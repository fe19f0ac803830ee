"""Percentiles and intervals, pure. What may be said of so many samples, and nothing beyond.

A percentile is told only where enough samples lie beyond it; an interval is taken across runs, never across the rows of one
run: requests of one run share the machine's mood, and an interval over them would be far too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Fewer samples beyond a percentile than this and it is an accident of the slowest few: p99 needs 1,000 requests, p90 100, p50 20.
MIN_BEYOND = 10
NUM_RESAMPLES = 4000  # the interval's ends then move by less than 1 % of its width between seeds (tried on 10 runs)
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median over runs with its bootstrap interval; `low` and `high` are None for a single run."""

    median: float
    low: float | None
    high: float | None
    runs: tuple[float, ...]


def percentile(values: npt.NDArray[np.float64], q: float) -> float | None:
    """Linear between the two nearest ranks, q in 0..1; None where fewer than MIN_BEYOND values lie beyond."""
    if len(values) * min(q, 1 - q) < MIN_BEYOND - 1e-9:
        return None
    return float(np.percentile(values, q * 100))


def estimate(runs: Sequence[float], seed: int) -> Estimate | None:
    if not runs:
        return None
    values = np.asarray(runs, dtype=np.float64)
    if len(values) == 1:
        return Estimate(float(values[0]), None, None, tuple(runs))
    resampled = np.random.default_rng(seed).choice(values, size=(NUM_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(resampled, axis=1), [50 * (1 - CONFIDENCE), 100 - 50 * (1 - CONFIDENCE)])
    return Estimate(float(np.median(values)), float(low), float(high), tuple(runs))


def range_coverage(num_runs: int) -> float:
    """How often the smallest and the largest of so many runs hold the true median between them: the most an interval here can claim."""
    return 1 - 2.0 ** (1 - num_runs) if num_runs else 0.0


def is_apart(ours: Sequence[float], theirs: Sequence[float]) -> int:
    """1 if each of our runs is above each of theirs, -1 if below, 0 if they overlap."""
    return int(min(ours) > max(theirs)) - int(max(ours) < min(theirs))


def chance_apart(num_ours: int, num_theirs: int) -> float:
    """How often two equal arms look apart by accident: the rank test of Mann and Whitney at its extreme."""
    return min(1.0, 2 / math.comb(num_ours + num_theirs, num_ours))


def chance_same_side(num_pairs: int) -> float:
    """How often two equal arms differ in the same direction in every one of so many pairs by accident: the sign test at its extreme."""
    return min(1.0, 2 * 0.5**num_pairs)


def curve(values: npt.NDArray[np.float64], num_points: int = 120) -> list[tuple[float, float]]:
    """The distribution function as (value, share at or below), thinned, with the last percent kept finer."""
    if not len(values):
        return []
    shares = np.unique(np.concatenate([np.linspace(0, 0.99, num_points), np.linspace(0.99, 1, 11)]))
    return [(float(v), float(s)) for v, s in zip(np.quantile(values, shares), shares, strict=True)]
