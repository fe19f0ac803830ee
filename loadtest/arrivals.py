"""When should each request of an open-loop run be sent? Pure: the same question has the same answer on every machine.

Times count from the start of the run and rise; whether anybody can answer them is no matter here. Several generators share one schedule,
each taking its turn (`part`), so that together they send exactly what one would send alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from serving.decisions.simulate.arrivals import Bursts

Kind = Literal["constant", "poisson", "bursts", "trace"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate_rps`: on average, also of bursts. A trace has times of its own, and no rate."""

    kind: Kind
    rate_rps: float = 0.0
    burst_times: float = 4.0  # within a burst the rate is so many times what it is outside
    burst_every_s: float = 10.0  # from the start of one burst to the next on average, exponential
    burst_lasting_s: float = 2.0  # on average, exponential
    times_s: Sequence[float] = ()  # of a trace

    def __post_init__(self) -> None:
        if self.kind != "trace" and not self.rate_rps > 0:
            raise ValueError(f"{self.kind} arrivals need a rate above 0")
        if self.kind == "bursts":
            self.bursts  # noqa: B018  (checks itself)
        if self.kind == "trace" and (
            not self.times_s or self.times_s[0] < 0 or sorted(self.times_s) != list(self.times_s)
        ):
            raise ValueError("a trace needs times from 0 on that rise")

    @property
    def bursts(self) -> Bursts:
        """As the simulator means them, too."""
        return Bursts(self.burst_times, self.burst_every_s, self.burst_lasting_s)


def schedule(arrivals: Arrivals, duration_s: float, seed: int, part: int = 0, num_parts: int = 1) -> Iterator[float]:
    """The times before `duration_s` of generator `part` of `num_parts`."""
    return islice(_BY_KIND[arrivals.kind](arrivals, duration_s, random.Random(seed)), part, None, num_parts)


def _constant(arrivals: Arrivals, duration_s: float, _: random.Random) -> Iterator[float]:
    number = 0
    while (at := number / arrivals.rate_rps) < duration_s:
        yield at
        number += 1


def _poisson(arrivals: Arrivals, duration_s: float, chance: random.Random) -> Iterator[float]:
    at = chance.expovariate(arrivals.rate_rps)
    while at < duration_s:
        yield at
        at += chance.expovariate(arrivals.rate_rps)


def _bursts(arrivals: Arrivals, duration_s: float, chance: random.Random) -> Iterator[float]:
    """A Poisson process whose rate changes between two values (a Markov-modulated one)."""
    bursts = arrivals.bursts
    calm_rps, switches = bursts.calm_rps(arrivals.rate_rps), bursts.switches(chance)
    is_burst, at, ends = False, 0.0, next(switches)
    while at < duration_s:
        rate_rps = calm_rps * bursts.times if is_burst else calm_rps
        due = at + chance.expovariate(rate_rps)
        if due >= ends:  # what is left of a gap is forgotten: exponential gaps have no memory
            at, is_burst, ends = ends, not is_burst, next(switches)
            continue
        at = due
        if at < duration_s:
            yield at


def _trace(arrivals: Arrivals, duration_s: float, _: random.Random) -> Iterator[float]:
    return (at for at in arrivals.times_s if at < duration_s)


_BY_KIND: dict[Kind, Callable[[Arrivals, float, random.Random], Iterator[float]]] = {
    "constant": _constant,
    "poisson": _poisson,
    "bursts": _bursts,
    "trace": _trace,
}
