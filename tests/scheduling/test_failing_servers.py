"""A server that answers errors at once is not fast: it gets no traffic for it, is left out, and is let back in when it works."""

from __future__ import annotations

import heapq
from itertools import count

import pytest

from serving.scheduling.admission import PoolQueue
from serving.scheduling.outliers import WELL
from serving.scheduling.replica import Ticket
from tests.scheduling.servers import TENTH, pool

FAILS_S = 0.001  # how fast the ill one answers


class Failing:
    """Three servers, the first of which answers each request with an error of its own until it is mended."""

    def __init__(self, mended_at: float) -> None:
        self.queue: PoolQueue = pool(num_replicas=3)
        self.mended_at = mended_at
        self.num_sent = {replica.name: 0 for replica in self.queue.replicas}
        self._flying: list[tuple[float, int, Ticket]] = []
        self._number = count()

    def run(self, begin: float, end: float, rate_rps: float) -> None:
        for number in range(round((end - begin) * rate_rps)):
            now = begin + number / rate_rps
            while self._flying and self._flying[0][0] <= now:
                at, _, ticket = heapq.heappop(self._flying)
                is_failure = self.is_failing(ticket)
                self.queue.answered(at, ticket, is_good=not is_failure, is_failure=is_failure)
                self.send(at)
            if number % 10 == 0:
                self.queue.leave_out_slow(now)
            if self.queue.finish(now, TENTH, 1, now + 1.0) is not None:
                self.queue.admit(None, TENTH, 1, now + 1.0)
                self.send(now)

    def is_failing(self, ticket: Ticket) -> bool:
        return ticket.replica is self.queue.replicas[0] and ticket.sent < self.mended_at

    def send(self, now: float) -> None:
        while (ticket := self.queue.take(now)) is not None:
            if ticket.replica is not None:
                self.num_sent[ticket.replica.name] += 1
                took_s = FAILS_S if self.is_failing(ticket) else ticket.predicted_s
                heapq.heappush(self._flying, (now + took_s, next(self._number), ticket))


@pytest.mark.parametrize("rate_rps", [3.0, 12.0, 25.0])
def test_a_server_that_answers_errors_at_once_gets_hardly_any_traffic(rate_rps: float) -> None:
    servers = Failing(mended_at=99.0)
    servers.run(0.0, 60.0, rate_rps)
    assert servers.num_sent["cpu-0"] <= 12  # three until it is left out, then one for each time that it is tried


def test_a_server_that_works_again_gets_its_part_again() -> None:
    servers = Failing(mended_at=20.0)
    servers.run(0.0, 60.0, 25.0)
    before = servers.num_sent["cpu-0"]
    servers.run(60.0, 100.0, 25.0)
    assert servers.num_sent["cpu-0"] - before >= 0.2 * 40 * 25
    assert servers.queue.replicas[0].health == WELL


def answer(queue: PoolQueue, *, is_good: bool, is_failure: bool = False, now: float = 0.0) -> None:
    ticket = queue.enter(now, None, TENTH, 1, now + 9.0)
    queue.answered(now + FAILS_S, ticket, is_good=is_good, is_failure=is_failure)


def test_a_request_that_is_refused_as_wrong_is_no_fault_of_the_servers_and_says_nothing_of_its_speed() -> None:
    queue = pool(num_replicas=2)
    for _ in range(20):
        answer(queue, is_good=False)
    assert [replica.health for replica in queue.replicas] == [WELL, WELL]
    assert [replica.num_timed for replica in queue.replicas] == [0, 0]
    answer(queue, is_good=True)
    assert queue.replicas[0].num_in_flight == 0


def test_wrong_requests_do_not_draw_all_others_to_the_server_that_refuses_them() -> None:
    queue = pool(num_replicas=2)
    answer(queue, is_good=False)
    ticket = queue.enter(1.0, None, TENTH, 1, 9.0)
    assert ticket.replica is queue.replicas[1]  # nobody knows that one yet


def test_a_refused_request_proves_nothing_on_trial() -> None:
    queue = pool(num_replicas=2)
    for _ in range(3):
        ticket = Ticket(None, TENTH, 1, 9.0, 9.0, 0.1, 3)
        ticket.replica = queue.replicas[0]
        queue.replicas[0].sent(0.0, TENTH, 1, 0.1)
        queue.lost(0.0, ticket)
    assert queue.replicas[0].health.num_trials_left == 3
    answer(queue, is_good=False, now=2.0)
    assert queue.replicas[0].health.num_trials_left == 3
    assert queue.replicas[0].num_in_flight == 0


def test_errors_of_all_servers_leave_out_half_of_them_at_most() -> None:
    queue = pool(num_replicas=4)
    for at in range(100):
        answer(queue, is_good=False, is_failure=True, now=at / 100)
    assert sum(replica.health.ejected_until > 0 for replica in queue.replicas) <= 2
    assert queue.finish(1.0, TENTH, 1, 9.0) is not None
