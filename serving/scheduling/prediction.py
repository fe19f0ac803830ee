"""When will work be done, going by the curve, by what waits before it, and by how far such predictions were off?

A `Service` is one variant on one server of a pool, whose instances batch. Two costs, which are not the same: `seconds` is how long a
request takes when it runs now, `cost_s` what it takes away from the server when executions are full. Rule: a correction multiplies
both, is learnt from what this process saw alone, and lives in memory, never in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from serving.scheduling.curve import Curve

WEIGHT = 0.05  # of the newest answer: about the last twenty count; a guess, not measured
SMALLEST, LARGEST = 0.25, 16.0  # one stall must not say that a curve is further off than this; a guess, not measured
NEARLY = 0.95  # of the best rate: a row more in every execution would gain less than noise; a guess, not measured
SHORTEST_S = 0.003  # an execution: beside shorter ones the way to the server and back leaves it idle (1 ms each way, and as much again)
SPREADS = 2.0  # mean absolute deviations kept free before a deadline: about 95 of 100 normal errors stay within


class Correction:
    """`factor`: actual time as a multiple of the curve's; `spread`: the mean absolute deviation of that factor.

    `packed_ratio`: what executions do, as a share of what full ones would, because requests of several rows leave places that none of
    them fits into. `left_ratio`: of what a server does, the share that others who send there leave to this process. `pace`: what executions
    take by themselves, as a multiple of the curve's, where others send there and their waits are in `factor`; 0 where that tells it.
    It never changes, and is no tuple because each answer makes two: as a tuple one takes five times as long.
    """

    __slots__ = ("factor", "left_ratio", "pace", "packed_ratio", "spread")

    def __init__(
        self,
        factor: float = 1.0,
        spread: float = 0.0,
        packed_ratio: float = 1.0,
        left_ratio: float = 1.0,
        pace: float = 0.0,
    ) -> None:
        self.factor: Final = factor
        self.spread: Final = spread
        self.packed_ratio: Final = packed_ratio
        self.left_ratio: Final = left_ratio
        self.pace: Final = pace


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
    factor = old.factor + WEIGHT * (seen - old.factor)
    spread = old.spread + WEIGHT * (abs(seen - old.factor) - old.spread)
    return Correction(factor, spread, old.packed_ratio, old.left_ratio, old.pace)


def packed(old: Correction, ratio: float) -> Correction:
    """What is believed after an answer from an execution that was packed so well."""
    if ratio == old.packed_ratio:
        return old
    packed_ratio = old.packed_ratio + WEIGHT * (ratio - old.packed_ratio)
    return Correction(old.factor, old.spread, packed_ratio, old.left_ratio, old.pace)


@dataclass(frozen=True, slots=True, eq=False)
class Full:
    """What a server does when there is enough to do, by its curve: rows of an execution, rows a second, and what two executions take.

    One object for a variant on a pool however it is corrected: what is in flight is counted by it. `model`: the public name of what it is
    a variant of. `gathers`: an instance that is idle waits a moment, so that all that is sent at once is one execution.
    """

    batch: int
    rate_rows_per_s: float
    flight_s: float
    model: str = ""
    gathers: bool = False


class Service:
    """One variant on one server: what an execution costs, how many run at once, of how many rows at most.

    It never changes. A dataclass would take four times as long to make, and every fourth answer makes one.
    """

    __slots__ = (
        "_careful",
        "_careful_full_s",
        "_factor",
        "batch",
        "bound",
        "correction",
        "curve",
        "full",
        "max_batch",
        "num_instances",
        "rate_rows_per_s",
        "without",
    )

    def __init__(
        self,
        curve: Curve,
        num_instances: int = 1,
        max_batch: int = 1,
        correction: Correction = UNCORRECTED,
        known: Full | None = None,
        without: frozenset[str] = frozenset(),
        model: str = "",
        *,
        gathers: bool = False,
    ) -> None:
        """`known` is computed where it is not given, of this `model`, which `gathers` or not; `without`: servers of the pool, by name, that
        do not serve it.
        """
        if num_instances < 1 or max_batch < 1:
            raise ValueError("a server has at least one instance, and an execution at least one row")
        full = known or _full(curve, max_batch, model, gathers)
        factor = correction.factor
        rate_rows_per_s = full.rate_rows_per_s * correction.packed_ratio * correction.left_ratio
        self.curve: Final = curve
        self.num_instances: Final = num_instances
        self.max_batch: Final = max_batch
        self.correction: Final = correction
        self.full: Final = full
        self.without: Final = without
        self.batch: Final = full.batch  # rows that make an execution full
        # Of executions as full as they get, on all instances, as corrected: our share.
        self.rate_rows_per_s: Final = num_instances * rate_rows_per_s / factor
        self.bound: Final = (
            2 * full.batch * num_instances
        )  # rows in flight: full executions run, and the next ones are there
        self._factor: Final = factor
        self._careful: Final = factor + SPREADS * correction.spread
        self._careful_full_s: Final = curve.seconds(full.batch) * self._careful

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
        """Seconds of the whole server that it takes, where executions are full; longer where others leave us a share of it."""
        return rows / self.rate_rows_per_s

    def work_s(self, rows: float) -> float:
        """The same, whoever else sends there: what it is demand for."""
        pace = self.correction.pace
        return rows / self.rate_rows_per_s * self.correction.left_ratio * (pace / self._factor if pace else 1.0)

    def device_s(self, rows: float) -> float:
        """Seconds of the whole server that it takes by itself: what it is charged for. Not corrected, so that prices stand still."""
        return self.curve.seconds(rows) / self.num_instances

    def packed_ratio(self, rows: float) -> float:
        """What an execution with so many rows does, as a share of what a full one would."""
        return min(1.0, rows / self.curve.seconds(rows) / self.full.rate_rows_per_s)

    def corrected_by(self, correction: Correction) -> Service:
        return Service(self.curve, self.num_instances, self.max_batch, correction, self.full, self.without)


def _full(curve: Curve, max_batch: int, model: str, gathers: bool) -> Full:
    """The smallest executions that are nearly as good as the best: larger ones only make everybody wait longer."""
    enough, seconds = NEARLY * curve.rate_rows_per_s(max_batch), curve.seconds
    good = (rows for rows in range(1, max_batch) if rows / seconds(rows) >= enough and seconds(rows) >= SHORTEST_S)
    batch = next(good, max_batch)
    return Full(batch, batch / seconds(batch), 2 * seconds(batch), model, gathers)
