"""Three times what a batching server can do: is what was let in done in time, and is the server kept busy?

The server runs by its curve and takes whatever waits there into its next execution, as Triton does. Answers of one execution are handed
over one by one, each replaced before the next is looked at: that is how a gateway sees them.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from itertools import count

import pytest

from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate, choose
from serving.scheduling.curve import Curve
from serving.scheduling.line import Ticket
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica

MAX_BATCH = 32
DEADLINE_S, LOAD_S, TIMES = 0.25, 10.0, 3.0
SLOW = ((1.0, 0.020), (8.0, 0.080), (32.0, 0.320))
FAST = ((1.0, 0.008), (8.0, 0.050), (32.0, 0.200))
FLAT = ((1.0, 0.005), (32.0, 0.012))


@dataclass
class Batching:
    """One server, its queue in the gateway, and what came of the requests."""

    curve: Curve
    at_once: bool  # the gateway looks at its queue only when all answers of an execution are in
    overhead_s: float  # from the end of an execution until the gateway has the answers
    good: int = 0
    late: int = 0
    expired: int = 0
    refused: int = 0
    waiting: list[Ticket] = field(default_factory=list)
    is_running: bool = False

    def __post_init__(self) -> None:
        self.queue = PoolQueue("pool", [Replica("server")])
        self.candidate = Candidate(self.queue, Service(self.curve, 1, MAX_BATCH), 1.0)
        self.events: list[tuple[float, int, list[Ticket] | None]] = []
        self.number = count()

    def run(self, rate_rps: float) -> None:
        chance, at = random.Random(1), 0.0
        while (at := at + chance.expovariate(rate_rps)) < LOAD_S:
            heapq.heappush(self.events, (at, next(self.number), None))
        while self.events:
            now, _, batch = heapq.heappop(self.events)
            if batch is None:
                self.arrive(now)
            else:
                self.is_running = False
                self.start(now)
                self.answer(now + self.overhead_s, batch)
            self.start(now)

    def arrive(self, now: float) -> None:
        deadline = now + DEADLINE_S
        if choose(now, [self.candidate], 1, deadline) is None:
            self.refused += 1
            return
        self.queue.admit(None, self.candidate.service, 1, deadline)
        self.send(now)

    def answer(self, now: float, batch: list[Ticket]) -> None:
        for ticket in batch:
            self.candidate.learn(ticket, self.queue.answered(now, ticket))
            self.good += now <= ticket.deadline
            self.late += now > ticket.deadline
            if not self.at_once:
                self.send(now)
        self.send(now)

    def send(self, now: float) -> None:
        while (ticket := self.queue.take(now)) is not None:
            if ticket.replica is None:
                self.expired += 1
            else:
                self.waiting.append(ticket)

    def start(self, now: float) -> None:
        if not self.is_running and self.waiting:
            batch, self.waiting = self.waiting[:MAX_BATCH], self.waiting[MAX_BATCH:]
            self.is_running = True
            heapq.heappush(self.events, (now + self.curve.seconds(len(batch)), next(self.number), batch))


@pytest.mark.parametrize("at_once", [False, True], ids=["answers one by one", "answers at once"])
@pytest.mark.parametrize("points", [SLOW, FAST, FLAT], ids=["slow", "fast", "flat"])
def test_a_batching_server_with_too_much_to_do_is_used_fully_and_answers_in_time(
    points: tuple[tuple[float, float], ...], at_once: bool
) -> None:
    curve = Curve(points)
    capacity_rps = curve.rate_rows_per_s(MAX_BATCH)
    server = Batching(curve, at_once, overhead_s=0.0005)
    server.run(TIMES * capacity_rps)
    let_in = server.good + server.late + server.expired
    assert server.good / LOAD_S >= 0.95 * capacity_rps
    assert server.late <= 0.01 * server.good
    assert server.expired <= 0.10 * let_in
    assert server.refused > let_in
    assert 0.9 <= server.candidate.service.correction.factor <= 1.2  # the curve is right, and stays so
