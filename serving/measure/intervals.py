"""How sure is a value over repeats, and do two arms differ? Pure: intervals that hold the truth as often as they say, also with three.

The one method: Student's t over repeats, on logarithms. Two arms are compared by ratios, one for each repeat in which both ran side by
side. Two equal arms are called different in 5 % of comparisons (`FALSE_ALARM_RATIO`). Chosen by simulation of equal arms, with 3, 5 and
10 repeats and 5 % of noise:

    Student's t          4.8 %, 5.0 %, 5.1 %      (3 to 4 % where one run in ten is an outlier, or noise is skewed)
    percentile bootstrap  27 %,  17 %,  10 %
    BCa bootstrap         27 %,  16 %,  10 %
    studentised bootstrap 0.3 %, 5.5 %, 4.3 %     (8 % at 10 repeats with outliers; at 3 it hardly ever sees anything)

Requests of one run are never taken for independent: a run gives one number. `test_false_alarms.py` holds reports to this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

FALSE_ALARM_RATIO = 0.05
CONFIDENCE = 1 - FALSE_ALARM_RATIO
# With two repeats the interval reaches over a factor of ten for noise of 10 %: right, and of no use to anybody.
MIN_REPEATS = 3

MAX_LOG = 700.0  # of an end of an interval: beyond, floats end, and nobody cares

Direction = Literal["higher", "lower", "no_difference_seen", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Ours over theirs. `low` and `high` hold the true ratio in 95 % of cases; both None where it is inconclusive."""

    ratio: float  # geometric mean, or what `of_medians` was given
    low: float | None
    high: float | None
    outcome: Direction
    runs: tuple[float, ...]  # of each repeat; empty where runs have no partners

    @property
    def smallest_seen_ratio(self) -> float | None:
        """How far apart arms had to be to be told apart, with the noise that there was: 0.03 is 3 %."""
        return None if self.high is None else self.high / self.ratio - 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median over runs, with a 95 % interval for the value of a typical run; `low` and `high` are None for fewer than three runs."""

    median: float
    low: float | None
    high: float | None
    runs: tuple[float, ...]


def estimate(runs: Sequence[float], most: float = math.inf) -> Estimate | None:
    """Student's t over runs: on logarithms where all are above 0, because times and rates vary by factors. `most`: of a share, 1."""
    if not runs:
        return None
    values = np.asarray(runs, dtype=np.float64)
    median = float(np.median(values))
    if len(values) < MIN_REPEATS:
        return Estimate(median, None, None, tuple(runs))
    is_scale = bool(values.min() > 0) and math.isinf(most)
    used = np.log(values) if is_scale else values
    reach = t_quantile(len(used) - 1) * float(used.std(ddof=1)) / math.sqrt(len(used))
    ends = float(used.mean()) - reach, float(used.mean()) + reach
    low, high = map(math.exp, ends) if is_scale else (max(0.0, ends[0]), min(most, ends[1]))
    return Estimate(median, min(low, median), max(high, median), tuple(runs))


def searched(runs: Sequence[float], step_ratio: float) -> Estimate | None:
    """Of rates that a search found in steps: each was met and the next, `step_ratio` times as high, was not, so that the truth is between.

    On a quiet machine all repeats find the same one, and an interval over them alone would be nothing wide: simulated, with a step of
    1.06 and 0.2, 1, 3 and 8 % of noise it held the truth in 3, 23, 69 and 85 % of cases; with the step in it in 99, 99, 96 and 94 %.
    """
    found = estimate(runs)
    return found if found is None or found.high is None else replace(found, high=found.high * step_ratio)


