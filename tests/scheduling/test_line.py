"""Blocks give the answers that going through everybody would give, and a later due time never turns a yes into a no."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.scheduling.curve import Curve
from serving.scheduling.line import MAX_BLOCK, Line
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Ticket

SERVICE = Service(Curve(((1, 1.0),)))
STEP = 1 / 64  # all times here are multiples of it, so that sums are exact


def ticket(due: float, cost_s: float) -> Ticket:
    return Ticket(None, SERVICE, 1, due, due, cost_s, 3)


def naive_fits(waiting: list[tuple[float, float]], share: float, start: float, due: float, cost_s: float) -> bool:
    """Goes through everybody."""
    order = sorted([*[(d, 0, c) for d, c in waiting], (due, 1, cost_s)])
    own, finish = order.index((due, 1, cost_s)), start
    for at, (their_due, _, cost) in enumerate(order):
        finish += share * cost
        if at >= own and finish > their_due:
            return False
    return True


times = st.integers(0, 6400).map(lambda n: n * STEP)
costs = st.integers(1, 128).map(lambda n: n * STEP)
waiting = st.lists(st.tuples(times, costs), max_size=5 * MAX_BLOCK)
shares = st.sampled_from([1.0, 0.5, 0.25])


def line_of(tickets: list[tuple[float, float]], share: float) -> Line:
    line = Line(share)
    for due, cost_s in tickets:
        line.add(ticket(due, cost_s))
    return line


@settings(deadline=None)  # of one example: machines are busy
@given(waiting, shares, times, times, costs)
def test_the_line_says_what_going_through_everybody_says(
    tickets: list[tuple[float, float]], share: float, start: float, due: float, cost_s: float
) -> None:
    assert line_of(tickets, share).fits(start, due, cost_s) == naive_fits(tickets, share, start, due, cost_s)


@settings(deadline=None)  # of one example: machines are busy
@given(waiting, shares, times, times, costs, times)
def test_who_fits_also_fits_with_more_time(
    tickets: list[tuple[float, float]], share: float, start: float, due: float, cost_s: float, more: float
) -> None:
    line = line_of(tickets, share)
    if line.fits(start, due, cost_s):
        assert line.fits(start, due + more, cost_s)


@settings(deadline=None)  # of one example: machines are busy
@given(waiting, shares, times, times, costs)
def test_the_line_opens_exactly_when_it_says(
    tickets: list[tuple[float, float]], share: float, start: float, due_in_s: float, cost_s: float
) -> None:
    line, now = line_of(tickets, share), 0.0
    opens = line.opens_at(now, start, due_in_s, cost_s)
    if opens == inf:
        assert due_in_s < share * cost_s
        return
    assert line.fits(max(start, now), opens + due_in_s, cost_s)
    if opens > now:
        assert not line.fits(start, opens - STEP / 2 + due_in_s, cost_s)


@settings(deadline=None)  # of one example: machines are busy
@given(waiting, st.lists(st.integers(0, 200), max_size=60), shares)
def test_those_who_leave_are_as_if_they_had_never_come(
    tickets: list[tuple[float, float]], leaving: list[int], share: float
) -> None:
    line = Line(share)
    here = [ticket(due, cost_s) for due, cost_s in tickets]
    for one in here:
        line.add(one)
    for at in leaving:
        if at < len(here):
            line.remove(here.pop(at))
    assert [t.due for t in line] == sorted(t.due for t in here)
    assert line.num_waiting == len(here)
    assert line.total_s == sum(t.cost_s for t in here)
    rest = [(t.due, t.cost_s) for t in here]
    never_longer = line_of(rest, share)
    for due in (0.0, 10.0, 50.0, 100.0):
        assert line.fits(0.0, due, STEP) == naive_fits(rest, share, 0.0, due, STEP)
        assert line.opens_at(0.0, 0.0, due, STEP) == never_longer.opens_at(0.0, 0.0, due, STEP)


def test_equals_stand_in_the_order_they_came() -> None:
    line, first, second = Line(), ticket(1.0, STEP), ticket(1.0, STEP)
    line.add(first)
    line.add(second)
    assert [*line] == [first, second]
    assert line.first is first


def test_another_number_of_servers_changes_what_fits() -> None:
    line = line_of([(1.0, 0.75)], 1.0)
    assert not line.fits(0.0, 0.5, 0.5)
    line.reshare(0.5)
    assert line.fits(0.0, 0.5, 0.5)


def test_who_never_waited_leaves_without_a_trace() -> None:
    line = line_of([(1.0, 0.5)], 1.0)
    line.remove(ticket(1.0, 0.5))
    assert (line.num_waiting, line.total_s) == (1, 0.5)


@pytest.mark.parametrize("number", [10, 400])
def test_a_look_at_a_long_line_passes_blocks_and_not_tickets(number: int) -> None:
    line = line_of([(at * STEP, STEP / 1000) for at in range(number)], 1.0)
    assert max(len(block.tickets) for block in line._blocks) <= MAX_BLOCK
    assert len(line._blocks) <= 1 + 2 * number / MAX_BLOCK
