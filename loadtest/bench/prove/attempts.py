"""Was a load fired when it was due, and if not, does another try of the same trial?

A generator that was late has measured itself. That is the machine's doing and not the servers', so the trial is void and made again, a few
times; never one whose values were merely bad.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from loadtest.errors import CannotMeasure
from loadtest.sending.sender import Load
from loadtest.sending.sent_request import Shot, lag
from loadtest.validity import MAX_LAG_RATIO

NUM_ATTEMPTS = 3  # at each trial
T = TypeVar("T")


class Lagged(CannotMeasure):
    """The load generator was late, so that the trial is void."""


def on_time(load: Load, deadline_s: float) -> list[Shot]:
    """What was seen, if it was fired when it was due. Raises Lagged."""
    lag_s, is_void = lag(load.shots, deadline_s)
    if is_void:
        raise Lagged(
            f"the load generator lagged by {lag_s * 1000:.0f} ms at p99, more than {MAX_LAG_RATIO:.0%} of the deadline: "
            "leave the machine more time"
        )
    return load.shots


def attempts(once: Callable[[int], T]) -> T:
    """What `once` gives, with the number of the attempt from 0 on. Raises Lagged where the generator always lags."""
    for number in range(NUM_ATTEMPTS - 1):
        try:
            return once(number)
        except Lagged as error:
            print(f"a trial is void: {error}", file=sys.stderr)
    return once(NUM_ATTEMPTS - 1)
