"""Turns are fair, whatever is measured."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import groupby
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.measure.intervals import MIN_REPEATS
from serving.measure.rounds import in_turn, least_s, order, ratio, rounds, spread, times


@given(st.integers(1, 12), st.integers(1, 20))
def test_every_round_has_every_target_once(num_targets: int, num_rounds: int) -> None:
    targets = list(range(num_targets))
    found = list(rounds(targets, num_rounds))
    assert len(found) == num_rounds
    assert all(sorted(one) == targets for one in found)


@given(st.integers(1, 12))
def test_each_target_is_first_and_last_equally_often_and_before_each_other_as_often_as_after_it(
    num_targets: int,
) -> None:
    targets = range(num_targets)
    found = [order(targets, number, 2 * num_targets) for number in range(2 * num_targets)]
    for place in (0, -1):
        assert Counter(one[place] for one in found) == dict.fromkeys(targets, 2)
    for a in targets:
        for b in range(a):
            assert sum(one.index(a) < one.index(b) for one in found) == num_targets


def test_few_rounds_of_many_targets_begin_far_apart() -> None:
    assert len({order("abcdef", number, 4)[0] for number in range(4)}) == 4


def test_what_is_slow_gets_fewer_rounds_but_enough_for_an_interval() -> None:
    assert len(list(rounds("ab", 10, limit_s=0.0))) == MIN_REPEATS
    assert len(list(rounds("ab", 2, limit_s=0.0))) == 2


def test_each_side_gives_its_values_round_by_round() -> None:
    calls: list[str] = []
    found = in_turn({side: lambda side=side: calls.append(side) or len(calls) for side in "ab"}, 4)  # type: ignore[misc]
    assert calls == list("abbabaab")
    assert found == {"a": [1, 4, 6, 7], "b": [2, 3, 5, 8]}


def test_the_first_call_of_a_slice_counts_only_where_it_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    clock = SimpleNamespace(perf_counter=lambda: 0.001 * len(calls))  # a call takes a millisecond
    monkeypatch.setattr("serving.measure.rounds.time", clock)
    assert len(times(lambda: calls.append(1), 0.005)) == len(calls) - 1
    calls.clear()
    assert len(times(lambda: calls.append(1), 0.0)) == len(calls) == 1


def test_a_ratio_is_taken_round_by_round() -> None:
    # The machine was half as fast in the second round: the medians' ratio is 1.5, each round's is 2 or 1.
    assert ratio([4, 2, 3], [2, 1, 3]) == spread([2, 2, 1])


def test_rounds_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([1, 2], [1])


def test_the_least_of_short_calls_takes_turns_and_counts_one_call() -> None:
    order: list[str] = []
    least = least_s({name: partial(order.append, name) for name in ("a", "b")}, num_rounds=3, num_calls=4)
    assert [name for name, _ in groupby(order)] != order
    assert order.count("a") == order.count("b") == 12
    assert set(least) == {"a", "b"}
    assert all(0 < seconds < 0.1 for seconds in least.values())
