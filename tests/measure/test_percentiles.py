"""Percentiles and intervals against answers that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from serving.measure.intervals import Estimate, estimate, searched
from serving.measure.percentiles import between_ranks, curve, percentile
from serving.measure.search import Search, find


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


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.9, 0.99, 1.0])
def test_a_value_between_two_ranks_is_numpys(count: int, q: float) -> None:
    values = np.random.default_rng(count).normal(size=count)
    assert between_ranks(values, q) == pytest.approx(float(np.percentile(values, 100 * q)))


def test_a_stall_shows_in_p99_and_not_in_the_median() -> None:
    values = np.array([0.01] * 1960 + [1.0] * 40)
    assert percentile(values, 0.5) == pytest.approx(0.01)
    assert percentile(values, 0.99) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("runs", "median", "low", "high"),
    [
        ([5.0], 5.0, None, None),
        ([1.0, 3.0], 2.0, None, None),
        ([3.0, 3.0, 3.0], 3.0, 3.0, 3.0),
        ([1.0, 2.0, 4.0], 2.0, 0.3575, 11.188),  # 2 times e^(±4.3027 · ln 2 / √3)
        ([0.0, 1.0, 2.0], 1.0, 0.0, 3.4841),  # nothing is below none
    ],
)
def test_the_interval_of_few_runs_is_as_wide_as_students_t_makes_it(
    runs: list[float], median: float, low: float | None, high: float | None
) -> None:
    found = estimate(runs)
    assert found is not None
    assert found.median == median
    if low is None:
        assert found.low is found.high is None
    else:
        assert (found.low, found.high) == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))


def test_no_runs_give_no_estimate() -> None:
    assert estimate([]) is None


def test_the_interval_of_a_share_stays_within_what_a_share_can_be() -> None:
    assert estimate([0.99, 1.0, 0.98], most=1.0) == Estimate(
        0.99, pytest.approx(0.96516, abs=1e-4), 1.0, (0.99, 1.0, 0.98)
    )


def test_a_median_far_from_the_mean_is_still_within_its_interval() -> None:
    found = estimate([1.0] * 9 + [1000.0])
    assert found is not None
    assert found.low is not None
    assert found.low <= found.median


@pytest.mark.parametrize("num_runs", [3, 5, 10])
def test_the_interval_holds_the_true_value_as_often_as_it_says(num_runs: int) -> None:
    random = np.random.default_rng(11)
    found = [estimate(list(np.exp(random.normal(0, 0.05, num_runs)))) for _ in range(2000)]
    hits = sum(1 for e in found if e and e.low is not None and e.high is not None and e.low <= 1 <= e.high)
    assert hits / 2000 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 2000))


def test_a_curve_rises_from_the_fastest_to_the_slowest() -> None:
    points = curve(np.random.default_rng(2).exponential(1.0, 5000))
    values, shares = zip(*points, strict=True)
    assert list(values) == sorted(values)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert curve(np.array([])) == []


def searches(noise: float, seed: int, step_ratio: float = 1.06) -> tuple[float, ...]:
    """Estimates of a server that carries 1,000 requests per second, by the search that profiles use."""
    random = np.random.default_rng(seed)
    start_rps = float(random.uniform(250, 750))
    search = Search(start_rps, start_rps / 10, step_ratio, 3, 12)
    return find(search, lambda rate: "met" if rate <= 1000 * math.exp(random.normal(0, noise)) else "missed").estimates


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03, 0.08])
def test_the_interval_of_a_searched_rate_holds_the_true_one_also_where_all_repeats_agree(noise: float) -> None:
    told = [searched(searches(noise, seed), 1.06) for seed in range(300)]
    known = [one for one in told if one is not None and one.low is not None and one.high is not None]
    assert len(known) > 250
    assert sum(one.low <= 1000 <= one.high for one in known) / len(known) >= 0.92  # type: ignore[operator]


def test_one_searched_rate_has_no_interval_either() -> None:
    assert searched([], 1.06) is None
    assert searched([1000.0], 1.06) == Estimate(1000.0, None, None, (1000.0,))
