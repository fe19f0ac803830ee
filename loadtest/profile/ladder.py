"""One request at a time on every rung, in short turns, so that the machine's mood hits all of them alike; then what the turns say together.

The order is another one in every round. Rule: a slice's first request counts only where it is the only one, and an interval is taken over
rounds, never over the requests of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtest.errors import CannotMeasure
from loadtest.profile.rungs import Way
from loadtest.profile.triton_times import TritonTimes
from serving.decisions.profile import RUNGS, Timing
from serving.measure.intervals import estimate
from serving.measure.percentiles import percentile
from serving.measure.rounds import rounds


@dataclass(slots=True)
class Step:
    """One rung of one variant at one batch size, and what its turns gave so far. `count` asks Triton for its statistics."""

    server: str
    batch_size: int
    way: Way
    count: Callable[[], TritonTimes] | None
    rounds: list[list[float]] = field(default_factory=list)
    counted: TritonTimes = field(default_factory=TritonTimes)

    def take_turn(self, slice_s: float) -> None:
        before = self.count() if self.count else None
        taken = self.way.times(slice_s)
        if self.count and before is not None:
            self.counted += self.count().since(before)
        self.rounds.append(taken)

    @property
    def timing(self) -> Timing | None:
        """None before its first turn."""
        medians = estimate([float(np.median(taken)) for taken in self.rounds])
        if medians is None:
            return None
        everything = np.array([one for taken in self.rounds for one in taken])
        return Timing(
            rung=self.way.rung,
            batch_size=self.batch_size,
            num_requests=len(everything),
            latency_p50_s=medians.median,
            latency_p99_s=percentile(everything, 0.99),
            low_s=medians.low,
            high_s=medians.high,
            num_bytes=self.way.num_bytes,
            **self.counted.means_s,
        )


def in_turns(
    steps: Sequence[Step],
    num_rounds: int,
    slice_s: float,
    limit_s: float,
    tell: Callable[[int], None],
    lost: Callable[[Step, CannotMeasure], None],
) -> None:
    """Each step once a round; of slow nets fewer rounds, but enough for an interval.

    `tell` takes the number that are over, `lost` what fails at once and is left out. Raises CannotMeasure: nothing works, or what worked
    does no more.
    """
    left_out: set[int] = set()
    for number, turn in enumerate(rounds(steps, num_rounds, limit_s)):
        for step in turn:
            if id(step) in left_out:
                continue
            try:
                step.take_turn(slice_s)
            except CannotMeasure as error:
                left_out.add(id(step))
                if number or len(left_out) == len(steps):
                    raise
                lost(step, error)
        tell(number + 1)


def ladder(steps: Sequence[Step], server: str, more: Sequence[Timing] = ()) -> tuple[Timing, ...]:
    """By batch size, from the engine alone to the gateway."""
    found = [*more]
    found += [timing for step in steps if step.server == server and (timing := step.timing) is not None]
    return tuple(sorted(found, key=lambda timing: (timing.batch_size, RUNGS.index(timing.rung))))
