"""The sizes of batches that get buffers: padding costs no more than was stated, and no fewer sizes would do."""

from __future__ import annotations

from bisect import bisect_left
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.decisions.batch_buckets import MOST_PADDING_RATIO, batch_buckets, padding_ratio
from serving.scheduling.curve import Curve

seconds = st.floats(1e-5, 1.0)
curves = st.dictionaries(st.integers(1, 64), seconds, min_size=1, max_size=6).map(
    lambda points: Curve(tuple(sorted(points.items())))
)
shares = st.floats(0.0, 2.0)


def worst(curve: Curve, buckets: tuple[int, ...]) -> float:
    """Batch by batch, by another way than the code's: a batch costs what the dearest of as many rows or fewer does."""

    def cost(rows: int) -> float:
        return max(curve.seconds(fewer) for fewer in range(1, rows + 1))

    return max(cost(buckets[bisect_left(buckets, rows)]) / cost(rows) - 1 for rows in range(1, buckets[-1] + 1))


@given(curves, st.integers(1, 48), shares)
def test_every_batch_fits_and_none_is_padded_by_more_than_the_share(curve: Curve, most_rows: int, share: float) -> None:
    buckets = batch_buckets(curve, most_rows, share)
    assert buckets[-1] == most_rows
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] >= 1
    assert worst(curve, buckets) <= share * (1 + 1e-9) + 1e-12
    assert padding_ratio(curve, buckets) == pytest.approx(worst(curve, buckets))


@given(curves, st.integers(1, 9), shares)
def test_no_fewer_sizes_would_do(curve: Curve, most_rows: int, share: float) -> None:
    buckets = batch_buckets(curve, most_rows, share)
    for fewer in combinations(range(1, most_rows), max(0, len(buckets) - 2)):
        assert len(buckets) == 1 or worst(curve, (*fewer, most_rows)) > share


@given(curves, st.integers(1, 64), shares, shares)
def test_a_larger_share_never_asks_for_more_sizes(curve: Curve, most_rows: int, one: float, other: float) -> None:
    strict, lenient = sorted((one, other))
    assert len(batch_buckets(curve, most_rows, lenient)) <= len(batch_buckets(curve, most_rows, strict))


@pytest.mark.parametrize(
    ("points", "most_rows", "expected"),
    [
        (((1, 0.005), (32, 0.005)), 32, (32,)),  # a card that is not full yet: one size
        (((1, 0.001),), 8, (1, 2, 3, 4, 6, 8)),  # every row costs: 8 for 7 is 14 % more, for 6 it would be 33 %
        (((1, 0.004), (8, 0.0045), (32, 0.016)), 32, (6, 10, 14, 19, 25, 32)),  # full from 8 rows on
        (((1, 0.002), (4, 0.001), (8, 0.002)), 8, (8,)),  # what falls is noise
        (((1, 0.001), (2, 1.0)), 1, (1,)),
    ],
)
def test_the_sizes_follow_the_curve(
    points: tuple[tuple[float, float], ...], most_rows: int, expected: tuple[int, ...]
) -> None:
    assert batch_buckets(Curve(points), most_rows) == expected
    assert padding_ratio(Curve(points), expected) <= MOST_PADDING_RATIO


@pytest.mark.parametrize(("most_rows", "share"), [(0, 0.1), (-1, 0.1), (8, -0.1)])
def test_without_batches_or_with_a_negative_share_there_are_none(most_rows: int, share: float) -> None:
    with pytest.raises(ValueError, match="buckets need"):
        batch_buckets(Curve(((1, 0.001),)), most_rows, share)
