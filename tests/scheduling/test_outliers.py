"""Servers that are left out, and requests that kill."""

from __future__ import annotations

import pytest

from serving.scheduling.outliers import (
    LONGEST_EJECTION_S,
    MAX_REMEMBERED,
    WELL,
    Deaths,
    Health,
    ejected,
    failed,
    may_eject,
    silent,
    slow,
    succeeded,
)


def test_one_failure_is_an_accident() -> None:
    assert failed(WELL, 5.0, may_eject=True).ejected_until == 0.0


def test_failures_in_a_row_eject_and_an_answer_between_them_does_not() -> None:
    health = failed(failed(WELL, 5.0, may_eject=True), 5.0, may_eject=True)
    assert failed(health, 5.0, may_eject=True).ejected_until == 6.0
    assert failed(succeeded(health), 5.0, may_eject=True).ejected_until == 0.0


def test_where_half_of_the_pool_is_out_nobody_follows() -> None:
    health = WELL
    for _ in range(50):
        health = failed(health, 5.0, may_eject=False)
    assert health.ejected_until == 0.0


def test_one_failure_on_trial_ejects_again_and_for_longer() -> None:
    once = ejected(WELL, 0.0)
    assert failed(once, 1.0, may_eject=True).ejected_until == 3.0


def test_a_trial_ends_after_some_answers_and_is_forgotten() -> None:
    health: Health = ejected(WELL, 0.0)
    for _ in range(3):
        assert health.num_trials_left
        health = succeeded(health)
    assert health == WELL


def test_nobody_is_left_out_for_ever_however_often() -> None:
    health, pauses_s = WELL, []
    for _ in range(5000):  # a server that never comes back is tried that often in two days
        health = ejected(health, 0.0)
        pauses_s.append(health.ejected_until)
    assert pauses_s[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_EJECTION_S]
    assert set(pauses_s[6:]) == {LONGEST_EJECTION_S}


@pytest.mark.parametrize(
    ("out", "servers", "may"), [(0, 1, False), (0, 2, True), (1, 2, False), (0, 3, True), (1, 3, False), (1, 4, True)]
)
def test_half_of_a_pool_at_most_is_left_out(out: int, servers: int, may: bool) -> None:
    assert may_eject(out, servers) is may


@pytest.mark.parametrize(
    ("latencies", "out"),
    [
        ({}, []),
        ({"a": 9.0}, []),
        ({"a": 9.0, "b": 0.1}, []),  # two cannot tell which of them is ill
        ({"a": 1.0, "b": 1.1, "c": 4.9}, []),
        ({"a": 1.0, "b": 1.0, "c": 5.1}, ["c"]),
        ({"a": 1.0, "b": 6.0, "c": 1.0, "d": 9.0, "e": 1.0}, ["d", "b"]),
        ({"a": 9.0, "b": 9.0, "c": 9.0}, []),  # all are busy: nobody is ill
    ],
)
def test_a_server_is_ill_only_beside_others_that_are_well(latencies: dict[str, float], out: list[str]) -> None:
    assert slow(latencies) == out


DIGITS, ALL = {"digits"}, {"digits", "texts"}


@pytest.mark.parametrize(
    ("quiet_s", "serves", "out"),
    [
        ({}, {}, []),
        ({"a": 0.5, "b": 0.0}, {"a": DIGITS, "b": DIGITS}, []),
        ({"a": 1.5, "b": 0.0}, {"a": DIGITS, "b": DIGITS}, []),  # it is being asked
        ({"a": 1.75, "b": 0.5}, {"a": DIGITS, "b": DIGITS}, ["a"]),
        ({"a": 9.0}, {"a": DIGITS}, []),  # nobody else is there
        ({"a": 9.0, "b": 0.0}, {"a": DIGITS, "b": {"texts"}}, []),  # nor for its models
        ({"a": 9.0, "b": 0.0}, {"a": ALL, "b": DIGITS}, []),  # nor for one of them
        ({"a": 9.0, "b": 0.0, "c": 0.0}, {"a": ALL, "b": DIGITS, "c": {"texts"}}, ["a"]),
        ({"a": 9.0, "b": 9.0, "c": 0.0}, {"a": ALL, "b": ALL, "c": ALL}, ["a", "b"]),  # a zone is gone
        ({"a": 9.0, "b": 9.0}, {"a": ALL, "b": ALL}, []),  # our own network is
        ({"a": 1.75, "b": 0.75}, {"a": ALL, "b": ALL}, []),  # or the machine is too busy for anybody to answer
        ({"a": 9.0, "b": 0.0}, {"a": set(), "b": ALL}, []),  # it has served nothing
    ],
)
def test_a_server_that_answers_nothing_is_given_up_where_others_answer_that_serve_all_it_does(
    quiet_s: dict[str, float], serves: dict[str, set[str]], out: list[str]
) -> None:
    assert silent(quiet_s, serves, quiet_s.keys()) == out


def test_a_server_that_is_down_stands_in_for_nobody() -> None:
    quiet_s = {"a": 9.0, "b": 0.0}
    assert silent(quiet_s, {"a": ALL, "b": ALL}, {"a"}) == []


def test_a_request_is_refused_after_its_second_death_and_for_a_minute() -> None:
    deaths = Deaths()
    assert deaths.refused_for_s("a", 0.0) is None
    deaths.died("a", 0.0)
    assert deaths.refused_for_s("a", 1.0) is None
    deaths.died("a", 10.0)
    assert deaths.refused_for_s("a", 11.0) == 59.0
    assert deaths.refused_for_s("b", 11.0) is None
    assert deaths.refused_for_s("a", 70.0) is None


def test_deaths_far_apart_are_not_the_requests_fault() -> None:
    deaths = Deaths()
    deaths.died("a", 0.0)
    deaths.died("a", 100.0)
    assert deaths.refused_for_s("a", 100.0) is None


def test_digests_are_forgotten_oldest_first_when_there_are_too_many() -> None:
    deaths = Deaths()
    for number in range(MAX_REMEMBERED + 1):
        deaths.died(str(number), 0.0)
        deaths.died(str(number), 0.0)
    assert deaths.refused_for_s("0", 0.0) is None
    assert deaths.refused_for_s("1", 0.0) is not None


def test_a_digest_is_of_interest_only_while_a_death_is_remembered() -> None:
    deaths = Deaths()
    assert not deaths.knows_any(0.0)
    deaths.died("a", 10.0)
    assert deaths.knows_any(69.0)
    assert not deaths.knows_any(70.0)


def test_a_request_that_was_answered_is_not_refused_for_deaths_before() -> None:
    deaths = Deaths()
    deaths.died("a", 0.0)
    deaths.answered("a")
    deaths.died("a", 1.0)
    assert deaths.refused_for_s("a", 2.0) is None
