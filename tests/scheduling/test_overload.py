"""More than a batching server can do: is what was let in done in time, and is the server kept busy?

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
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica, Ticket

MAX_BATCH = 32
DEADLINE_S, LOAD_S = 0.25, 10.0
SLOW = Curve(((1.0, 0.020), (8.0, 0.080), (32.0, 0.320)))
FAST = Curve(((1.0, 0.008), (8.0, 0.050), (32.0, 0.200)))
SHARED = Curve(((1.0, 0.010), (8.0, 0.050), (32.0, 0.200)))
FLAT = Curve(((1.0, 0.005), (32.0, 0.012)))


class Gateway:
    def __init__(self, curve: Curve) -> None:
        self.queue = PoolQueue("pool", [Replica("server")])
        self.candidate = Candidate(self.queue, Service(curve, 1, MAX_BATCH), 1.0)


@dataclass
class Batching:
    """One server, the gateways before it, and what came of the requests."""

    curve: Curve
    num_gateways: int = 1
    at_once: bool = False  # a gateway looks at its queue only when all answers of an execution are in
    overhead_s: float = 0.0005  # from the end of an execution until a gateway has the answers
    good: int = 0
    late: int = 0
    expired: int = 0
    refused: int = 0
    waiting: list[tuple[Gateway, Ticket]] = field(default_factory=list)
    is_running: bool = False

    def __post_init__(self) -> None:
        self.gateways = [Gateway(self.curve) for _ in range(self.num_gateways)]
        self.capacity_rps = self.curve.rate_rows_per_s(MAX_BATCH)
        self.events: list[tuple[float, int, list[tuple[Gateway, Ticket]] | None]] = []
        self.number = count()

    @property
    def num_let_in(self) -> int:
        return self.good + self.late + self.expired

    def run(self, times: float) -> None:
        """Under so many times its capacity."""
        chance, at = random.Random(1), 0.0
        while (at := at + chance.expovariate(times * self.capacity_rps)) < LOAD_S:
            heapq.heappush(self.events, (at, next(self.number), None))
        while self.events:
            now, number, batch = heapq.heappop(self.events)
            if batch is None:
                self.arrive(now, self.gateways[number % self.num_gateways])
            else:
                self.is_running = False
                self.start(now)
                self.answer(now + self.overhead_s, batch)
            self.start(now)

    def arrive(self, now: float, gateway: Gateway) -> None:
        deadline = now + DEADLINE_S
        if choose(now, [gateway.candidate], 1, deadline) is None:
            self.refused += 1
            return
        gateway.queue.admit(None, gateway.candidate.service, 1, deadline)
        self.send(now, gateway)

    def answer(self, now: float, batch: list[tuple[Gateway, Ticket]]) -> None:
        for gateway, ticket in batch:
            gateway.candidate.learn(ticket, gateway.queue.answered(now, ticket))
            self.good += now <= ticket.deadline
            self.late += now > ticket.deadline
            if not self.at_once:
                self.send(now, gateway)
        for gateway in self.gateways:
            self.send(now, gateway)

    def send(self, now: float, gateway: Gateway) -> None:
        while (ticket := gateway.queue.take(now)) is not None:
            if ticket.replica is None:
                self.expired += 1
            else:
                self.waiting.append((gateway, ticket))

    def start(self, now: float) -> None:
        if not self.is_running and self.waiting:
            batch, self.waiting = self.waiting[:MAX_BATCH], self.waiting[MAX_BATCH:]
            self.is_running = True
            heapq.heappush(self.events, (now + self.curve.seconds(len(batch)), next(self.number), batch))


@pytest.mark.parametrize("at_once", [False, True], ids=["answers one by one", "answers at once"])
@pytest.mark.parametrize(
    "curve", [SLOW, pytest.param(FAST, marks=pytest.mark.thorough), FLAT], ids=["slow", "fast", "flat"]
)
def test_a_batching_server_with_three_times_too_much_to_do_is_used_fully_and_answers_in_time(
    curve: Curve, at_once: bool
) -> None:
    server = Batching(curve, at_once=at_once)
    server.run(3.0)
    assert server.good / LOAD_S >= 0.95 * server.capacity_rps
    assert server.late <= 0.01 * server.good
    assert server.expired <= 0.03 * server.num_let_in  # what cannot be in time is refused, not let in
    assert server.refused > server.num_let_in


@pytest.mark.parametrize(
    "curve",
    [SLOW, FAST, SHARED, pytest.param(FLAT, marks=pytest.mark.thorough)],
    ids=["slow", "fast", "shared", "flat"],
)
def test_what_is_learnt_of_a_server_that_keeps_to_its_curve_is_that_it_does(curve: Curve) -> None:
    server = Batching(curve)
    server.run(3.0)
    assert 0.9 <= server.gateways[0].candidate.service.correction.factor <= 1.1


@pytest.mark.parametrize("curve", [FAST, SHARED], ids=["fast", "shared"])
def test_two_gateways_on_a_batching_server_answer_in_time_at_twice_what_it_can_do(curve: Curve) -> None:
    server = Batching(curve, num_gateways=2)
    server.run(2.0)
    assert server.good / LOAD_S >= 0.95 * server.capacity_rps
    assert server.late <= 0.02 * server.good
    assert server.expired <= 0.03 * server.num_let_in
    for gateway in server.gateways:  # each gets half of it
        assert 1.5 <= gateway.candidate.service.correction.factor <= 2.5
