"""What `make prove` concludes from what clients saw, by tables of shots: no clock, no process."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.bench.prove.restarts import outage, shutdown
from loadtest.sending.sent_request import Shot

KILLED_S = 100.0


def good(ended_s: float, took_s: float = 0.01) -> Shot:
    return ended(ended_s, took_s, status=200)


def refused(ended_s: float, took_s: float = 0.01) -> Shot:
    return ended(ended_s, took_s, status=503, retry_after="1", tandem_error="upstream_lost")


def bare_500(ended_s: float) -> Shot:
    return ended(ended_s, status=500)


def lost(ended_s: float, error: str = "Connection reset by peer") -> Shot:
    return ended(ended_s, error=error)


def turned_away(ended_s: float, took_s: float = 0.01) -> Shot:
    return ended(ended_s, took_s, is_sent=False, error="Connection refused")


def ended(ended_s: float, took_s: float = 0.01, **how: Any) -> Shot:
    return Shot(ended_s - took_s, ended_s - took_s, ended_s, **how)


def test_an_outage_is_timed_from_the_kill_to_the_first_200_after_which_nothing_else_came() -> None:
    seen = outage([good(99.9), good(100.2), refused(100.5), good(100.9), refused(101), good(102), good(103)], KILLED_S)
    assert seen.first_refusal_s == pytest.approx(0.5)
    assert seen.recovered_s == pytest.approx(2.0)
    assert (seen.num_answered, seen.num_refused, seen.num_wrong) == (4, 2, 0)


def test_the_order_in_which_clients_wrote_does_not_matter() -> None:
    attempts = [good(103), refused(101), good(102), refused(100.5)]
    assert outage(attempts, KILLED_S) == outage(attempts[::-1], KILLED_S)


@pytest.mark.parametrize(
    "after",
    [
        [refused(101)],
        [good(100.5), refused(101)],
        [refused(101), good(102), lost(103)],
        [],
    ],
    ids=["refused only", "refused at the end", "lost at the end", "nobody came back"],
)
def test_what_ends_badly_has_not_recovered(after: list[Shot]) -> None:
    assert outage([good(99), *after], KILLED_S).recovered_s is None


def test_an_outage_that_nobody_noticed_has_no_refusal_and_is_over_at_once() -> None:
    seen = outage([good(99.9), good(100.01), good(100.02)], KILLED_S)
    assert seen.first_refusal_s is None
    assert seen.recovered_s == pytest.approx(0.01)


def test_a_request_that_was_sent_before_the_kill_and_ended_after_it_counts() -> None:
    seen = outage([refused(101.5, took_s=1.7), good(102)], KILLED_S)
    assert seen.longest_s == pytest.approx(1.7)


def test_wrong_answers_before_the_kill_are_not_blamed_on_it() -> None:
    assert outage([lost(99), bare_500(99), good(101)], KILLED_S).num_wrong == 0


def test_each_kind_of_wrong_answer_is_counted_by_what_it_was() -> None:
    attempts = [refused(100.1), bare_500(100.2), bare_500(100.3), lost(100.4), good(101)]
    wrong = outage(attempts, KILLED_S).wrong
    assert sorted(wrong.values()) == [1, 2]
    assert wrong["500 without Tandem-Error"] == 2


def test_a_connection_that_was_refused_during_an_outage_is_wrong_because_the_gateway_lives() -> None:
    assert outage([turned_away(100.5), good(101)], KILLED_S).num_wrong == 1


@pytest.mark.parametrize(
    ("after", "num_lost", "num_answered"),
    [
        ([good(100.1), turned_away(100.6)], 0, 1),
        ([good(100.1), refused(100.2)], 0, 2),
        ([good(100.1), lost(100.2)], 1, 1),
        ([lost(100.2, "closed before the answer was whole")], 1, 0),
        ([bare_500(100.2)], 1, 0),
        ([lost(99.9), turned_away(99.9)], 0, 0),
    ],
    ids=[
        "answered, then no listener",
        "an honest refusal",
        "reset",
        "half an answer",
        "a bare 500",
        "before the signal",
    ],
)
def test_a_farewell_loses_what_was_sent_and_not_answered_honestly(
    after: list[Shot], num_lost: int, num_answered: int
) -> None:
    seen = shutdown([good(99), *after], KILLED_S)
    assert (seen.num_lost, seen.num_answered) == (num_lost, num_answered)


def test_the_longest_request_of_a_farewell_leaves_out_who_found_no_listener() -> None:
    waited_for_a_connection = turned_away(103, took_s=3)
    assert shutdown([good(101, took_s=0.5), waited_for_a_connection], KILLED_S).longest_s == pytest.approx(0.5)
