"""Percentiles and intervals against answers that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtest.estimates import chance_apart, chance_same_side, curve, estimate, is_apart, percentile, range_coverage


@pytest.mark.parametrize(
    ("count", "q", "expected"),
    [
        (1001, 0.50, 500.0),
        (1001, 0.90, 900.0),
        (1001, 0.99, 990.0),
        (20, 0.50, 9.5),  # between the two middle ones
        (100, 0.90, 89.1),
        (19, 0.50, None),  # nine lie beyond
        (99, 0.90, None),
        (999, 0.99, None),
        (0, 0.50, None),
    ],
)
def test_a_percentile_is_told_only_where_ten_samples_lie_beyond_it(
    count: int, q: float, expected: float | None
) -> None:
    values = np.arange(count, dtype=np.float64)
    found = percentile(np.random.default_rng(1).permutation(values), q)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_a_stall_shows_in_p99_and_not_in_the_median() -> None:
    values = np.array([0.01] * 1960 + [1.0] * 40)
    assert percentile(values, 0.5) == pytest.approx(0.01)
    assert percentile(values, 0.99) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("runs", "median", "low", "high"),
    [
        ([5.0], 5.0, None, None),
        ([1.0, 2.0, 9.0], 2.0, 1.0, 9.0),  # each end has a chance of 7/27, far above 2.5 %
        ([3.0, 3.0, 3.0], 3.0, 3.0, 3.0),
        ([1.0, 3.0], 2.0, 1.0, 3.0),
    ],
)
def test_the_interval_of_few_runs_is_their_range(
    runs: list[float], median: float, low: float | None, high: float | None
) -> None:
    found = estimate(runs, seed=1)
    assert found is not None
    assert (found.median, found.low, found.high) == (median, low, high)


def test_no_runs_give_no_estimate() -> None:
    assert estimate([], seed=1) is None


def test_the_interval_is_the_same_for_the_same_seed() -> None:
    runs = list(np.random.default_rng(3).normal(100, 5, 20))
    assert estimate(runs, seed=4) == estimate(runs, seed=4)


def test_the_interval_of_many_runs_holds_the_true_median_nearly_as_often_as_it_says() -> None:
    random = np.random.default_rng(11)
    found = [estimate(list(random.normal(0, 1, 15)), seed) for seed in range(200)]
    hits = sum(1 for e in found if e and e.low is not None and e.high is not None and e.low <= 0 <= e.high)
    # 95 % promised; the percentile bootstrap of a median of 15 is known to reach about 93 %, and 200 trials deviate by 2 %
    assert 0.88 <= hits / 200 <= 1.0


@pytest.mark.parametrize(("num_runs", "share"), [(0, 0.0), (1, 0.0), (2, 0.5), (3, 0.75), (6, 0.96875)])
def test_the_range_of_few_runs_claims_no_more_than_it_can(num_runs: int, share: float) -> None:
    assert range_coverage(num_runs) == share


@pytest.mark.parametrize(
    ("ours", "theirs", "order"),
    [([3, 4], [1, 2], 1), ([1, 2], [3, 4], -1), ([1, 3], [2, 4], 0), ([2, 3], [1, 2], 0), ([1], [1], 0)],
)
def test_arms_are_apart_only_if_no_run_overlaps(ours: list[float], theirs: list[float], order: int) -> None:
    assert is_apart(ours, theirs) == order


def test_equal_arms_look_apart_as_often_as_said() -> None:
    random = np.random.default_rng(5)
    trials = 3000
    apart = sum(1 for _ in range(trials) if is_apart(list(random.normal(size=3)), list(random.normal(size=3))))
    assert chance_apart(3, 3) == pytest.approx(0.1)
    assert apart / trials == pytest.approx(0.1, abs=4 * math.sqrt(0.1 * 0.9 / trials))


def test_the_chance_that_equal_arms_differ_the_same_way_in_every_pair_is_what_it_is() -> None:
    random = np.random.default_rng(6)
    trials = 3000
    pairs = [random.normal(size=3) > random.normal(size=3) for _ in range(trials)]
    apart = sum(1 for ours_is_above in pairs if ours_is_above.all() or not ours_is_above.any())
    assert chance_same_side(3) == 0.25
    assert apart / trials == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / trials))


def test_a_curve_rises_from_the_fastest_to_the_slowest() -> None:
    points = curve(np.random.default_rng(2).exponential(1.0, 5000))
    values, shares = zip(*points, strict=True)
    assert list(values) == sorted(values)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert curve(np.array([])) == []
