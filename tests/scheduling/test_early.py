"""How early those who wait are to be done: up after one that is late, down after many that are not, and gone where nobody waits."""

from __future__ import annotations

import heapq
from itertools import count

import pytest

from serving.scheduling.margin import FADE_S, LATE_SHARE, Early
from serving.scheduling.replica import Ticket
from tests.scheduling.servers import TENTH, pool


def test_one_of_five_hundred_late_keeps_it_where_it_is() -> None:
    early = Early(5)
    early.seconds[2] = 0.05
    for number in range(5000):
        early.saw(0.0, 2, 0.1, is_late=number % 501 == 0)
    assert early.seconds[2] == pytest.approx(0.05, abs=0.006)
    assert LATE_SHARE == 0.002


def test_it_stays_between_nothing_and_two_executions() -> None:
    early = Early(5)
    early.saw(0.0, 0, 0.1, is_late=False)
    assert early.seconds[0] == 0.0
    for _ in range(100):
        early.saw(0.0, 0, 0.1, is_late=True)
    assert early.seconds[0] == pytest.approx(0.2)


def test_it_fades_where_nobody_waits_and_only_there() -> None:
    early = Early(2)
    for at in (0, 1):
        early.saw(0.0, at, 1.0, is_late=True)
    for second in range(1, 200):
        early.saw(second, 1, 1.0, is_late=second % 100 == 0)
        early.fade(second)
    assert early.seconds[0] == 0.0
    assert early.seconds[1] > 0.0


def test_it_halves_once_in_a_while_however_often_it_is_asked() -> None:
    early = Early(1)
    early.seconds[0] = 1.0
    for number in range(1000):
        early.fade(FADE_S + number / 1000)
    assert early.seconds[0] == 0.5


def test_a_line_that_lets_nobody_in_to_wait_opens_again() -> None:
    """Twice what the server can do, with deadlines of 2.7 executions, after something that made all late."""
    queue, free_at = pool(), 0.0
    for _ in range(40):
        queue._early.saw(0.0, 2, 0.1, is_late=True)
    flying: list[tuple[float, int, Ticket]] = []
    number, num_waited = count(), 0
    for now in (at * 0.05 for at in range(2000)):
        while flying and flying[0][0] <= now:
            at, _, ticket = heapq.heappop(flying)
            queue.answered(at, ticket)
            free_at = _send(queue.take(at), at, free_at, flying, number)
        if queue.finish(now, TENTH, 1, now + 0.27) is not None:
            ticket = queue.enter(now, None, TENTH, 1, now + 0.27)
            num_waited += ticket.in_line
            free_at = _send(ticket, now, free_at, flying, number)
    assert num_waited > 0


def _send(
    ticket: Ticket | None, now: float, free_at: float, flying: list[tuple[float, int, Ticket]], number: count[int]
) -> float:
    if ticket is None or ticket.replica is None:
        return free_at
    free_at = max(free_at, now) + 0.1
    heapq.heappush(flying, (free_at, next(number), ticket))
    return free_at
