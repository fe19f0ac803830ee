"""When do requests come? Poisson, bursts, a day's rise and fall, or a trace; one by one or counted in slots.

Random numbers come in through a generator (`random.Random` has what it takes), so the same seed gives the same requests. An arrival is
(now, came, count): `count` requests that are looked at at `now`, the first of which came at `came`. Rule: slots are looked at when they
are over, never before their requests came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import exp, floor, pi, sin
from typing import Protocol

Arrival = tuple[float, float, int]
DAY_S = 86_400.0
EXACT_BELOW = 64.0  # a mean; above, a rounded normal is off by less than 1 in 100 at any count


class Generator(Protocol):
    def random(self) -> float: ...
    def gauss(self, mu: float, sigma: float) -> float: ...
    def expovariate(self, lambd: float) -> float: ...


def steady(rate_rps: float) -> Callable[[float], float]:
    return lambda _: rate_rps


def daily(mean_rps: float, swing: float = 0.8) -> Callable[[float], float]:
    """Lowest at the start, highest after half a day; `swing` 0..1 is how far it goes up and down, as a share of the mean."""
    return lambda at: mean_rps * (1 + swing * sin(2 * pi * at / DAY_S - pi / 2))


def bursts(
    rate_rps: float, times: float, every_s: float, lasting_s: float, until_s: float, generator: Generator
) -> Callable[[float], float]:
    """`times` the rate for `lasting_s` on average, `every_s` apart on average, both exponential."""
    switches, at = [], 0.0
    while at < until_s:
        begin = at + generator.expovariate(1 / every_s)
        at = begin + generator.expovariate(1 / lasting_s)
        switches.append((begin, at))
    spans = iter(switches)
    span = next(spans)

    def rate(now: float) -> float:
        nonlocal span
        while now >= span[1]:
            span = next(spans, (float("inf"), float("inf")))
        return rate_rps * times if now >= span[0] else rate_rps

    return rate


def requests(
    rate: Callable[[float], float], duration_s: float, generator: Generator, slot_s: float | None = None
) -> Iterator[Arrival]:
    """A Poisson process whose rate is asked for once a slot, or ten times a second where requests come one by one.

    `rate` is asked for rising times.
    """
    step_s = 0.1 if slot_s is None else slot_s
    for number in range(round(duration_s / step_s)):
        begin = number * step_s
        count = poisson(rate(begin) * step_s, generator)
        if count == 0:
            continue
        if slot_s is None:
            for at in sorted(begin + generator.random() * step_s for _ in range(count)):
                yield at, at, 1
        else:
            yield begin + step_s, begin, count


def merged(times: Iterable[float], slot_s: float) -> Iterator[Arrival]:
    """Rising times, counted in slots."""
    end, came, count = 0.0, 0.0, 0
    for at in times:
        if at >= end:
            if count:
                yield end, came, count
            end, came, count = (floor(at / slot_s) + 1) * slot_s, at, 0
            if end <= at:  # rounded
                end += slot_s
        count += 1
    if count:
        yield end, came, count


def one_by_one(times: Iterable[float]) -> Iterator[Arrival]:
    return ((at, at, 1) for at in times)


def copies(times: Iterable[float], number: int, jitter_s: float, generator: Generator) -> list[float]:
    """Each arrival `number` times, each up to `jitter_s` later: more of the same traffic, with its bursts."""
    return sorted(at + (generator.random() * jitter_s if number > 1 else 0.0) for at in times for _ in range(number))


def poisson(mean: float, generator: Generator) -> int:
    if mean >= EXACT_BELOW:
        return max(0, round(generator.gauss(mean, mean**0.5)))
    limit, product, count = exp(-mean), generator.random(), 0
    while product > limit:
        product *= generator.random()
        count += 1
    return count
