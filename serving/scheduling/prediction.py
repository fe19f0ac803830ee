"""When will work be done, going by the curve, by what waits before it, and by how far such predictions were off?

A `Service` is one variant on one server of a pool, whose instances batch. Two costs, which are not the same: `seconds` is how long a
request takes when it runs now, `cost_s` what it takes away from the server when executions are full. Rule: a correction multiplies
both, is learnt from what this process saw alone, and lives in memory, never in a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from serving.scheduling.curve import Curve

WEIGHT = 0.05  # of the newest answer: about the last twenty count; a guess, not measured
SMALLEST, LARGEST = 0.25, 16.0  # one stall must not say that a curve is further off than this; a guess, not measured
SPREADS = 2.0  # mean absolute deviations kept free before a deadline: about 95 of 100 normal errors stay within


@dataclass(frozen=True, slots=True)
class Work:
    """What a request asks of a device."""

    rows: float = 1.0


@dataclass(frozen=True, slots=True)
class Correction:
    """`factor`: actual time as a multiple of the curve's; `spread`: the mean absolute deviation of that factor."""

    factor: float = 1.0
    spread: float = 0.0


UNCORRECTED = Correction()


def corrected(old: Correction, predicted_s: float, actual_s: float) -> Correction:
    """What is believed after an answer that was predicted, by `old`, to take `predicted_s`, and took `actual_s`."""
    if predicted_s <= 0 or actual_s <= 0:
        return old
    off = min(max(actual_s / predicted_s, SMALLEST), LARGEST)
    factor = min(max(old.factor * (1 + WEIGHT * (off - 1)), SMALLEST), LARGEST)
    return Correction(factor, old.spread + WEIGHT * (abs(off - 1) * old.factor - old.spread))


@dataclass(frozen=True, slots=True)
class Service:
    """One variant on one server: what an execution costs, how many run at once, of how many rows at most."""

    curve: Curve
    num_instances: int = 1
    max_batch: int = 1
    correction: Correction = UNCORRECTED
    rate_rows_per_s: float = field(init=False)  # of full executions on all instances, as corrected
    first_bound: int = field(
        init=False
    )  # rows in flight to begin with: one execution runs on each instance, the next is there
    _factor: float = field(init=False, repr=False)
    _careful: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.num_instances < 1 or self.max_batch < 1:
            raise ValueError("a server has at least one instance, and an execution at least one row")
        factor = self.correction.factor
        rate = self.num_instances * self.curve.rate_rows_per_s(self.max_batch) / factor
        object.__setattr__(self, "rate_rows_per_s", rate)
        object.__setattr__(self, "first_bound", 2 * self.max_batch * self.num_instances)
        object.__setattr__(self, "_factor", factor)
        object.__setattr__(self, "_careful", factor + SPREADS * self.correction.spread)

    def seconds(self, rows: float) -> float:
        """From its start to its end, as corrected."""
        return self.curve.seconds(rows) * self._factor

    def careful_seconds(self, rows: float) -> float:
        """The same, with room for the error that such predictions had."""
        return self.curve.seconds(rows) * self._careful

    def cost_s(self, rows: float) -> float:
        """Seconds of the whole server that it takes, where executions are full."""
        return rows / self.rate_rows_per_s

    def device_s(self, rows: float) -> float:
        """Seconds of the whole server that it takes by itself: what it is charged for. Not corrected, so that prices stand still."""
        return self.curve.seconds(rows) / self.num_instances

    def learnt(self, predicted_s: float, actual_s: float) -> Service:
        return Service(
            self.curve, self.num_instances, self.max_batch, corrected(self.correction, predicted_s, actual_s)
        )


def predicted_finish(now: float, free_at: float, service: Service, work: Work) -> float:
    """On a server that has done all that is in flight there at `free_at`."""
    return max(now, free_at) + service.careful_seconds(work.rows)
