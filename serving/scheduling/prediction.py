"""When will work be done, going by the curve, by what waits before it, and by how far such predictions were off?

A `Service` is one variant on one server of a pool, whose instances batch. Two costs, which are not the same: `seconds` is how long a
request takes when it runs now, `cost_s` what it takes away from the server when executions are full. Rule: a correction multiplies
both, is learnt from what this process saw alone, and lives in memory, never in a file.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from serving.scheduling.curve import Curve

WEIGHT = 0.05  # of the newest answer: about the last twenty count; a guess, not measured
SMALLEST, LARGEST = 0.25, 16.0  # one stall must not say that a curve is further off than this; a guess, not measured
NEARLY = 0.95  # of the best rate: a row more in every execution would gain less than noise; a guess, not measured
SPREADS = 2.0  # mean absolute deviations kept free before a deadline: about 95 of 100 normal errors stay within


class Correction(NamedTuple):
    """`factor`: actual time as a multiple of the curve's; `spread`: the mean absolute deviation of that factor.

    `packed_ratio`: what executions do, as a share of what full ones would, because requests of several rows leave places that none of
    them fits into.
    """

    factor: float = 1.0
    spread: float = 0.0
    packed_ratio: float = 1.0


UNCORRECTED = Correction()


def corrected(old: Correction, predicted_s: float, actual_s: float, by: Correction | None = None) -> Correction:
    """What is believed after an answer that was predicted, by `by`, to take `predicted_s`, and took `actual_s`.

    `by` is what was believed when it was let in (None: `old`). What is believed moves to what this answer says by itself and not by how
    far it was off: corrected by a prediction that is hundreds of answers old, it would swing.
    """
    if predicted_s <= 0 or actual_s <= 0:
        return old
    off = min(max(actual_s / predicted_s, SMALLEST), LARGEST)
    seen = min(max((by or old).factor * off, SMALLEST), LARGEST)
    return Correction(
        old.factor + WEIGHT * (seen - old.factor),
        old.spread + WEIGHT * (abs(seen - old.factor) - old.spread),
        old.packed_ratio,
    )


def packed(old: Correction, ratio: float) -> Correction:
    """What is believed after an answer from an execution that was packed so well."""
    if ratio == old.packed_ratio:
        return old
    return Correction(old.factor, old.spread, old.packed_ratio + WEIGHT * (ratio - old.packed_ratio))


@dataclass(frozen=True, slots=True, eq=False)
class Full:
    """What a server does when there is enough to do, by its curve: rows of an execution, rows a second, and what two executions take.

    One object for a variant on a pool however it is corrected: what is in flight is counted by it.
    """

    batch: int
    rate_rows_per_s: float
    flight_s: float


@dataclass(frozen=True, slots=True)
class Service:
    """One variant on one server: what an execution costs, how many run at once, of how many rows at most."""

    curve: Curve
    num_instances: int = 1
    max_batch: int = 1
    correction: Correction = UNCORRECTED
    known: InitVar[Full | None] = None  # computed where it is not given
    full: Full = field(init=False, repr=False, compare=False)
    without: frozenset[str] = frozenset()  # servers of the pool, by name, that do not serve it
    batch: int = field(init=False)  # rows that make an execution full
    rate_rows_per_s: float = field(init=False)  # of executions as full as they get, on all instances, as corrected
    bound: int = field(init=False)  # rows in flight: full executions run, and the next ones are there
    _factor: float = field(init=False, repr=False)
    _careful: float = field(init=False, repr=False)
    _careful_full_s: float = field(init=False, repr=False)

    def __post_init__(self, known: Full | None) -> None:
        if self.num_instances < 1 or self.max_batch < 1:
            raise ValueError("a server has at least one instance, and an execution at least one row")
        full = known or _full(self.curve, self.max_batch)
        factor = self.correction.factor
        set_ = object.__setattr__
        set_(self, "full", full)
        set_(self, "batch", full.batch)
        rate_rows_per_s = full.rate_rows_per_s * self.correction.packed_ratio
        set_(self, "rate_rows_per_s", self.num_instances * rate_rows_per_s / factor)
        set_(self, "bound", 2 * full.batch * self.num_instances)
        set_(self, "_factor", factor)
        set_(self, "_careful", factor + SPREADS * self.correction.spread)
        set_(self, "_careful_full_s", self.curve.seconds(full.batch) * self._careful)

    def seconds(self, rows: float) -> float:
        """From its start to its end, as corrected."""
        return self.curve.seconds(rows) * self._factor

    def careful_seconds(self, rows: float) -> float:
        """The same, with room for the error that such predictions had."""
        return self.curve.seconds(rows) * self._careful

    def careful_full_s(self, rows: float) -> float:
        """`careful_seconds` of a full execution, or of so many rows where they are more."""
        return self._careful_full_s if rows <= self.batch else self.careful_seconds(rows)

    def cost_s(self, rows: float) -> float:
        """Seconds of the whole server that it takes, where executions are full."""
        return rows / self.rate_rows_per_s

    def device_s(self, rows: float) -> float:
        """Seconds of the whole server that it takes by itself: what it is charged for. Not corrected, so that prices stand still."""
        return self.curve.seconds(rows) / self.num_instances

    def packed_ratio(self, rows: float) -> float:
        """What an execution with so many rows does, as a share of what a full one would."""
        return min(1.0, rows / self.curve.seconds(rows) / self.full.rate_rows_per_s)

    def corrected_by(self, correction: Correction) -> Service:
        return Service(self.curve, self.num_instances, self.max_batch, correction, self.full, self.without)


def _full(curve: Curve, max_batch: int) -> Full:
    """The smallest executions that are nearly as good as the best: larger ones only make everybody wait longer."""
    enough = NEARLY * curve.rate_rows_per_s(max_batch)
    batch = next((rows for rows in range(1, max_batch) if rows / curve.seconds(rows) >= enough), max_batch)
    seconds = curve.seconds(batch)
    return Full(batch, batch / seconds, 2 * seconds)
