"""What `make prove` concludes from what clients saw, by tables of attempts: no clock, no process."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtest.bench.outage import Attempt, Kind, farewell, outage

KILLED_S = 100.0


def good(ended_s: float, took_s: float = 0.01) -> Attempt:
    return Attempt(ended_s - took_s, ended_s, 200)


def refused(ended_s: float, took_s: float = 0.01) -> Attempt:
    return Attempt(ended_s - took_s, ended_s, 503, "1", "upstream_lost")


def lost(ended_s: float, error: str = "Connection reset by peer") -> Attempt:
    return Attempt(ended_s - 0.01, ended_s, error=error)


def turned_away(ended_s: float) -> Attempt:
    return Attempt(ended_s - 0.01, ended_s, sent=False, error="Connection refused")


@pytest.mark.parametrize(
    ("attempt", "kind", "words"),
    [
        (Attempt(0, 1, 200), Kind.ANSWERED, "200"),
        (Attempt(0, 1, 503, "1", "not_ready"), Kind.REFUSED, "503"),
        (Attempt(0, 1, 503, None, "not_ready"), Kind.DISHONEST, "503 without Retry-After"),
        (Attempt(0, 1, 503, "1", None), Kind.DISHONEST, "503 without Tandem-Error"),
        (Attempt(0, 1, 503), Kind.DISHONEST, "503 without Retry-After and Tandem-Error"),
        (Attempt(0, 1, 503, "0", "not_ready"), Kind.DISHONEST, "503"),
        (Attempt(0, 1, 503, "soon", "not_ready"), Kind.DISHONEST, "503"),
        (Attempt(0, 1, 503, "-1", "not_ready"), Kind.DISHONEST, "503"),
        (Attempt(0, 1, 500, "1", "internal"), Kind.DISHONEST, "500"),
        (Attempt(0, 1, 502, "1", "upstream_lost"), Kind.DISHONEST, "502"),
        (Attempt(0, 1, 400, None, "bad_request"), Kind.DISHONEST, "400 without Retry-After"),
        (Attempt(0, 1, error="timed out"), Kind.LOST, "no answer (timed out)"),
        (Attempt(0, 1, sent=False, error="Connection refused"), Kind.TURNED_AWAY, "no connection (Connection refused)"),
    ],
)
def test_an_attempt_is_what_its_answer_says(attempt: Attempt, kind: Kind, words: str) -> None:
    assert attempt.kind is kind
    assert str(attempt) == words


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
def test_what_ends_badly_has_not_recovered(after: list[Attempt]) -> None:
    assert outage([good(99), *after], KILLED_S).recovered_s is None


def test_an_outage_that_nobody_noticed_has_no_refusal_and_is_over_at_once() -> None:
    seen = outage([good(99.9), good(100.01), good(100.02)], KILLED_S)
    assert seen.first_refusal_s is None
    assert seen.recovered_s == pytest.approx(0.01)


def test_a_request_that_was_sent_before_the_kill_and_ended_after_it_counts() -> None:
    seen = outage([refused(101.5, took_s=1.7), good(102)], KILLED_S)
    assert seen.longest_s == pytest.approx(1.7)


def test_wrong_answers_before_the_kill_are_not_blamed_on_it() -> None:
    assert outage([lost(99), Attempt(98, 99, 500), good(101)], KILLED_S).num_wrong == 0


def test_each_kind_of_wrong_answer_is_counted_by_what_it_was() -> None:
    attempts = [refused(100.1), Attempt(100, 100.2, 500), Attempt(100, 100.3, 500), lost(100.4), good(101)]
    wrong = outage(attempts, KILLED_S).wrong
    bare = "500 without Retry-After and Tandem-Error"
    assert wrong == Counter({bare: 2, "no answer (Connection reset by peer)": 1})


def test_a_connection_that_was_refused_during_an_outage_is_wrong_because_the_gateway_lives() -> None:
    assert outage([turned_away(100.5), good(101)], KILLED_S).num_wrong == 1


@pytest.mark.parametrize(
    ("after", "num_lost", "num_answered"),
    [
        ([good(100.1), turned_away(100.6)], 0, 1),
        ([good(100.1), refused(100.2)], 0, 2),
        ([good(100.1), lost(100.2)], 1, 1),
        ([lost(100.2, "closed before the answer was whole")], 1, 0),
        ([Attempt(100, 100.2, 500)], 1, 0),
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
    after: list[Attempt], num_lost: int, num_answered: int
) -> None:
    seen = farewell([good(99), *after], KILLED_S)
    assert (seen.num_lost, seen.num_answered) == (num_lost, num_answered)


def test_the_longest_request_of_a_farewell_leaves_out_who_found_no_listener() -> None:
    waited_for_a_connection = Attempt(100, 103, sent=False, error="Connection refused")
    assert farewell([good(101, took_s=0.5), waited_for_a_connection], KILLED_S).longest_s == pytest.approx(0.5)
