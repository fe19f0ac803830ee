"""A simulated Triton: instances that take what waits, as much as fits into one execution, and are done when the curve says.

It knows nothing of deadlines, as Triton does not. Rule: what was taken is carried out; nothing is cancelled.
"""

from __future__ import annotations

from collections import deque

from serving.scheduling.line import Ticket
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica


class Server:
    __slots__ = ("born", "num_answered", "num_running", "replica", "service", "waiting")

    def __init__(self, name: str, service: Service, born: float) -> None:
        self.replica = Replica(name)
        self.service = service
        self.born = born
        self.num_running = 0
        self.num_answered = 0  # requests
        self.waiting: deque[Ticket] = deque()

    @property
    def is_idle(self) -> bool:
        return self.num_running == 0 and not self.waiting

    def begin(self) -> tuple[float, list[Ticket]] | None:
        """An instance takes what fits; how long that runs by the curve. None: no instance, or no work."""
        if not self.waiting or self.num_running >= self.service.num_instances:
            return None
        batch = [self.waiting.popleft()]
        rows = batch[0].rows
        while self.waiting and rows + self.waiting[0].rows <= self.service.max_batch:
            rows += self.waiting[0].rows
            batch.append(self.waiting.popleft())
        self.num_running += 1
        return self.service.curve.seconds(rows), batch

    def end(self, num_answered: int) -> None:
        self.num_running -= 1
        self.num_answered += num_answered
