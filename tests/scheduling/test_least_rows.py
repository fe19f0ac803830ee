"""Whoever is refused with the fewest rows and the most time it can have is refused with all others: refusing by the head rests on it."""

from __future__ import annotations

import heapq
import random

import pytest

from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate, Closed, choose, may_admit, turn_of
from serving.scheduling.curve import Curve
from serving.scheduling.line import Ticket
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica

CPU = Service(Curve(((1, 0.01), (8, 0.06))), 2, 8)
GPU = Service(Curve(((1, 0.02), (8, 0.022), (16, 0.04))), 1, 16, gathers=True)
KEPT_S = 0.005


@pytest.mark.parametrize("deadlines_s", [(0.05, 0.1, 0.4), (0.1,), (0.025, 0.03), (2.0,)])
@pytest.mark.parametrize("num_rows", [(1, 1, 2, 5, 8), (1,), (8,)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(it, marks=pytest.mark.thorough) for it in (1, 2))])
def test_more_rows_and_less_time_never_turn_a_refusal_into_an_answer(
    seed: int, num_rows: tuple[int, ...], deadlines_s: tuple[float, ...]
) -> None:
    generator = random.Random(seed)
    pools = [PoolQueue(name, [Replica(f"{name}-{n}") for n in range(2)]) for name in ("cpu", "gpu")]
    candidates = [Candidate(pools[0], CPU, 0.2), Candidate(pools[1], GPU, 1.0)]
    flying: Flying = []
    now, number, num_refused, num_by_head, num_kept = 0.0, 0, 0, 0, 0
    kept: dict[int, tuple[Closed, int]] = {}  # of a priority, with the rows that it was asked for
    for number in range(3000):
        now += generator.expovariate(1500 if 1 in num_rows else 400)
        while flying and flying[0][0] <= now:
            at, _, queue, ticket = heapq.heappop(flying)
            actual_s = queue.answered(at, ticket)
            candidates[queue is pools[1]].learn(ticket, actual_s)
            _send(at, queue, flying, generator)
        rows, priority = generator.choice(num_rows), generator.choice((1, 3, 5))
        deadline = now + generator.choice(deadlines_s)
        least, latest = generator.uniform(1, rows), deadline + generator.choice((0.0, 0.02))
        turn = turn_of(number)
        by_head = not may_admit(now, candidates, int(least), latest, priority, turn=turn)
        chosen = choose(now, candidates, rows, deadline, priority, turn=turn)
        assert not (by_head and chosen)
        if priority in kept and rows >= kept[priority][1] and kept[priority][0].holds(now, deadline):
            assert chosen is None
            num_kept += 1
        elif not may_admit(now, candidates, int(least), latest + KEPT_S, priority, turn=turn):
            kept[priority] = Closed(now, candidates, latest + KEPT_S), int(least)
        if chosen is None:
            num_refused += 1
            num_by_head += not may_admit(now, candidates, rows, deadline, priority, turn=turn)
        else:
            queue = chosen.candidate.queue
            ticket = queue.enter(now, None, chosen.candidate.service, rows, deadline, priority)
            if ticket.replica is not None:
                _fly(now, ticket, queue, flying, generator)
            _send(now, queue, flying, generator)
    assert (
        num_by_head >= 0.15 * num_refused
    )  # a bound that never refuses would keep the rule, too; in most cases it is above 0.8
    assert num_kept >= min(20, 0.02 * num_refused)  # the rule was tried


Flying = list[tuple[float, int, PoolQueue, Ticket]]


def _send(now: float, queue: PoolQueue, flying: Flying, random: random.Random) -> None:
    while (ticket := queue.take(now)) is not None:
        if ticket.replica is not None:
            _fly(now, ticket, queue, flying, random)


def _fly(now: float, ticket: Ticket, queue: PoolQueue, flying: Flying, random: random.Random) -> None:
    heapq.heappush(flying, (now + ticket.predicted_s * random.uniform(0.8, 1.3), id(ticket), queue, ticket))