def paired(ratios: Sequence[float], step_ratio: float = 0.0) -> Difference | None:
    """Of one ratio for each repeat. `step_ratio`: the finest step of a run's value, of that value (one answer of 100: 0.01), so that
    counts that happen to agree are not taken for certainty."""
    if not ratios:
        return None
    if min(ratios) <= 0:
        raise ValueError("ratios are above 0")
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    centre = float(logs.mean())
    if len(logs) < MIN_REPEATS:
        return Difference(math.exp(centre), None, None, "inconclusive", tuple(ratios))
    # Two roundings of a step each: what is left of the spread when all of it is hidden in them.
    spread = max(float(logs.std(ddof=1)), step_ratio * math.sqrt(2 / 12))
    return _difference(centre, t_quantile(len(logs) - 1) * spread / math.sqrt(len(logs)), tuple(ratios))


def of_medians(found: Difference | None, ours: Estimate | None, theirs: Estimate | None) -> Difference | None:
    """The comparison as the quotient of the two medians that are shown beside it, so that a table never contradicts its ratio.

    The interval reaches to that quotient, and where it then holds 1 no difference is called one: never more false alarms than before.
    """
    if found is None or ours is None or theirs is None or ours.median <= 0 or theirs.median <= 0:
        return found
    ratio = ours.median / theirs.median
    if found.low is None or found.high is None:
        return replace(found, ratio=ratio)
    low, high = min(found.low, ratio), max(found.high, ratio)
    outcome: Direction = "higher" if low > 1 else "lower" if high < 1 else "no_difference_seen"
    return replace(found, ratio=ratio, low=low, high=high, outcome=outcome)


def unpaired(
    ours: Sequence[float], theirs: Sequence[float], beyond_ratio: float = FALSE_ALARM_RATIO
) -> Difference | None:
    """Of runs without partners, as on two days: Welch's interval, degrees of freedom rounded down."""
    if not ours or not theirs:
        return None
    if min(*ours, *theirs) <= 0:
        raise ValueError("values are above 0")
    ours_log, theirs_log = np.log(np.asarray(ours, dtype=np.float64)), np.log(np.asarray(theirs, dtype=np.float64))
    centre = float(ours_log.mean() - theirs_log.mean())
    reach = welch_reach(ours_log.tolist(), theirs_log.tolist(), beyond_ratio)
    if reach is None:
        return Difference(math.exp(centre), None, None, "inconclusive", ())
    return _difference(centre, reach, ())


def welch_reach(
    ours: Sequence[float], theirs: Sequence[float], beyond_ratio: float = FALSE_ALARM_RATIO
) -> float | None:
    """Half the width of the interval of a difference of means; None of too few runs."""
    sizes = len(ours), len(theirs)
    if min(sizes) < MIN_REPEATS:
        return None
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (ours, theirs)]
    if not sum(parts):
        return 0.0
    freedom = sum(parts) ** 2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    return t_quantile(max(1, math.floor(freedom)), beyond_ratio) * math.sqrt(sum(parts))


def _difference(centre: float, reach: float, runs: tuple[float, ...]) -> Difference:
    outcome: Direction = "higher" if centre > reach else "lower" if centre < -reach else "no_difference_seen"
    ratio, low, high = (math.exp(min(end, MAX_LOG)) for end in (centre, centre - reach, centre + reach))
    return Difference(ratio, low, high, outcome, runs)


@lru_cache
def t_quantile(freedom: int, beyond_ratio: float = FALSE_ALARM_RATIO) -> float:
    """How many standard errors Student's t leaves `beyond_ratio` of cases outside of, both sides together."""
    low, high = 0.0, 1e9
    while high - low > 1e-9 * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - t_inside_ratio(middle, freedom) > beyond_ratio else (low, middle)
    return (low + high) / 2


def t_inside_ratio(t: float, freedom: int) -> float:
    """How often |T| is at most t (Abramowitz and Stegun 26.7.3 and 26.7.4: exact for whole degrees of freedom)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle)
    is_odd = freedom % 2
    term = cosine if is_odd else 1.0
    total = term if freedom > 1 or not is_odd else 0.0
    for power in range(2 + is_odd, freedom - 1, 2):
        term *= cosine**2 * (power - 1) / power
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
