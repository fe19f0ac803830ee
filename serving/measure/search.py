"""Which rate is to be tried next, and which is the most that was carried in time? Pure: rates out, outcomes in.

First a bracket by doubling or halving, then halves of it on a logarithmic scale, then repeats: from where the last estimate was, up until
a run misses or down until one meets, so that one lucky or unlucky run decides nothing. Rule: every rate in the result was met by a run; a
void run is neither met nor missed, and nothing is known above it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

RunOutcome = Literal["met", "missed", "void"]
STEP_RATIO = 2.0  # of the bracket: from a start that is wrong by 10, four runs
START_RATIO = 0.5  # of what one request at a time would allow


@dataclass(frozen=True, slots=True)
class Search:
    """`precision_ratio`: a rate that was met, over the next one that was not, at most; also a repeat's step."""

    start_rps: float
    floor_rps: float  # nothing below is tried: too few requests in a run
    precision_ratio: float = 1.06
    num_repeats: int = 3
    max_runs: int = 12

    def __post_init__(self) -> None:
        if not (0 < self.floor_rps <= self.start_rps < math.inf and self.precision_ratio > 1):
            raise ValueError(
                "a search starts at or above its floor, which is above 0, with a precision that is a ratio above 1"
            )


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`estimates` rates that were met, one for each repeat; none: not even the lowest that was tried.

    `is_bounded_by_generator`: what stopped at least one of them was a void run, so that the server could perhaps carry more.
    """

    estimates: tuple[float, ...]
    is_bounded_by_generator: bool

    @property
    def rate_rps(self) -> float:
        return statistics.median_low(self.estimates) if self.estimates else 0.0


Steps = Generator[float, RunOutcome, None]


class Course:
    """One search under way: `steps` yields the rates and takes the outcomes; `found` can be read at any time."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._estimates: list[float] = []
        self._low = 0.0  # the highest that was met in the bracket
        self._bounds: list[RunOutcome] = []  # what stopped each estimate
        self._num_runs = 0
        self._was_void_twice = False  # then the next void one is believed at once

    @property
    def found(self) -> SearchResult:
        known = self._estimates or ([self._low] if self._low else [])
        return SearchResult(tuple(known), "void" in self._bounds)

    def steps(self) -> Steps:
        high, why = yield from self._bracket()
        if not self._low:
            self._bounds.append(why)
            return
        while high / self._low > self._search.precision_ratio and self._has_runs:
            middle = math.sqrt(self._low * high)
            outcome = yield from self._run(middle)
            if outcome == "met":
                self._low = middle
            else:
                high, why = middle, outcome
        self._estimates.append(self._low)
        self._bounds.append(why)
        while len(self._estimates) < self._search.num_repeats and self._has_runs:
            yield from self._repeat()

    def _bracket(self) -> Generator[float, RunOutcome, tuple[float, RunOutcome]]:
        """The lowest rate that was not met, and why; `_low` is the highest that was."""
        rate, high = self._search.start_rps, math.inf
        why: RunOutcome = "met"
        while self._has_runs and rate >= self._search.floor_rps * (1 - 1e-9):
            outcome = yield from self._run(rate)
            if outcome == "met":
                self._low = rate
                if high < math.inf:
                    return high, why
                rate *= STEP_RATIO
                continue
            high, why = rate, outcome
            if self._low:
                return high, why
            is_last = rate <= self._search.floor_rps
            rate = max(rate / STEP_RATIO, self._search.floor_rps)
            if is_last:
                break
        return high, why

    def _repeat(self) -> Steps:
        """Another estimate, from the median of those so far, by steps of the precision."""
        rate, step = statistics.median_low(self._estimates), self._search.precision_ratio
        outcome = yield from self._run(rate)
        is_rising = outcome == "met"
        met, why = (rate, outcome) if is_rising else (0.0, outcome)
        while self._has_runs:
            rate = rate * step if is_rising else rate / step
            if rate < self._search.floor_rps:
                return
            outcome = yield from self._run(rate)
            if outcome == "met":
                met = rate
            else:
                why = outcome
            if (outcome == "met") != is_rising:
                break
        if met:
            self._estimates.append(met)
            self._bounds.append(why)

    @property
    def _has_runs(self) -> bool:
        return self._num_runs < self._search.max_runs

    def _run(self, rate_rps: float) -> Generator[float, RunOutcome, RunOutcome]:
        """A first void run is tried once more, because another program may have taken the generator's core for a moment."""
        self._num_runs += 1
        outcome = yield rate_rps
        if outcome == "void" and self._has_runs and not self._was_void_twice:
            self._num_runs += 1
            outcome = yield rate_rps
            self._was_void_twice = outcome == "void"
        return outcome


def find(search: Search, run: Callable[[float], RunOutcome]) -> SearchResult:
    """Asks `run` until the search has ended. What `run` raises goes through."""
    course = Course(search)
    steps = course.steps()
    try:
        rate = next(steps)
        while True:
            rate = steps.send(run(rate))
    except StopIteration:
        return course.found
