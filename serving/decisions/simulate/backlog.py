"""Who waits for however long, for a pool that is cold or behind?

A line in the order of arrival, in which nobody will be in time: it is emptied once a second, by as many rows as the servers could do in
full executions. So how late they are is told to a second. Rule: only those stand here who would be late anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


class Backlog:
    def __init__(self) -> None:
        self._waiting: deque[tuple[float, float, int]] = deque()
        self._able = 0.0  # rows that could be done and were not enough for the next
        self.rows = 0.0

    def add(self, came: float, rows: float, weight: int) -> None:
        self._waiting.append((came, rows, weight))
        self.rows += rows * weight

    def drain(self, able_rows: float) -> Iterator[tuple[float, int]]:
        """When they came, and how many."""
        self._able += able_rows
        while self._waiting and self._able > 0:
            came, rows, weight = self._waiting.popleft()
            number = min(weight, max(1, int(self._able / rows)))
            if number < weight:
                self._waiting.appendleft((came, rows, weight - number))
            self._able -= number * rows
            self.rows -= number * rows
            yield came, number
        if not self._waiting:
            self._able, self.rows = 0.0, 0.0
