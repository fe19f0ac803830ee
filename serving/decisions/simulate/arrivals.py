"""When do requests come, and of how many rows? Poisson, bursts, a day's rise and fall, or a list of times.

Arrivals are asked for by time: how many come in a second, and which come in a part of one. So a day of ten thousand a second need not be
made where a part of each second is looked at. Random numbers come in through a generator (`random.Random` has what it takes). Rule: the
same question has the same answer, whoever asks first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, exp, pi, sin
from typing import Protocol

from serving.decisions.simulate.bursts import Bursts

Arrival = tuple[float, float]  # when, and rows
DAY_S = 86_400.0
STEP_S = 0.1  # in which a rate stands still
STEPS = round(1 / STEP_S)
EXACT_BELOW = 64.0  # a mean; above, a rounded normal is off by less than 1 in 100 at any count
FEW = 1000  # above, a share with a mean below EXACT_BELOW is so small that Poisson's variance is off by less than 7 %


class Generator(Protocol):
    def random(self) -> float: ...
    def gauss(self, mu: float, sigma: float) -> float: ...
    def expovariate(self, lambd: float) -> float: ...


class Arrivals(Protocol):
    duration_s: float

    def asked(self, second: int) -> Mapping[float, int]:
        """Rows -> how many requests of so many rows come in this second."""

    def between(self, begin_s: float, end_s: float) -> Sequence[Arrival]:
        """Those that come in this second, or part of one, rising."""


class ListedArrivals:
    """Times that are known, in any order; `rows` of each, or of all."""

    def __init__(self, times: Iterable[float], duration_s: float, rows: float | Sequence[float] = 1.0) -> None:
        self.duration_s = duration_s
        times = list(times)
        each = [rows] * len(times) if isinstance(rows, int | float) else rows
        self._arrivals = sorted(zip(times, each, strict=True))
        self._times = [at for at, _ in self._arrivals]

    def asked(self, second: int) -> Mapping[float, int]:
        return Counter(rows for _, rows in self.between(second, second + 1))

    def between(self, begin_s: float, end_s: float) -> Sequence[Arrival]:
        return self._arrivals[bisect_left(self._times, begin_s) : bisect_left(self._times, end_s)]


class PoissonArrivals:
    """A Poisson process. `generators`: a number -> its own generator, always in the same state."""

    def __init__(
        self,
        rate: Callable[[float], float],
        duration_s: float,
        generators: Callable[[int], Generator],
        rows: float = 1.0,
    ) -> None:
        self.duration_s = duration_s
        self._rows, self._generators = rows, generators
        generator = generators(0)
        steps = (step * STEP_S for step in range(ceil(duration_s / STEP_S - 1e-9)))
        counts = [poisson(rate(begin) * self._step_s(begin), generator) for begin in steps]
        self._counts = [counts[at : at + STEPS] for at in range(0, len(counts), STEPS)]

    def asked(self, second: int) -> Mapping[float, int]:
        return {self._rows: sum(self._counts[second])}

    def between(self, begin_s: float, end_s: float) -> Sequence[Arrival]:
        """A part of a second has its share of the second's requests."""
        second = int(begin_s)
        generator = self._generators(1 + int(begin_s * 1e6))
        draw, last_s = generator.random, min(second + 1.0, self.duration_s)
        times: list[float] = []
        if begin_s == second and end_s >= last_s - 1e-9:
            for step, number in enumerate(self._counts[second]):
                at = second + step * STEP_S
                step_s = self._step_s(at)
                times += sorted(at + draw() * step_s for _ in range(number))
        else:
            lasting_s = end_s - begin_s
            number = share_of(sum(self._counts[second]), lasting_s / (last_s - second), generator)
            times = sorted(begin_s + draw() * lasting_s for _ in range(number))
        return [(at, self._rows) for at in times]

    def _step_s(self, begin: float) -> float:
        return min(STEP_S, self.duration_s - begin)


def num_seconds(arrivals: Arrivals) -> int:
    return ceil(arrivals.duration_s - 1e-9)


def steady(rate_rps: float) -> Callable[[float], float]:
    return lambda _: rate_rps


def daily(mean_rps: float, swing: float = 0.8) -> Callable[[float], float]:
    """Lowest at the start, highest after half a day; `swing` 0..1 is how far it goes up and down, as a share of the mean."""
    return lambda at: mean_rps * (1 + swing * sin(2 * pi * at / DAY_S - pi / 2))


def bursts(mean_rps: float, of: Bursts, generator: Generator) -> Callable[[float], float]:
    """To be asked for rising times."""
    calm_rps, switches = of.calm_rps(mean_rps), of.switches(generator)
    is_burst, ends = False, next(switches)

    def rate(now: float) -> float:
        nonlocal is_burst, ends
        while now >= ends:
            is_burst, ends = not is_burst, next(switches)
        return calm_rps * of.times if is_burst else calm_rps

    return rate


def copies(
    arrivals: Iterable[tuple[float, float]], number: int, jitter_s: float, generator: Generator
) -> list[tuple[float, float]]:
    """Each arrival (when, rows) `number` times, each up to `jitter_s` later: more of the same traffic, with its bursts."""
    return sorted(
        (at + (generator.random() * jitter_s if number > 1 else 0.0), rows)
        for at, rows in arrivals
        for _ in range(number)
    )


def share_of(number: int, ratio: float, generator: Generator) -> int:
    """How many of so many, each with this probability: binomial."""
    mean = number * ratio
    if mean >= EXACT_BELOW:
        return min(number, max(0, round(generator.gauss(mean, (mean * (1 - ratio)) ** 0.5))))
    if number <= FEW:
        return sum(generator.random() < ratio for _ in range(number))
    return min(number, poisson(mean, generator))


def poisson(mean: float, generator: Generator) -> int:
    if mean >= EXACT_BELOW:
        return max(0, round(generator.gauss(mean, mean**0.5)))
    limit, product, count = exp(-mean), generator.random(), 0
    while product > limit:
        product *= generator.random()
        count += 1
    return count
