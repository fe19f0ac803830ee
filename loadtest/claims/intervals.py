"""How sure is a median over rounds, or a ratio of two sides? Student's t over rounds, as in all reports (`serving/measure`).

Pure. Fewer than three rounds have no interval, and so no claim holds or fails by them. Turns of one round are never taken for independent:
a session's speed is shifted for as long as it lives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loadtest.claims.values import Reading
from serving.measure import intervals
from serving.measure.intervals import estimate


def median(rounds: Sequence[float], most: float = math.inf) -> Reading:
    """`most`: of a share, 1. ValueError without any."""
    found = estimate(rounds, most)
    if found is None:
        raise ValueError("no rounds, no median")
    return Reading(found.median, found.low, found.high)


def paired(ratios: Sequence[float]) -> Reading:
    """Of one ratio for each round, in which both sides took turns. ValueError without any."""
    return _around(float(np.median(ratios)), intervals.paired(ratios))


def apart(top: Sequence[float], bottom: Sequence[float]) -> Reading:
    """The ratio of the medians of two sides that did not take turns. ValueError where one has no rounds."""
    if not top or not bottom:
        raise ValueError("no rounds, no ratio")
    return _around(float(np.median(top) / np.median(bottom)), intervals.unpaired(top, bottom))


def _around(middle: float, found: intervals.Difference | None) -> Reading:
    """The interval is around the geometric mean, beside which the median may lie outside."""
    if found is None or found.low is None or found.high is None:
        return Reading(middle)
    return Reading(middle, min(found.low, middle), max(found.high, middle))


def either(one: Reading, other: Reading) -> Reading:
    """As far as either reaches: of the same thing, measured twice."""
    known = [reading.value for reading in (one, other) if reading.value is not None]
    ends = [end for reading in (one, other) for end in (reading.low, reading.high) if end is not None]
    middle = float(np.median(known))
    return Reading(middle, min(ends), max(ends)) if len(ends) == 4 else Reading(middle)
