"""When is what died started again? On a clock of our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.local.watch import LONGEST_RETRY_S, POLL_S, STABLE_S, Finding, Recovery, retry_delay_s, what_happened


@pytest.mark.parametrize(
    ("num_before", "delay_s"), [(0, 0.0), (1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 8.0), (6, 15.0), (1000, 15.0)]
)
def test_the_delays(num_before: int, delay_s: float) -> None:
    assert retry_delay_s(num_before) == delay_s


@given(st.integers(0, 10_000))
def test_a_delay_never_shrinks_and_never_exceeds_the_longest(num_before: int) -> None:
    assert retry_delay_s(num_before) <= retry_delay_s(num_before + 1) <= LONGEST_RETRY_S


@pytest.mark.parametrize(
    ("rows", "has_others", "was_unloaded", "seen"),
    [
        ([("READY", "")], False, False, Finding.DEAD),
        ([("READY", "")], False, True, Finding.DEAD),  # loaded, and died before anybody looked
        ([("READY", "")], True, False, None),
        ([("READY", "")], True, True, None),
        ([("UNAVAILABLE", "unloaded")], False, False, Finding.UNLOADED),
        ([("UNAVAILABLE", "unloaded")], True, True, Finding.UNLOADED),
        ([("UNLOADING", "")], True, False, Finding.UNLOADED),
        ([("UNAVAILABLE", "unloaded"), ("READY", "")], False, False, Finding.DEAD),  # of two versions
        ([("LOADING", "")], True, True, Finding.CHANGING),
        ([("UNAVAILABLE", "Internal: no such file")], False, False, Finding.DEAD),
        (
            [("UNAVAILABLE", "Internal: no such file")],
            False,
            True,
            Finding.UNLOADED,
        ),  # whoever unloaded it could not load it
        ([], False, False, Finding.DEAD),
    ],
)
def test_what_the_index_says_of_a_model_whose_processes_are_gone(
    rows: list[tuple[str, str]], has_others: bool, was_unloaded: bool, seen: Finding | None
) -> None:
    assert what_happened(rows, has_others=has_others, was_unloaded=was_unloaded) is seen


def test_a_first_death_is_mended_at_once() -> None:
    recovery = Recovery()
    assert recovery.found_dead("m", 100.0)
    assert recovery.due(100.0) == ("m",)


def test_what_is_known_to_be_down_is_not_counted_again() -> None:
    recovery = Recovery()
    assert recovery.found_dead("m", 100.0)
    assert not recovery.found_dead("m", 100.2)
    recovery.started("m")
    recovery.found_dead("m", 101.0)
    assert (recovery.due(101.4), recovery.due(101.5)) == ((), ("m",)), "the second death in a row, not the third"


def test_what_was_started_is_no_longer_due() -> None:
    recovery = Recovery()
    recovery.found_dead("m", 0.0)
    recovery.started("m")
    assert recovery.due(1e9) == ()


def test_deaths_in_a_row_wait_longer_each_time() -> None:
    recovery, now_s = Recovery(), 0.0
    for wait_s in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0):
        recovery.found_dead("m", now_s)
        now_s += wait_s
        assert (recovery.due(now_s - 0.01), recovery.due(now_s)) == ((), ("m",))
        recovery.started("m")


def test_nothing_is_due_a_moment_too_early() -> None:
    recovery = Recovery()
    recovery.found_dead("m", 0.0)
    assert recovery.failed_again("m", 0.0) == 0.5
    assert recovery.due(0.499) == ()
    assert recovery.due(0.5) == ("m",)


def test_what_never_starts_is_tried_after_pauses_that_grow_to_the_longest_and_are_no_shorter_than_a_try() -> None:
    recovery, now_s, pauses_s = Recovery(60.0), 0.0, []
    for _ in range(11):
        pauses_s.append(recovery.failed_again("m", now_s))
        now_s += pauses_s[-1]
    assert pauses_s == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert recovery.failed_again("m", now_s, took_s=1200.0) == 1200.0
    recovery.forget("m")
    assert (recovery.due(1e9), recovery.failed_again("m", now_s)) == ((), 0.0)


@pytest.mark.parametrize(("ran_s", "delay_s"), [(STABLE_S - 0.1, 0.5), (STABLE_S, 0.0)])
def test_what_ran_long_enough_starts_from_the_beginning(ran_s: float, delay_s: float) -> None:
    recovery = Recovery()
    recovery.found_dead("m", 0.0)
    recovery.started("m")
    recovery.found_dead("m", ran_s)
    assert (recovery.due(ran_s + delay_s - 0.01), recovery.due(ran_s + delay_s)) == ((), ("m",))


def test_one_models_failures_do_not_delay_another() -> None:
    recovery = Recovery()
    for _ in range(5):
        recovery.failed_again("bad", 0.0)
    recovery.found_dead("good", 1.0)
    assert recovery.due(1.0) == ("good",)


def test_the_longest_waiting_comes_first() -> None:
    recovery = Recovery()
    recovery.found_dead("b", 1.0)
    recovery.found_dead("a", 2.0)
    assert recovery.due(5.0) == ("b", "a")


def test_starting_what_never_failed_changes_nothing() -> None:
    recovery = Recovery()
    recovery.started("m")
    assert recovery.due(1e9) == ()


def test_a_dead_stub_is_looked_for_often_enough_to_be_noticed_within_a_second() -> None:
    assert POLL_S <= 0.25
