"""Two models on the servers of one pool: neither takes the other's room, neither waits for the other's, and each keeps its order."""

from __future__ import annotations

import heapq
from itertools import count
from math import inf
from random import Random

import pytest

from serving.scheduling.admission import PoolQueue
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Full, Service
from serving.scheduling.replica import Ticket
from tests.scheduling.servers import TENTH, pool

ALONE = Service(Curve(((1, 0.002),)))  # does not batch: two may be in flight
BATCHED = Service(Curve(((1, 0.010), (64, 0.012))), max_batch=64)  # twice about sixty


class Both:
    """A server with an instance of each model; the second takes what waits there together. Counts answers in time, and all others."""

    def __init__(self) -> None:
        self.queue: PoolQueue = pool()
        self.in_time = {ALONE: 0, BATCHED: 0}
        self.num_failed = {ALONE: 0, BATCHED: 0}
        self.waiting: dict[Service, list[Ticket]] = {ALONE: [], BATCHED: []}
        self.running: dict[Service, bool] = {ALONE: False, BATCHED: False}
        self.ends: list[tuple[float, int, Service, list[Ticket]]] = []
        self.number = count()

    def run(self, alone_rps: float, batched_rps: float, seconds: float) -> None:
        asks = [(n / alone_rps + 1e-5, 0, ALONE) for n in range(int(seconds * alone_rps))]
        asks += [(n / batched_rps, 1, BATCHED) for n in range(int(seconds * batched_rps))]
        for now, _, service in sorted(asks, key=lambda ask: ask[:2]):
            self.until(now)
            if self.queue.finish(now, service, 1, now + 0.1) is None:
                self.num_failed[service] += 1
                continue
            self.queue.admit(None, service, 1, now + 0.1)
            self.send(now)

    def until(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            at, _, service, batch = heapq.heappop(self.ends)
            self.running[service] = False
            for ticket in batch:
                self.queue.answered(at, ticket)
                self.in_time[service] += at <= ticket.deadline
            self.send(at)
            self.start(at, service)

    def send(self, now: float) -> None:
        while (ticket := self.queue.take(now)) is not None:
            if ticket.replica is None:
                self.num_failed[ticket.service] += 1
                continue
            self.waiting[ticket.service].append(ticket)
            self.start(now, ticket.service)

    def start(self, now: float, service: Service) -> None:
        waiting = self.waiting[service]
        if waiting and not self.running[service]:
            batch = waiting[: service.max_batch]
            del waiting[: service.max_batch]
            self.running[service] = True
            heapq.heappush(self.ends, (now + service.curve.seconds(len(batch)), next(self.number), service, batch))


@pytest.mark.parametrize("alone_rps", [10, 50, 100])
def test_neither_of_two_models_starves_the_other_where_the_server_can_do_both(alone_rps: int) -> None:
    server = Both()
    server.run(alone_rps, 2000, 4.0)
    assert sum(server.num_failed.values()) <= 0.005 * 4 * (2000 + alone_rps)
    assert server.in_time[ALONE] >= 0.95 * 4 * alone_rps
    assert server.in_time[BATCHED] >= 0.95 * 4 * 2000


def drain(queue: PoolQueue) -> list[Ticket]:
    return list(iter(lambda: queue.take(0.0), None))


def test_the_rows_of_one_model_do_not_fill_the_bound_of_another() -> None:
    queue = pool()
    for _ in range(100):
        queue.admit(None, BATCHED, 1, inf)
    drain(queue)
    queue.admit(None, ALONE, 1, inf)
    assert [ticket.service for ticket in drain(queue)] == [ALONE]


def test_one_without_room_does_not_keep_another_model_from_what_is_free() -> None:
    queue = pool()
    for number in range(4):
        queue.admit(number, TENTH, 1, 8.0)
    queue.admit("other", ALONE, 1, 9.0)
    assert [ticket.request for ticket in drain(queue)] == [0, 1, "other"]


def test_lower_priorities_of_one_model_never_pass_higher_ones_that_have_no_room() -> None:
    queue = pool()
    for _ in range(2):  # an execution that runs, and the next
        queue.admit("two", BATCHED, 64, 9.0)
    drain(queue)
    queue.admit("large", BATCHED, 64, 9.0, 1)
    queue.admit("small", BATCHED, 1, 9.0, 5)
    assert drain(queue) == []
    queue.admit("other", ALONE, 1, 9.0, 5)
    assert [ticket.request for ticket in drain(queue)] == ["other"]


def test_a_correction_is_of_the_same_model() -> None:
    queue = pool()
    one, two = TENTH, TENTH.corrected_by(TENTH.correction)
    for service in (one, two, two):
        queue.admit(None, service, 1, inf)
    assert len(drain(queue)) == 2
    assert rows_in_flight(queue) == {TENTH.full: 2}


def rows_in_flight(queue: PoolQueue) -> dict[Full, float]:
    return {full: flight.rows for full, flight in queue.replicas[0].flights.items()}


def test_what_ended_is_in_flight_no_more() -> None:
    queue = pool()
    for service in (ALONE, BATCHED, ALONE):
        queue.admit(None, service, 1, inf)
    replica, tickets = queue.replicas[0], drain(queue)
    one, other, last = sorted(tickets, key=lambda ticket: ticket.service is BATCHED)
    queue.answered(0.1, last)
    assert rows_in_flight(queue) == {ALONE.full: 2}
    queue.answered(0.1, one)
    queue.answered(0.1, other)
    assert (replica.in_flight, replica.flights) == (0, {})


def test_a_long_line_of_one_model_does_not_make_another_late() -> None:
    """Each has instances of its own; what they take from each other is learnt from answers."""
    queue = pool()
    for _ in range(50):
        queue.admit(None, TENTH, 1, 0.9)
    drain(queue)
    assert queue.finish(0.0, TENTH, 1, 1.0) is None
    assert queue.finish(0.0, ALONE, 1, 0.01) is not None


@pytest.mark.parametrize("seed", range(10))
def test_take_has_nothing_to_do_for_one_who_came_unless_the_queue_said_so(seed: int) -> None:
    random, now = Random(seed), 0.0
    services = [Service(Curve(((1, 0.010), (8, 0.010 + 0.001 * n))), max_batch=8) for n in range(3)]
    queue = pool(num_replicas=2)
    flying: list[Ticket] = []
    outcomes = set()

    def drain() -> list[Ticket]:
        taken = list(iter(lambda: queue.take(now), None))
        flying.extend(ticket for ticket in taken if ticket.replica is not None)
        return taken

    for _ in range(300):
        now += random.uniform(0, 0.004)
        if flying and random.random() < 0.5:
            queue.answered(now, flying.pop(random.randrange(len(flying))), is_good=random.random() < 0.9)
            drain()
        if queue.expired(now):
            drain()
        rows, priority = random.choice([1, 2, 8]), random.randint(1, 5)
        ticket = queue.enter(now, None, random.choice(services), rows, now + random.uniform(0.01, 0.6), priority)
        if ticket.in_line:
            may_send, taken = queue.may_send(ticket), drain()
            assert may_send or not taken
            outcomes.add((may_send, bool(taken)))
        elif ticket.replica is not None:
            flying.append(ticket)
    assert outcomes == {(False, False), (True, False), (True, True)}
    following = queue.next_deadline
    assert following == min((ticket.deadline for ticket in queue.expired(inf)), default=inf)
