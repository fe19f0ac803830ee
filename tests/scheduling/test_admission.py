"""Who is let in, sent where, told to come back when; against servers that do exactly what their curves say."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate
from serving.scheduling.curve import Curve
from serving.scheduling.outliers import WELL, Health, ejected
from serving.scheduling.prediction import Correction, Service
from serving.scheduling.replica import Ticket
from tests.scheduling.servers import FIFTH, TENTH, Exact, pool

GPU = Service(Curve(((1, 0.01), (8, 0.02))), num_instances=2, max_batch=8)


def fill(queue_size: int, deadline: float | None = None) -> tuple[Exact, list[Ticket]]:
    """A tenth of a second each, the last in time just so."""
    run = Exact(pool())
    last = queue_size / 10 if deadline is None else deadline
    tickets = [run.ask(run.queues[0], TENTH, 0.0, last) for _ in range(queue_size)]
    return run, [ticket for ticket in tickets if ticket]


# -- refused ----------------------------------------------------------------------------------------------------------


def test_what_takes_longer_than_its_deadline_is_never_let_in() -> None:
    queue = pool()
    assert queue.finish(0.0, TENTH, 1, 0.09) is None
    assert queue.opens_at(0.0, TENTH, 1, 0.09) == inf


def test_a_pool_without_a_living_server_takes_nothing_and_promises_nothing() -> None:
    queue = pool()
    queue.replicas[0].is_up = False
    queue.serve_with(queue.replicas)
    assert queue.finish(0.0, TENTH, 1, 9.0) is None
    assert queue.opens_at(0.0, TENTH, 1, 9.0) == inf


def test_a_request_that_would_wait_too_long_is_refused_at_once() -> None:
    run, _ = fill(5)  # half a second of work
    queue = run.queues[0]
    assert queue.finish(0.0, TENTH, 1, 0.59) is None
    assert queue.finish(0.0, TENTH, 1, 0.6) is not None


def test_who_is_refused_leaves_nothing_behind() -> None:
    """A variant that is measured again is another one to the queue: there may be many in the life of a gateway."""
    queue = pool()
    for _ in range(3):
        again = Service(TENTH.curve)
        for _ in range(2):
            queue.enter(0.0, None, again, 1, 9.0)  # all that may be in flight
        assert queue.finish(0.0, again, 1, 0.15) is None
        assert queue.opens_at(0.0, again, 1, 0.15) < inf
    assert not queue._lines


def test_a_request_that_would_make_another_late_is_refused() -> None:
    run, _ = fill(5, deadline=0.5)  # the last of them is done when its time is over
    queue = run.queues[0]
    assert queue.finish(0.0, TENTH, 1, 0.45) is None
    assert queue.finish(0.0, TENTH, 1, 0.6) is not None  # behind them it harms nobody


def test_a_higher_priority_goes_before_and_may_make_lower_ones_late() -> None:
    run, _ = fill(5, deadline=0.5)
    queue = run.queues[0]
    first = run.ask(queue, TENTH, 0.0, 0.35, priority=1)
    assert first is not None
    run.until(9.0)
    assert [ticket for ticket, _ in run.done].index(first) == 2  # behind the two that were under way
    assert len(run.late) == 1


def test_a_lower_priority_waits_for_all_higher_ones() -> None:
    run, _ = fill(5)
    queue = run.queues[0]
    assert queue.finish(0.0, TENTH, 1, 0.55, priority=5) is None
    last = run.ask(queue, TENTH, 0.0, 0.65, priority=5)
    run.until(9.0)
    assert run.done[-1][0] is last


# -- in the queue -----------------------------------------------------------------------------------------------------


def test_no_more_is_in_flight_than_two_executions_of_every_instance() -> None:
    queue = pool()
    run = Exact(queue)
    for _ in range(100):
        run.ask(queue, GPU, 0.0, 9.0)
    assert queue.in_flight == 2 * 2 * 8
    assert queue.num_waiting == 100 - 32


LARGE = Service(Curve(((1, 0.01), (8, 0.02), (64, 0.16))), num_instances=2, max_batch=64)


@pytest.mark.parametrize("rows", [LARGE.batch, LARGE.batch + 1, 2 * LARGE.batch, 2 * LARGE.batch + 1, 64])
def test_a_request_larger_than_a_full_execution_counts_as_one_so_that_the_next_is_there_when_it_ends(rows: int) -> None:
    queue = pool()
    run = Exact(queue)
    for _ in range(9):
        run.ask(queue, LARGE, 0.0, 99.0, rows=rows)
    assert (queue.in_flight, queue.num_waiting) == (2 * 2 * rows, 5)
    run.until(1000.0)
    assert (len(run.done), queue.in_flight) == (9, 0)
    for _ in range(100):
        run.ask(queue, LARGE, 1000.0, 1099.0)
    assert queue.in_flight == 2 * 2 * LARGE.batch


def test_the_earliest_deadline_is_served_first() -> None:
    queue = pool()
    run = Exact(queue)
    tickets = [run.ask(queue, TENTH, 0.0, deadline) for deadline in (9.0, 8.0, 7.0, 6.0, 5.0)]
    run.until(9.0)
    assert [tickets.index(ticket) for ticket, _ in run.done] == [0, 1, 4, 3, 2]  # two were under way at once


def test_whose_time_is_over_in_the_queue_is_never_sent() -> None:
    queue = pool()
    late = queue.admit(None, TENTH, 1, 0.5)
    assert queue.take(0.6) is late
    assert late.replica is None


def test_who_could_no_longer_be_in_time_is_not_sent_either() -> None:
    queue = pool()
    late = queue.admit(None, TENTH, 1, 0.5)
    assert queue.take(0.45) is late
    assert late.replica is None


def test_the_late_can_be_told_before_it_is_their_turn() -> None:
    run, tickets = fill(6, deadline=1.0)
    queue = run.queues[0]
    assert queue.expired(0.9) == []
    assert queue.expired(1.0) == tickets[2:]
    assert queue.num_waiting == 0


def test_a_client_that_left_makes_room_for_those_behind_it() -> None:
    run, tickets = fill(5)
    queue = run.queues[0]
    assert queue.finish(0.0, TENTH, 1, 0.5) is None
    queue.leave(tickets[-1])
    queue.leave(tickets[-1])  # telling it twice does no harm
    assert queue.finish(0.0, TENTH, 1, 0.5) is not None


def test_a_client_that_left_after_its_request_was_sent_changes_nothing() -> None:
    run, tickets = fill(2)
    run.queues[0].leave(tickets[0])
    assert run.queues[0].in_flight == 2


def test_the_server_that_will_be_free_first_gets_the_next() -> None:
    queue = pool(num_replicas=3)
    run = Exact(queue)
    sent = [run.ask(queue, service, 0.0, 9.0) for service in (FIFTH, TENTH, TENTH, TENTH, TENTH)]
    assert [queue.replicas.index(t.replica) for t in sent if t and t.replica] == [0, 1, 2, 1, 2]


# -- come back when? --------------------------------------------------------------------------------------------------


def test_retry_after_is_when_an_identical_request_is_let_in() -> None:
    run, _ = fill(10)
    queue = run.queues[0]
    assert queue.opens_at(0.0, TENTH, 1, 0.3) == pytest.approx(0.8)
    run.until(0.79)
    assert queue.finish(0.79, TENTH, 1, 0.79 + 0.3) is None
    run.until(0.8 + 1e-6)
    assert queue.finish(0.8 + 1e-6, TENTH, 1, 0.8 + 1e-6 + 0.3) is not None


REQUESTS = st.lists(
    st.tuples(st.floats(0, 0.3), st.floats(0.05, 3.0), st.sampled_from([1, 3, 5])), min_size=1, max_size=60
)


@settings(deadline=None)  # of one example: machines are busy
@given(REQUESTS, st.floats(0.05, 2.0), st.sampled_from([1, 3, 5]))
def test_retry_after_holds_whatever_came_before(
    requests: list[tuple[float, float, int]], in_s: float, priority: int
) -> None:
    queue, now = pool(), 0.0
    run = Exact(queue)
    for pause_s, deadline_in_s, their_priority in requests:
        now += pause_s
        run.ask(queue, TENTH, now, now + deadline_in_s, their_priority)
    if queue.finish(now, TENTH, 1, now + in_s, priority) is not None:
        return
    opens = queue.opens_at(now, TENTH, 1, in_s, priority)
    if opens == inf:
        assert in_s < 0.1
        return
    assert opens > now
    run.until(opens - 1e-6)
    assert queue.finish(opens - 1e-6, TENTH, 1, opens - 1e-6 + in_s, priority) is None
    run.until(opens + 1e-6)
    assert queue.finish(opens + 1e-6, TENTH, 1, opens + 1e-6 + in_s, priority) is not None


@settings(deadline=None)  # of one example: machines are busy
@given(REQUESTS, st.floats(0.01, 2.0), st.floats(0, 2.0), st.sampled_from([1, 3, 5]))
def test_a_later_deadline_never_turns_an_admission_into_a_refusal(
    requests: list[tuple[float, float, int]], in_s: float, more_s: float, priority: int
) -> None:
    queue, now = pool(num_replicas=2), 0.0
    run = Exact(queue)
    for at, (pause_s, deadline_in_s, their_priority) in enumerate(requests):
        now += pause_s
        run.ask(queue, (TENTH, FIFTH, GPU)[at % 3], now, now + deadline_in_s, their_priority)
    for service in (TENTH, FIFTH, GPU):
        if queue.finish(now, service, 1, now + in_s, priority) is not None:
            assert queue.finish(now, service, 1, now + in_s + more_s, priority) is not None


@settings(deadline=None)  # of one example: machines are busy
@given(REQUESTS)
def test_who_is_let_in_among_equals_is_done_in_time(requests: list[tuple[float, float, int]]) -> None:
    queue, now, num_admitted = pool(), 0.0, 0
    run = Exact(queue)
    for pause_s, deadline_in_s, _ in requests:
        now += pause_s
        num_admitted += run.ask(queue, TENTH, now, now + deadline_in_s) is not None
    run.until(now + 99)
    assert len(run.done) == num_admitted
    assert all(at <= ticket.deadline + 1e-6 for ticket, at in run.done)


# -- learning ---------------------------------------------------------------------------------------------------------


def test_a_correction_that_went_wrong_cannot_close_a_pool_that_rests() -> None:
    mistaken = Service(TENTH.curve, correction=Correction(16.0, 4.0))
    queue = pool()
    assert queue.finish(0.0, mistaken, 1, 0.2) is not None
    Exact(queue).ask(queue, mistaken, 0.0, 0.2)
    assert queue.finish(0.0, mistaken, 1, 0.3) is None


def share_left(times: float, *, is_shared: bool, pace: float = 1.0, service: Service = GPU, rows: int = 1) -> float:
    """After answers that take so many times as long as full flight should: the share of the bound that is left."""
    queue, now = pool(), 0.0
    for number in range(1, 401):
        ticket = queue.admit(None, service, rows, inf)
        assert queue.take(now) is ticket
        now += times * 2 * service.curve.seconds(max(rows, 8))
        queue.answered(now, ticket)
        queue.replicas[0].compare(number * (2 if is_shared else 1), number, pace)
    return queue.replicas[0].fill


def test_a_server_on_which_others_work_too_gets_one_execution_for_each_instance_and_no_less() -> None:
    assert share_left(2.0, is_shared=True) == 0.5


def test_a_server_that_keeps_its_time_or_is_only_slow_gets_two() -> None:
    assert share_left(1.0, is_shared=True) == 1.0
    assert share_left(9.0, is_shared=False) == 1.0
    assert share_left(2.0, is_shared=True, pace=2.0) == 1.0
    assert share_left(1.0, is_shared=True, service=LARGE, rows=64) == 1.0  # two of our own, one after the other
    assert share_left(2.0, is_shared=True, service=LARGE, rows=64) == 0.5


def test_what_others_leave_of_a_server_is_what_its_line_is_done_by_until_they_leave_it_all() -> None:
    candidate = Candidate(pool(), GPU, 1.0)
    alone_s, rate_rows_per_s = GPU.cost_s(1), GPU.full.rate_rows_per_s
    for _ in range(20):
        candidate.share_with(0.75 * rate_rows_per_s, pace=2.0)  # three quarters of what two instances can do
    shared = candidate.service
    assert shared.cost_s(1) == pytest.approx(4 * alone_s, rel=0.05)
    assert shared.seconds(8) == GPU.seconds(8), "executions take no longer"
    assert shared.work_s(1) == pytest.approx(2 * alone_s), (
        "a request is demand for what it takes there, and not for others'"
    )
    for _ in range(20):
        candidate.share_with(9 * rate_rows_per_s, pace=1.0)
    assert candidate.service.cost_s(1) < 11 * alone_s
    candidate.share_with(0.0, pace=1.0)
    assert candidate.service.cost_s(1) == alone_s


def test_a_server_that_began_anew_says_nothing_of_others() -> None:
    replica = pool().replicas[0]
    replica.compare(0, 0, 1.0)
    replica.compare(1000, 0, 1.0)
    assert replica.is_shared
    assert replica.others_ratio == 1.0
    replica.compare(60, 50, 1.0)
    replica.compare(110, 100, 1.0)
    assert not replica.is_shared
    assert replica.others_ratio == 0.0


def test_a_new_server_that_nobody_else_uses_is_told_once_as_it_may_stand_for_a_shared_one() -> None:
    replica = pool().replicas[0]
    told = [replica.compare(number * 100, number * 100, 1.0) for number in range(4)]
    assert told == [False, True, False, False]
    assert replica.others_ratio == 0.0


def test_what_a_server_did_before_it_was_looked_at_first_is_nobodys() -> None:
    replica = pool().replicas[0]
    replica.compare(1_000_000, 0, 1.0)
    assert not replica.is_shared
    replica.compare(1_000_100, 100, 1.0)
    assert not replica.is_shared


# -- servers that fail ------------------------------------------------------------------------------------------------


def lose(times: int, num_replicas: int) -> Exact:
    run = Exact(pool(num_replicas=num_replicas))
    queue = run.queues[0]
    for _ in range(times):
        ticket = queue.admit(None, TENTH, 1, 99.0)
        queue.take(0.0)
        queue.lost(0.0, ticket)
    return run


def test_a_server_that_fails_again_and_again_is_left_out_and_then_tried_with_one_request() -> None:
    queue = lose(3, num_replicas=2).queues[0]
    run = Exact(queue)
    bad, good = queue.replicas
    assert bad.health.ejected_until == 1.0
    run.ask(queue, TENTH, 0.5, 99.0)
    assert (bad.num_in_flight, good.num_in_flight) == (0, 1)
    for _ in range(5):
        run.ask(queue, TENTH, 1.0, 99.0)
    assert (bad.num_in_flight, good.num_in_flight) == (1, 2)


def test_the_only_server_is_never_left_out() -> None:
    queue = lose(20, num_replicas=1).queues[0]
    assert queue.finish(0.0, TENTH, 1, 1.0) is not None


def test_never_more_than_half_of_a_pool_is_left_out() -> None:
    queue = lose(200, num_replicas=5).queues[0]
    assert sum(replica.health.ejected_until > 0 for replica in queue.replicas) == 2


def timed(queue: PoolQueue, server: int, seconds: float, times: int = 1, now: float = 0.0) -> None:
    """So many answers of this server one after the other, that took so long."""
    for number in range(times):
        sent = now + seconds * number
        ticket = Ticket(None, TENTH, 1, sent + 99.0, sent + 99.0, TENTH.cost_s(1), 3)
        ticket.sent = sent
        ticket.book(sent, queue.replicas[server])
        queue.answered(sent + seconds, ticket)


def of_three(seconds: float, times: int = 5) -> PoolQueue:
    queue = pool(num_replicas=3)
    for server, took_s in enumerate((seconds, 0.1, 0.1)):
        timed(queue, server, took_s, times)
    return queue


def test_a_server_much_slower_than_the_others_is_left_out() -> None:
    queue = of_three(0.6)
    assert queue.leave_out_slow(9.0) == ["cpu-0"]
    assert queue.leave_out_slow(9.0) == []
    assert queue.replicas[0].health.ejected_until == 10.0


@pytest.mark.parametrize(("seconds", "times"), [(0.4, 5), (9.0, 4)])
def test_a_server_that_is_a_little_slower_or_has_hardly_answered_stays(seconds: float, times: int) -> None:
    assert of_three(seconds, times).leave_out_slow(9.0) == []


def test_a_server_is_compared_by_the_bare_curve_whatever_was_learnt_of_slow_answers() -> None:
    queue = pool(num_replicas=3)
    believed = TENTH.corrected_by(Correction(5.0))
    for replica, seconds in zip(queue.replicas, (1.0, 0.1, 0.1), strict=True):
        for _ in range(5):
            replica.time(believed, 0.5, seconds)
    assert queue.leave_out_slow(9.0) == ["cpu-0"]


def test_one_that_is_still_slow_on_trial_is_left_out_for_longer() -> None:
    queue = of_three(0.6)
    queue.leave_out_slow(9.0)
    timed(queue, 0, 0.6, times=3, now=10.0)
    assert queue.replicas[0].health.ejected_until == pytest.approx(10.0 + 3 * 0.6 + 2.0)


def test_what_is_stuck_at_a_server_that_was_left_out_does_not_keep_it_from_its_trial() -> None:
    queue = pool(num_replicas=3)
    stuck = [queue.enter(0.0, None, TENTH, 1, 99.0) for _ in range(3)]
    for ticket in stuck[1:]:
        queue.answered(0.1, ticket)
    assert queue.leave_out_slow(5.0) == ["cpu-0"]
    assert queue.replicas[0].num_in_flight == 0
    trial = queue.enter(6.0, None, TENTH, 1, 99.0)
    assert trial.replica is queue.replicas[0]
    queue.answered(6.05, stuck[0])  # after all: it counts nowhere
    assert (queue.replicas[0].num_in_flight, queue.replicas[0].in_flight) == (1, 1)
    queue.answered(6.1, trial)
    assert queue.replicas[0].num_in_flight == 0


def test_one_slow_answer_on_trial_is_forgiven_where_the_others_are_not() -> None:
    """Else a server on a busy machine is left out for longer and longer by one hiccup each time."""
    queue = of_three(0.6)
    queue.leave_out_slow(9.0)
    timed(queue, 0, 0.6, now=10.0)
    timed(queue, 0, 0.1, times=2, now=10.6)
    assert queue.replicas[0].health == WELL


def test_one_that_is_well_on_trial_is_as_good_as_the_others_again() -> None:
    queue = of_three(0.6)
    queue.leave_out_slow(9.0)
    timed(queue, 0, 0.1, times=3, now=10.0)
    assert queue.replicas[0].health == WELL


def test_answers_to_what_was_sent_before_it_was_left_out_say_nothing() -> None:
    queue = of_three(0.1)
    late = Ticket(None, TENTH, 1, 99.0, 99.0, 0.1, 3)
    queue.replicas[0].sent(0.0, TENTH, 1, 0.1)
    late.replica = queue.replicas[0]
    assert queue.leave_out_slow(5.0) == ["cpu-0"]  # it stands still
    queue.lost(60.0, late)
    assert queue.replicas[0].health.ejected_until == 6.0


def test_a_server_that_stands_still_is_left_out_and_the_whole_pool_never() -> None:
    for standing, out in (([0], ["cpu-0"]), ([0, 1], []), ([0, 1, 2], [])):  # most of them: then it was this process
        queue = of_three(0.1)
        for server in standing:
            queue.replicas[server].sent(0.0, TENTH, 1, 0.1)
        assert queue.leave_out_slow(1.0) == []
        assert queue.leave_out_slow(5.0) == out


def test_what_is_late_already_is_passed_over_for_what_is_not() -> None:
    queue = pool(num_replicas=2)
    for replica, sent in zip(queue.replicas, (0.0, 0.95), strict=True):
        replica.sent(sent, TENTH, 1, 0.1)
    queue.admit(None, TENTH, 1, 99.0)
    ticket = queue.take(1.0)
    assert ticket is not None
    assert ticket.replica is queue.replicas[1]


def test_of_idle_servers_the_fastest_is_taken_and_one_that_nobody_knows_first() -> None:
    queue = of_three(0.4)
    queue.replicas[2].forget_times()
    names = []
    for _ in range(3):
        queue.admit(None, TENTH, 1, 99.0)
        ticket = queue.take(5.0)
        assert ticket is not None
        assert ticket.replica is not None
        names.append(ticket.replica.name)
    assert names == ["cpu-2", "cpu-1", "cpu-0"]


def test_where_all_that_live_are_left_out_they_are_used() -> None:
    queue = pool(num_replicas=2)
    queue.replicas[0].health = ejected(WELL, 0.0)
    queue.replicas[1].is_up = False
    queue.serve_with(queue.replicas)
    assert queue.finish(0.5, TENTH, 1, 9.0) is not None


# -- entering ---------------------------------------------------------------------------------------------------------


@given(
    asks=st.lists(
        st.tuples(st.floats(0, 0.05), st.integers(1, 8), st.floats(0.005, 0.5), st.integers(1, 5)), max_size=40
    ),
    num_replicas=st.integers(1, 3),
)
def test_entering_sends_what_admitting_and_taking_would_send(
    asks: list[tuple[float, int, float, int]], num_replicas: int
) -> None:
    entered, taken = pool(num_replicas=num_replicas), pool(num_replicas=num_replicas)
    now = 0.0
    for later_s, rows, in_s, priority in asks:
        now += later_s
        if entered.finish(now, GPU, rows, now + in_s, priority) is None:
            continue
        first = entered.enter(now, None, GPU, rows, now + in_s, priority)
        if first.in_line:
            drain(entered, now)
        second = taken.admit(None, GPU, rows, now + in_s, priority)
        drain(taken, now)
        if not second.in_line and second.replica is None:  # whoever waited is held to more
            assert first.replica is not None
            return
        assert (first.in_line, first.sent, first.predicted_s) == (second.in_line, second.sent, second.predicted_s)
        assert (first.replica is None) == (second.replica is None)
        assert [(r.in_flight, r.free_at) for r in entered.replicas] == [
            (r.in_flight, r.free_at) for r in taken.replicas
        ]


@pytest.mark.parametrize("factor", [1.0, 1.9, 3.0])
def test_who_is_let_in_where_nobody_waits_is_sent(factor: float) -> None:
    """Executions cost the same for any rows, others leave half of the server, and all is believed to take longer than it does."""
    service = Service(Curve(((1, 0.09), (8, 0.09))), 1, 8, Correction(factor, left_ratio=0.5))
    queue, sent, now = pool(num_replicas=1), [], 0.0
    for _ in range(200):
        now += 0.01
        while sent and sent[0].sent + 0.3 < now:
            queue.answered(now, sent.pop(0))
            while (taken := queue.take(now)) is not None:
                sent += [] if taken.replica is None else [taken]
        if queue.finish(now, service, 1, now + 0.46) is not None:
            ticket = queue.enter(now, None, service, 1, now + 0.46)
            assert ticket.in_line or ticket.replica is not None
            sent += [] if ticket.in_line else [ticket]
    assert sent


def drain(queue: PoolQueue, now: float) -> None:
    while queue.take(now) is not None:
        pass


def test_where_all_servers_are_on_trial_what_is_stuck_on_them_keeps_nobody_waiting() -> None:
    queue = pool(num_replicas=2)
    for replica in queue.replicas:
        replica.health = Health(num_trials_left=3)
    stuck = [queue.enter(0.0, None, TENTH, 1, 9.0) for _ in range(2)]
    assert {ticket.replica for ticket in stuck} == set(queue.replicas)
    assert queue.finish(0.0, TENTH, 1, 9.0) is not None
    assert queue.enter(0.0, None, TENTH, 1, 9.0).replica is not None
    queue.replicas[0].health = WELL
    full = [queue.enter(0.0, None, TENTH, 1, 9.0) for _ in range(3)]
    assert [ticket.replica for ticket in full if ticket.replica is queue.replicas[1]] == []
