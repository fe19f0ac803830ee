"""How much safety margin do waiting requests need, so that one in five hundred is late?

A pool that rides along its deadlines misses some, because executions do not take what they should. Learnt from those who waited: who is
too late moves it up much, who is in time down a little. Rule: it also fades where nobody waits, because one that is so large that nobody
is let in to wait would learn nothing any more.
"""

from __future__ import annotations

from math import inf

LATE_SHARE = 0.002  # of those that waited, that may be let in and then be too late
LATE_STEP = 0.05  # of a largest execution, up after one that was too late; a guess, not measured
MOST = 2.0  # largest executions: as much is in flight before whoever waits
FADE_S = 5.0  # without anybody that waited, by which it halves; a guess, not measured
LEAST_S = 1e-6  # less is nothing


class Early:
    """`seconds`: one for each priority, the highest first. `fades_at`: when to call `fade` again."""

    __slots__ = ("_moved_at", "fades_at", "seconds")

    def __init__(self, num_priorities: int) -> None:
        self.seconds = [0.0] * num_priorities
        self._moved_at = [-inf] * num_priorities
        self.fades_at = -inf

    def saw(self, now: float, at: int, largest_s: float, *, is_late: bool) -> None:
        """One of those who waited, and how long the largest execution of its variant takes."""
        self._moved_at[at] = now
        if is_late:
            self.seconds[at] = min(MOST * largest_s, self.seconds[at] + LATE_STEP * largest_s)
        else:
            self.seconds[at] = max(0.0, self.seconds[at] - LATE_SHARE * LATE_STEP * largest_s)

    def fade(self, now: float) -> None:
        """Nothing before `fades_at`."""
        if now < self.fades_at:
            return
        self.fades_at = now + FADE_S
        for at, seconds in enumerate(self.seconds):
            if seconds and now - self._moved_at[at] >= FADE_S:
                self.seconds[at] = seconds / 2 if seconds > LEAST_S else 0.0
