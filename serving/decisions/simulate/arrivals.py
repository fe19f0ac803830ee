"""When do requests come, of how many rows, and which of them are played? Poisson, bursts, a day's rise and fall, or a list of times.

Arrivals are asked for by time: how many come in a second, and which come in a part of one. So a day of ten thousand a second need not be
made where a part of each second is looked at. Random numbers come in through a generator (`random.Random` has what it takes). Rule: the
same question has the same answer, whoever asks first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, isfinite, pi, sin
from typing import NamedTuple, Protocol

from serving.scheduling.choice import turn_of


@dataclass(frozen=True, slots=True)
class Bursts:
    """Raises ValueError where bursts would be none, or never end."""

    times: float  # within a burst the rate is so many times what it is outside
    every_s: float  # from the start of one to the start of the next, on average
    lasting_s: float  # on average; how long they last and are apart is exponential

    def __post_init__(self) -> None:
        if not (self.times >= 1 and 0 < self.lasting_s < self.every_s and isfinite(self.times * self.every_s)):
            raise ValueError("a burst has at least the usual rate, and ends before the next one begins, on average")

    def calm_rps(self, mean_rps: float) -> float:
        """Outside, where both together have this mean."""
        share = self.lasting_s / self.every_s
        return mean_rps / (1 - share + share * self.times)

    def switches(self, generator: Generator) -> Iterator[float]:
        """When a burst begins, when it ends, when the next begins, and so on for ever."""
        at = 0.0
        while True:
            at += generator.expovariate(1 / (self.every_s - self.lasting_s))
            yield at
            at += generator.expovariate(1 / self.lasting_s)
            yield at


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


SETTLE_TIMES = (
    3.0  # objectives, after a change: whoever came before it is answered or gone after one; a guess, not measured
)
CHANGED = 0.05  # of the rate, beyond what chance does, is a change; a guess, not measured
BY_CHANCE = 5.0  # standard deviations of a Poisson count


class Piece(NamedTuple):
    """A part of a second, in which each request stands for `weight`."""

    begin: float
    end: float
    weight: int


class Sampling:
    """`per_second`: requests of a second that are looked at, once nothing changes; None: all, always."""

    def __init__(self, per_second: int | None, objective_s: float) -> None:
        self._per_second = per_second
        self._settle_s = SETTLE_TIMES * objective_s
        self._in_full_until = 0.0
        self._rate = 0.0

    @property
    def is_partial(self) -> bool:
        return self._per_second is not None

    def changed(self, now: float) -> None:
        """Within a second, the pieces of that one are chosen already: the next is looked at instead."""
        self._in_full_until = ceil(now) + self._settle_s

    def is_new(self, number: int) -> bool:
        """Whether so many in a second are another rate than before."""
        if abs(number - self._rate) <= CHANGED * self._rate + BY_CHANCE * self._rate**0.5:
            return False
        self._rate = number
        return True

    def pieces(self, begin: float, end: float, number: int) -> list[Piece]:
        """Of a second, or what is left of the last one, in which so many come."""
        if self._per_second is None:
            return [Piece(begin, end, 1)]
        full_end = min(max(self._in_full_until, begin), end)
        rest_s = end - full_end
        weight = ceil(number * rest_s / (end - begin) / self._per_second)
        if weight <= 1:
            return [Piece(begin, end, 1)]
        part_s = rest_s / weight
        at = full_end + turn_of(int(begin)) * (
            rest_s - part_s
        )  # not always the same part: a trace may know whole seconds only
        part = Piece(at, at + part_s, weight)
        return [Piece(begin, full_end, 1), part] if full_end > begin else [part]
