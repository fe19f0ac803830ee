"""Gateways before one server that runs by its curve, without clocks, sockets and processes: what becomes of more than it can do?

The server takes whatever waits there into its next execution, as Triton does. Answers of one execution are handed over one by one, each
replaced before the next is looked at: that is how a gateway sees them. What decides is the gateways' own code.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate, choose
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica, Ticket

MAX_BATCH = 32
DEADLINE_S, LOAD_S, STEADY_S = 0.25, 10.0, 1.0
POLL_S = 0.5  # as often as a gateway asks a server what it has done


class Gateway:
    def __init__(self, curve: Curve) -> None:
        self.queue = PoolQueue("pool", [Replica("server")])
        self.candidate = Candidate(self.queue, Service(curve, 1, MAX_BATCH), 1.0)
        self.num_good = 0

    def look(self, num_answered: int, rows_per_s: float) -> None:
        """At what the server has answered to all so far, and did lately."""
        [replica] = self.queue.replicas
        if replica.compare(num_answered, replica.num_answered, 1.0):
            self.candidate.share_with(replica.others_ratio * rows_per_s, 1.0)


@dataclass
class Batching:
    """One server, the gateways before it, and what came of the requests."""

    curve: Curve
    num_gateways: int = 1
    at_once: bool = False  # a gateway looks at its queue only when all answers of an execution are in
    overhead_s: float = 0.0005  # from the end of an execution until a gateway has the answers
    steady_s: float = 0.0  # good and late ones are counted from then on
    good: int = 0
    late: int = 0
    num_late_first: int = 0
    expired: int = 0
    refused: int = 0
    waiting: list[tuple[Gateway, Ticket]] = field(default_factory=list)
    is_running: bool = False
    num_executed: int = 0

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
        num_before, look_at = 0, POLL_S
        while (at := at + chance.expovariate(times * self.capacity_rps)) < LOAD_S:
            heapq.heappush(self.events, (at, next(self.number), None))
        while self.events:
            now, number, batch = heapq.heappop(self.events)
            while now >= look_at:
                for gateway in self.gateways:
                    gateway.look(self.num_executed, (self.num_executed - num_before) / POLL_S)
                num_before, look_at = self.num_executed, look_at + POLL_S
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
            is_late, is_counted = now > ticket.deadline, self.steady_s <= now < LOAD_S or not self.steady_s
            self.good += is_counted and not is_late
            self.late += is_counted and is_late
            gateway.num_good += is_counted and not is_late
            self.num_late_first += is_late and now < self.steady_s
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
            self.num_executed += len(batch)
            heapq.heappush(self.events, (now + self.curve.seconds(len(batch)), next(self.number), batch))


def verdicts(
    curve: Curve, counts: Sequence[int], times: float, aims: tuple[AtLeast, AtMost, AtMost]
) -> Iterator[Verdict]:
    """Of goodput, late answers and 504 under so many times the server's capacity, after the second in which gateways learn their part."""
    goodput, late, expired = aims
    for num_gateways in counts:
        server = Batching(curve, num_gateways, steady_s=STEADY_S)
        server.run(times)
        name = f"simulated {times:g} × overload, {num_gateways} gateway{'' if num_gateways == 1 else 's'}, one pool"
        rate_rps, parts = server.good / (LOAD_S - STEADY_S), [gateway.num_good for gateway in server.gateways]
        note = f"{rate_rps:.1f} of {server.capacity_rps:.0f} requests/s; least ÷ most of a gateway {min(parts) / max(parts):.2f}"
        yield Verdict(f"{name}: goodput ÷ capacity", rate_rps / server.capacity_rps, goodput, note)
        num_first = f"{server.num_late_first} in the first second"
        yield Verdict(f"{name}: late ÷ answered", server.late / (server.good + server.late), late, num_first)
        yield Verdict(f"{name}: 504 ÷ let in", server.expired / server.num_let_in, expired, f"{server.expired}")
