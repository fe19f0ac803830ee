"""Is a mean, or a difference of rates, beyond a limit? Asked after every value, and yet no more false alarms than promised. Pure.

An interval of a fixed sample, looked at 1,000 times, alarms falsely in most of those who wait long enough. What is here holds at all
times at once: against a claim that is true, each process below is a bet that nobody wins on average, so that it ever grows beyond 1/α
with a chance of α at most (Ville 1939). Its logarithm is the evidence; a limit is excluded once that is ln(1/α).

* A mean of values in 0..1: betting. Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024;
  here a mixture of fixed bets, as in their section 4 and in Orabona and Jun, "Tight concentrations and confidence sequences from the
  regret of universal portfolio", 2024. No shape is assumed; heavy tails must be brought into 0..1 by whoever asks.
* Two rates: Turner, Ly and Grünwald, "Generic E-variables for exact sequential k-sample tests", 2024, with the limits of Turner and
  Grünwald, "Exact anytime-valid confidence intervals for contingency tables and beyond", 2023.

What is assumed: the mean of the next value, whatever came before, is on the claim's side. Values that cling together (queues, slow
spells) break that one by one; `BlockMeans` is for those. Rule: whatever a bet depends on is known before its value comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Shares of what may be staked. Powers of two: between two of them at least 0.83 of the best bet's growth is left, and the mixture costs
# ln 13 at most. The smallest one is for one value in some thousand; 0.99 is for values that are all the same.
STAKES: Floats = np.array([0.99, 0.75, *(2.0**-power for power in range(1, 12))])
_STEPS = 40  # of a bisection; 2^-40 is finer than any answer needs


def _mixed(logs: Floats) -> Floats:
    """The logarithm of the mean of exponentials over the last axis."""
    top = logs.max(axis=-1)
    return np.asarray(top + np.log(np.exp(logs - top[..., None]).mean(axis=-1)))


def _growth(values: Floats, limit: float, *, above: bool) -> Floats:
    """[stakes]: what each bet against a mean of at most (`above`) or at least `limit` grows by. Falls and rises, resp., with the limit."""
    odds = values / limit if above else (1 - values) / (1 - limit)
    return np.asarray(np.log1p(STAKES[:, None] * (odds - 1)).sum(axis=1))


def log_evidence(values: Floats, limit: float, *, above: bool) -> float:
    """Logarithm of the evidence that the mean of values in 0..1 is above (or below) `limit`, which is between 0 and 1."""
    return float(_mixed(_growth(values, limit, above=above)))


class MeanTest:
    """Evidence on both sides of one limit, kept as values in 0..1 come."""

    __slots__ = ("_bets", "_logs", "_values", "limit", "num", "total")

    def __init__(self, limit: float) -> None:
        if not 0 < limit < 1:
            raise ValueError(f"limit {limit} is not between 0 and 1")
        self.limit = limit
        self.num, self.total = 0, 0.0
        self._bets = np.zeros((2, len(STAKES)))  # above, below
        self._logs: Floats | None = np.zeros(2)  # None: to be worked out
        self._values: list[Floats] = []

    def add(self, values: Sequence[float] | Floats) -> None:
        """Raises ValueError for values outside 0..1."""
        new = np.asarray(values, dtype=np.float64)
        if not len(new):
            return
        if not (new.min() >= 0 and new.max() <= 1):
            raise ValueError("values are in 0..1")
        odds = np.array((new / self.limit, (1 - new) / (1 - self.limit))) - 1
        self._bets += np.log1p(STAKES[:, None] * odds[:, None, :]).sum(axis=2)
        self._logs = None
        self._values.append(new)
        self.num, self.total = self.num + len(new), self.total + float(new.sum())

    def __deepcopy__(self, _: object) -> MeanTest:
        """One that goes on by itself. Values never change, and there may be tens of thousands of them."""
        other = copy(self)
        other._bets, other._values = self._bets.copy(), list(self._values)
        return other

    @property
    def mean(self) -> float:
        return self.total / self.num if self.num else math.nan

    @property
    def log_above(self) -> float:
        return float(self._mixed()[0])

    @property
    def log_below(self) -> float:
        return float(self._mixed()[1])

    def _mixed(self) -> Floats:
        if self._logs is None:
            self._logs = _mixed(self._bets)
        return self._logs

    def interval(self, log_low: float, log_high: float) -> tuple[float, float]:
        """Excludes every limit below or above it with evidence of `log_low` and `log_high`; `limit` too, if its own evidence says so."""
        if not self.num:
            return 0.0, 1.0
        values = np.concatenate(self._values)
        return inverted(lambda limit, above: log_evidence(values, limit, above=above), log_low, log_high, 0.0, 1.0)


class GroupedMeanTest:
    """As `MeanTest`, of values of which some that follow each other may say the same, as answers to one question that is asked again.

    Of those in a group no more than their mean counts: of `num_above` values where they speak for a mean above the limit, which costs next
    to nothing while that is rare, and of `num_below` where they speak against it, which takes as many times the values.
    """

    __slots__ = ("_above", "_below", "_pending_above", "_pending_below", "num", "total")

    def __init__(self, limit: float, num_above: int, num_below: int) -> None:
        self._above, self._below = (MeanTest(limit), num_above), (MeanTest(limit), num_below)
        self._pending_above: list[float] = []
        self._pending_below: list[float] = []
        self.num, self.total = 0, 0.0

    def add(self, values: Sequence[float]) -> None:
        """Raises ValueError for values outside 0..1."""
        self.num, self.total = self.num + len(values), self.total + sum(values)
        for (test, size), pending in ((self._above, self._pending_above), (self._below, self._pending_below)):
            pending += values
            if not (whole := len(pending) // size * size):
                continue
            test.add(np.asarray(pending[:whole]).reshape(-1, size).mean(axis=1))
            del pending[:whole]

    @property
    def limit(self) -> float:
        return self._above[0].limit

    @property
    def mean(self) -> float:
        return self.total / self.num if self.num else math.nan

    @property
    def log_above(self) -> float:
        return self._above[0].log_above

    @property
    def log_below(self) -> float:
        return self._below[0].log_below

    def interval(self, log_low: float, log_high: float) -> tuple[float, float]:
        """Holds the mean, too, which the last values, that are no group yet, have a part in."""
        low, high = self._above[0].interval(log_low, math.inf)[0], self._below[0].interval(math.inf, log_high)[1]
        return (low, high) if math.isnan(self.mean) else (min(low, max(self.mean, 0.0)), max(high, self.mean))


class DriftTest:
    """Alarms when a mean that was below a limit goes beyond it, whenever that is: what was good for a year is not held in its favour.
    Or, not `above`, the other way round.

    Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", 2023: each bet begins anew
    whenever it has lost more than it won. While the mean stays on its side, a false alarm takes `exp(evidence)` values on average at
    least, where `evidence` is what an alarm asks for.
    """

    __slots__ = ("_above", "_bets", "limit", "num", "total")

    def __init__(self, limit: float, *, above: bool = True) -> None:
        self.limit = limit
        self._above = above
        self.num, self.total = 0, 0.0
        self._bets = np.zeros(len(STAKES))

    def add(self, values: Sequence[float]) -> None:
        """In 0..1."""
        for value in values:
            self._bets = np.maximum(self._bets, 0.0) + _growth(np.array([value]), self.limit, above=self._above)
        self.num, self.total = self.num + len(values), self.total + sum(values)

    @property
    def mean(self) -> float:
        return self.total / self.num if self.num else math.nan

    @property
    def evidence(self) -> float:
        return float(_mixed(self._bets))


def inverted(
    evidence: Callable[[float, bool], float],
    log_low: float,
    log_high: float,
    least: float,
    most: float,
    steps: int = _STEPS,
) -> tuple[float, float]:
    """The limits that evidence does not exclude, to the 2^`steps`th part of what is between `least` and `most`.

    `evidence`: of a limit, that the truth is above (True) or below it.
    """

    def end(above: bool, wanted: float) -> float:
        low, high = least, most
        for _ in range(steps):
            middle = (low + high) / 2
            is_excluded = evidence(middle, above) >= wanted
            low, high = (middle, high) if is_excluded == above else (low, middle)
        return low if above else high

    return end(True, log_low), end(False, log_high)


# -- values that cling together ----------------------------------------------------------------------------------------

NUM_SCALES = 6  # blocks of 1, 2, 4 … 32: with blocks of a second, slow spells of up to half a minute
MIN_GROUPS = 8  # of fewer nobody could say whether they depend on each other
_DEPENDENT = 2.0  # standard errors of a correlation of independent values, 1/√n
_REACH = 4.0  # standard deviations of those before: one beyond says no more than one there. 3 and 6 need a tenth more requests
_MIN_REACH_RATIO = 0.02  # of the reach of the first: values that are all the same have no deviation


@dataclass(slots=True)
class _Scale:
    """Groups of `size` blocks. `reaches`: how far from a limit each may be, known before it came."""

    size: int
    means: list[float] = field(default_factory=list)
    reaches: list[float] = field(default_factory=list)
    test: MeanTest = field(default_factory=lambda: MeanTest(0.5))
    total: float = 0.0
    squares: float = 0.0
    lag: float | None = None  # as of now, where it was asked for

    def add(self, mean: float, limit: float, first_reach: float) -> None:
        num = len(self.means)
        reach = first_reach / math.sqrt(self.size)
        if num >= MIN_GROUPS // 2:
            variance = max(0.0, self.squares / num - (self.total / num) ** 2) * num / (num - 1)
            reach = min(first_reach, max(_REACH * math.sqrt(variance), reach * _MIN_REACH_RATIO))
        self.test.add([_cut(mean - limit, reach)])
        self.means.append(mean)
        self.reaches.append(reach)
        self.lag = None
        self.total, self.squares = self.total + mean, self.squares + mean * mean

    @property
    def is_independent(self) -> bool:
        """As far as anybody can tell."""
        if len(self.means) < MIN_GROUPS:
            return False
        if self.lag is None:
            self.lag = _lag(np.asarray(self.means))
        return self.lag < _DEPENDENT / math.sqrt(len(self.means))


def _cut(off: float, reach: float) -> float:
    """0..1, one half at the limit."""
    return 0.5 + min(max(off / reach, -1.0), 1.0) / 2


class BlockMeans:
    """The mean of one value for each block of time, where neighbours may depend on each other, against a limit.

    Blocks are joined two by two until those that follow each other are uncorrelated, as far as anybody can tell, and the test is that of
    their means. Which size that will be is known only later, so each has its share of the promise (`NUM_SCALES` of them).

    Assumed: a dependence is over within 32 blocks; and the mean stays on its side of the limit when what lies far from it on both sides
    counts as less, as it does for values that lie alike around their middle. How often it goes wrong where that is not quite so is
    measured in `loadtest/bench/rollouts.py`. `reach`: of the first values, from the limit.
    """

    __slots__ = ("_reach", "_scales", "_values", "limit")

    def __init__(self, limit: float, reach: float) -> None:
        self.limit = limit
        self._reach = reach
        self._values: list[float] = []
        self._scales = [_Scale(2**power) for power in range(NUM_SCALES)]

    def add(self, value: float) -> None:
        self._values.append(value)
        for scale in self._scales:
            if len(self._values) % scale.size:
                break
            scale.add(sum(self._values[-scale.size :]) / scale.size, self.limit, self._reach)

    @property
    def num(self) -> int:
        return len(self._values)

    @property
    def mean(self) -> float:
        return float(np.mean(self._values)) if self._values else math.nan

    @property
    def size(self) -> int | None:
        """Blocks of a group that is uncorrelated with the one before; None where even 32 are not, or there are too few."""
        scale = self._independent()
        return None if scale is None else scale.size

    def _independent(self) -> _Scale | None:
        return next((scale for scale in self._scales if scale.is_independent), None)

    def evidence(self) -> tuple[float, float]:
        """Logarithms: that the mean is above the limit, and below it."""
        scale = self._independent()
        if scale is None:
            return -math.inf, -math.inf
        return scale.test.log_above - _SHARE, scale.test.log_below - _SHARE

    def evidence_of(self, limit: float, values: Sequence[float] | None = None, *, above: bool) -> float:
        """As `evidence`, for another limit, and for other values of the same blocks."""
        scale = self._independent()
        if scale is None:
            return -math.inf
        means = np.asarray(scale.means)
        if values is not None:
            means = np.asarray(values)[: len(means) * scale.size].reshape(-1, scale.size).mean(axis=1)
        cut = 0.5 + np.clip((means - limit) / np.asarray(scale.reaches), -1, 1) / 2
        return log_evidence(cut, 0.5, above=above) - _SHARE

    def interval(self, log_low: float, log_high: float, least: float, most: float) -> tuple[float, float]:
        return inverted(lambda limit, above: self.evidence_of(limit, above=above), log_low, log_high, least, most)


_SHARE = math.log(NUM_SCALES)


def _lag(values: Floats) -> float:
    """The correlation of each value with the one before."""
    off = values - values.mean()
    square = float(off @ off)
    return float(off[1:] @ off[:-1]) / square if square > 1e-12 * len(values) else 0.0


# -- two rates ---------------------------------------------------------------------------------------------------------

# What the candidate's rate may be, as a multiple of the limit's: it need not be known which.
_MORE: Floats = np.array([1.25, 1.5, 2, 3, 5, 10, 30, 100, 300, 1000])
_LESS: Floats = np.array([0.9, 0.75, 0.5, 0.25, 0.1, 0.03])
_BOTH, _IS_MORE = np.concatenate((_MORE, _LESS)), np.arange(len(_MORE) + len(_LESS)) < len(_MORE)
_LEAST = 1e-7  # a rate of 0 would stake all on there being none
# What is taken for the primary's rate before any request: one in a thousand, and worth as much as 500 of them. A guess that costs little.
_PRIOR_NUM, _PRIOR_FAILED = 500.0, 0.5
_JOINED = 64
_FEW = 20  # failures, that wait for more requests; a guess
_NEAREST_STEPS = 45  # 2^-45 is little beside the `_LEAST` that an alternative may be away from an end


class RateDifference:
    """Evidence on both sides of one limit for (candidate's rate - primary's rate), from counts of blocks of time.

    Both rates may move from block to block as long as their difference stays on its side. Within a block failures are independent; a
    burst that strikes the candidate alone counts against it. Counts are joined until there is a 64th more requests of the candidate than
    before, or failures of it, so that who fails after a day is not noticed half an hour later: it is a bet that goes on, and may be looked
    at whenever one likes.
    """

    __slots__ = ("_above", "_below", "_counts", "_failed", "_num", "_pending", "limit")

    def __init__(self, limit: float) -> None:
        if not 0 < limit < 1:
            raise ValueError(f"limit {limit} is not between 0 and 1")
        self.limit = limit
        self._counts: list[tuple[float, float, float, float]] = []  # failed and all of the candidate, of the primary
        self._failed, self._num = np.zeros(2), np.zeros(2)
        self._pending = (0, 0, 0, 0)
        self._above, self._below = np.zeros(len(_MORE)), np.zeros(len(_LESS))

    def add(self, failed: int, num: int, primary_failed: int, primary_num: int) -> None:
        a, b, c, d = self._pending
        failed, num, primary_failed, primary_num = a + failed, b + num, c + primary_failed, d + primary_num
        self._pending = failed, num, primary_failed, primary_num
        is_few = num < self._num[0] / _JOINED and failed < max(_FEW, self._failed[0] / _JOINED)
        if is_few or min(num, primary_num) == 0:
            return
        self._pending = (0, 0, 0, 0)
        counts = np.array([[failed, num, primary_failed, primary_num]], dtype=np.float64)
        rates = np.array([self._primary_rate()])
        growth = _pairs_growth(counts, rates, self.limit, _BOTH, _IS_MORE)
        self._above += growth[: len(_MORE)]
        self._below += growth[len(_MORE) :]
        self._counts.append((failed, num, primary_failed, primary_num))
        self._failed += (failed, primary_failed)
        self._num += (num, primary_num)

    def __deepcopy__(self, _: object) -> RateDifference:
        """One that goes on by itself."""
        other = copy(self)
        other._counts, other._failed, other._num = list(self._counts), self._failed.copy(), self._num.copy()
        other._above, other._below = self._above.copy(), self._below.copy()
        return other

    def _primary_rate(self) -> float:
        return float((self._failed[1] + _PRIOR_FAILED) / (self._num[1] + _PRIOR_NUM))

    @property
    def num(self) -> int:
        """Requests of the candidate."""
        return int(self._num[0])

    @property
    def mean(self) -> float:
        """The difference of the rates that were seen."""
        return float(self._failed[0] / self._num[0] - self._failed[1] / self._num[1]) if self._num.all() else math.nan

    @property
    def log_above(self) -> float:
        return float(_mixed(self._above))

    @property
    def log_below(self) -> float:
        return float(_mixed(self._below))

    def interval(self, log_low: float, log_high: float) -> tuple[float, float]:
        if not self._counts:
            return -1.0, 1.0
        counts = np.array(self._counts, dtype=np.float64)
        before = counts.cumsum(axis=0) - counts
        rates = (before[:, 2] + _PRIOR_FAILED) / (before[:, 3] + _PRIOR_NUM)

        def evidence(limit: float, above: bool) -> float:
            return float(_mixed(_rates_growth(counts, rates, limit, above=above)))

        return inverted(evidence, log_low, log_high, -1.0, 1.0)


def _rates_growth(counts: Floats, rates: Floats, limit: float, *, above: bool) -> Floats:
    """[alternatives], of one side of the limit."""
    times = _MORE if above else _LESS
    return _pairs_growth(counts, rates, limit, times, np.full(len(times), above))


def _pairs_growth(counts: Floats, rates: Floats, limit: float, times: Floats, is_more: npt.NDArray[np.bool_]) -> Floats:
    """[alternatives], summed over blocks. `counts` [blocks, 4]; `rates`: of the primary, as it was known before each block.

    The alternative (primary's rate, candidate's rate) is weighed against the nearest pair on the limit's line, by Kullback and Leibler:
    then no pair on the limit's side gains by it (their theorem 1; `test_anytime.py` tries).
    """
    failed, num, primary_failed, primary_num = (column[:, None] for column in counts.T)
    primary = np.clip(rates, _LEAST, 1 - _LEAST)[:, None]
    base = np.maximum(primary + limit, 1e-4)
    ours = np.clip(base * times, _LEAST, 1 - _LEAST)
    # On the wrong side of the line for it, as near the ends, an alternative stakes nothing.
    is_beyond = np.where(is_more, ours - primary > limit, ours - primary < limit)
    least, most = max(0.0, -limit) + 1e-12, min(1.0, 1 - limit) - 1e-12
    low = np.clip(np.minimum(primary, ours - limit), least, most)
    high = np.clip(np.maximum(primary, ours - limit), least, most)
    for _ in range(_NEAREST_STEPS):
        middle = (low + high) / 2
        other = middle + limit
        slope = primary_num * (middle - primary) / (middle * (1 - middle)) + num * (other - ours) / (
            other * (1 - other)
        )
        low, high = np.where(slope < 0, middle, low), np.where(slope < 0, high, middle)
    middle = (low + high) / 2
    growth = _log_ratio(failed, num, ours, middle + limit) + _log_ratio(primary_failed, primary_num, primary, middle)
    return np.asarray(np.where(is_beyond, growth, 0.0).sum(axis=0))


def _log_ratio(failed: Floats, num: Floats, ours: Floats, theirs: Floats) -> Floats:
    """Of how likely so many failures are at one rate and at the other."""
    return np.asarray(failed * np.log(ours / theirs) + (num - failed) * np.log((1 - ours) / (1 - theirs)))
