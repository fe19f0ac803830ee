"""Which part of a second is looked at, and for how many requests does each that is looked at stand?

Where requests are many, one after another through the queues would take days. Queues come to rest within the time that an answer may
take, servers come and go in minutes: so after every change a while is looked at in full, and from then on a part of each second, at its
full rate, for the rest of that second. Rule: what happens once is counted once: a change finds every request standing for itself.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from serving.scheduling.choice import turn_of

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
