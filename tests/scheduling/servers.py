"""Pools whose servers do exactly what their curves say, one request after another: what the model promises can be held to it."""

from __future__ import annotations

import heapq
from itertools import count

from serving.scheduling.admission import PoolQueue
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica, Ticket

TENTH = Service(Curve(((1, 0.1),)))  # a request takes a tenth of a second and there is no batching
FIFTH = Service(Curve(((1, 0.2),)))


def pool(name: str = "cpu", num_replicas: int = 1) -> PoolQueue:
    return PoolQueue(name, [Replica(f"{name}-{n}") for n in range(num_replicas)])


class Exact:
    """Runs pools; a server is done with a request when `predicted_s` is over."""

    def __init__(self, *queues: PoolQueue) -> None:
        self.queues = queues
        self.done: list[tuple[Ticket, float]] = []
        self.late: list[Ticket] = []
        self._flying: list[tuple[float, int, PoolQueue, Ticket]] = []
        self._number = count()

    def send(self, now: float) -> None:
        for queue in self.queues:
            while (ticket := queue.take(now)) is not None:
                if ticket.replica is None:
                    self.late.append(ticket)
                else:
                    heapq.heappush(self._flying, (now + ticket.predicted_s, next(self._number), queue, ticket))

    def until(self, now: float) -> None:
        while self._flying and self._flying[0][0] <= now:
            at, _, queue, ticket = heapq.heappop(self._flying)
            queue.answered(at, ticket)
            self.done.append((ticket, at))
            self.send(at)

    def ask(
        self, queue: PoolQueue, service: Service, now: float, deadline: float, priority: int = 3, rows: int = 1
    ) -> Ticket | None:
        self.until(now)
        if queue.finish(now, service, rows, deadline, priority) is None:
            return None
        ticket = queue.admit(None, service, rows, deadline, priority)
        self.send(now)
        return ticket
