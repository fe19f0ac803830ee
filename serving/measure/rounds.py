"""The stopwatch: in which order are things measured, for how long, and what do several rounds say together?

Machines drift, so each round measures every target once, each time in another order, and only what stands in the same round is divided.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from serving.measure.intervals import MIN_REPEATS

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, and their ends."""

    median: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "min": self.low, "max": self.high}


def order(targets: Sequence[T], number: int, num_rounds: int) -> tuple[T, ...]:
    """Of the round of this number. Every second round runs the one before it backwards, and each pair begins elsewhere, so that over
    twice as many rounds as there are targets each is first, and last, equally often."""
    pair, is_back = divmod(number, 2)
    start = pair * max(1, len(targets) // math.ceil(num_rounds / 2)) % len(targets)
    turned = (*targets[start:], *targets[:start])
    return turned[::-1] if is_back else turned


def rounds(targets: Sequence[T], num_rounds: int, limit_s: float = math.inf) -> Iterator[tuple[T, ...]]:
    """The order of each round; none begins after `limit_s`, but MIN_REPEATS come in any case, or there would be no interval."""
    began_s = time.monotonic()
    for number in range(num_rounds):
        if number >= MIN_REPEATS and time.monotonic() - began_s > limit_s:
            return
        yield order(targets, number, num_rounds)


def in_turn(measured: Mapping[K, Callable[[], R]], num_rounds: int) -> dict[K, list[R]]:
    """What each gave, round by round."""
    taken: dict[K, list[R]] = {name: [] for name in measured}
    for names in rounds(list(measured), num_rounds):
        for name in names:
            taken[name].append(measured[name]())
    return taken


def stopped(call: Callable[[], R]) -> tuple[R, float]:
    """What one call gave, and its seconds."""
    began_s = time.perf_counter()
    given = call()
    return given, time.perf_counter() - began_s


def times(call: Callable[[], object], slice_s: float) -> list[float]:
    """Seconds of each call in about so long. The first counts only where it is all there is time for: others had the caches and the
    cores since."""

    first_s = stopped(call)[1]
    if first_s >= slice_s:
        return [first_s]
    end_s = time.perf_counter() + slice_s - first_s
    taken = [stopped(call)[1]]
    while time.perf_counter() < end_s:
        taken.append(stopped(call)[1])
    return taken


def least_s(calls: Mapping[K, Callable[[], object]], num_rounds: int, num_calls: int) -> dict[K, float]:
    """Of calls too short for a stopwatch: the least seconds of one, over rounds of so many, because what disturbs only ever adds."""

    def loop(call: Callable[[], object]) -> None:
        for _ in range(num_calls):
            call()

    taken = in_turn({name: partial(stopped, partial(loop, call)) for name, call in calls.items()}, num_rounds)
    return {name: min(seconds for _, seconds in rounds_of) / num_calls for name, rounds_of in taken.items()}


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(top: Sequence[float], bottom: Sequence[float]) -> Spread:
    """Round by round."""
    return spread([a / b for a, b in zip(top, bottom, strict=True)])
