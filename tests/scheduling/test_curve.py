"""Seconds of an execution between, below and beyond what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.scheduling.curve import Curve

CURVE = Curve(((1, 0.002), (8, 0.004), (64, 0.02)))


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ((), "at least one point"),
        (((0, 1.0),), "positive"),
        (((-1, 1.0),), "positive"),
        (((1, 0.0),), "positive"),
        (((1, -1.0),), "positive"),
        (((1, float("nan")),), "positive"),
        (((1, float("inf")),), "positive"),
        (((1, 1.0), (1, 2.0)), "ascend"),
        (((8, 1.0), (1, 2.0)), "ascend"),
    ],
)
def test_points_that_are_no_curve_are_refused(points: tuple[tuple[float, float], ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Curve(points)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        (1, 0.002),
        (8, 0.004),
        (64, 0.02),
        (4.5, 0.003),  # half-way
        (36, 0.012),
        (0.5, 0.002),  # no execution is cheaper than the smallest measured one
        (128, 0.04),  # beyond the last the last rate goes on
    ],
)
def test_a_curve_is_straight_between_its_points(rows: float, seconds: float) -> None:
    assert CURVE.seconds(rows) == pytest.approx(seconds)


@pytest.mark.parametrize(("most", "rate"), [(1, 500), (8, 2000), (36, 3000), (64, 3200)])
def test_the_best_rate_counts_only_executions_that_are_allowed(most: float, rate: float) -> None:
    assert CURVE.rate_rows_per_s(most) == pytest.approx(rate)


def test_large_batches_that_are_slower_are_not_the_best_rate() -> None:
    curve = Curve(((1, 0.01), (8, 0.02), (16, 0.08)))
    assert curve.best_rate_rows_per_s == 400
    assert curve.rate_rows_per_s(16) == 400


def test_a_scaled_curve_is_slower_everywhere() -> None:
    assert CURVE.scaled(3).seconds(5) == pytest.approx(3 * CURVE.seconds(5))


POINTS = st.lists(st.tuples(st.integers(1, 512), st.floats(1e-5, 10)), min_size=1, max_size=6, unique_by=lambda p: p[0])


@settings(deadline=None)  # of one example: machines are busy
@given(POINTS, st.floats(0.01, 1e4))
def test_a_curve_goes_through_its_points_and_never_leaves_their_range_between_them(
    points: list[tuple[int, float]], rows: float
) -> None:
    points.sort()
    curve = Curve(tuple(points))
    for at, seconds in points:
        assert curve.seconds(at) == pytest.approx(seconds)
    if rows <= points[-1][0]:
        times = [seconds for _, seconds in points]
        assert min(times) * (1 - 1e-9) <= curve.seconds(rows) <= max(times) * (1 + 1e-9)
