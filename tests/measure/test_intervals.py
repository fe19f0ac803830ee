"""When two arms are called different: the rule's own numbers, and when it refuses to say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from serving.measure.intervals import Difference, paired, t_inside_ratio, t_quantile, unpaired


@pytest.mark.parametrize(
    ("freedom", "beyond", "expected"),
    [  # from printed tables
        (1, 0.05, 12.7062), (2, 0.05, 4.3027), (3, 0.05, 3.1824), (4, 0.05, 2.7764), (5, 0.05, 2.5706),
        (9, 0.05, 2.2622), (10, 0.05, 2.2281), (30, 0.05, 2.0423), (1000, 0.05, 1.9623), (2, 0.01, 9.9248), (9, 0.001, 4.7809),
    ],
)  # fmt: skip
def test_students_t_is_the_one_of_the_tables(freedom: int, beyond: float, expected: float) -> None:
    assert t_quantile(freedom, beyond) == pytest.approx(expected, abs=1e-4)
    assert t_inside_ratio(expected, freedom) == pytest.approx(1 - beyond, abs=1e-4)


def test_a_ratio_is_told_with_its_interval() -> None:
    found = paired([1.0, 2.0, 4.0])
    assert found is not None
    reach = 4.3027 * math.log(2) / math.sqrt(3)
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (pytest.approx(2 * math.exp(-reach), rel=1e-4), pytest.approx(2 * math.exp(reach), rel=1e-4))  # fmt: skip
    assert found.outcome == "no_difference_seen"
    assert found.smallest_seen_ratio == pytest.approx(math.exp(reach) - 1, rel=1e-4)


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [
        ([2.0], "inconclusive"),
        ([2.0, 2.0], "inconclusive"),
        ([2.0, 2.0, 2.0], "higher"),
        ([0.5, 0.5, 0.5], "lower"),
        ([1.0, 1.0, 1.0], "no_difference_seen"),
        ([1.02, 1.03, 1.025], "higher"),
        ([0.98, 0.97, 0.975], "lower"),
        ([1.02, 1.03, 1.3], "no_difference_seen"),  # higher each time, but who knows by how much
        ([1.02, 1.03, 0.98], "no_difference_seen"),
    ],
)
def test_arms_differ_only_if_the_interval_leaves_out_one(ratios: list[float], outcome: str) -> None:
    found = paired(ratios)
    assert found is not None
    assert found.outcome == outcome
    assert (found.low is None) == (outcome == "inconclusive")


def test_runs_that_differ_beyond_all_measure_have_an_interval_that_ends_somewhere() -> None:
    """Two runs in a thousandfold, and a strict rule for many values: floats end before the interval does."""
    for found in (paired([1e-300, 1e300, 1.0]), unpaired([1e-3, 1.0, 1e3], [1e-3, 1.0, 1e3], 1e-6)):
        assert found is not None
        assert found.outcome == "no_difference_seen"
        assert found.high is not None
        assert math.isfinite(found.high)


def test_the_order_of_the_two_arms_does_not_matter() -> None:
    ratios = [1.1, 1.2, 1.15, 1.3]
    forth, back = paired(ratios), paired([1 / one for one in ratios])
    assert forth is not None
    assert back is not None
    assert (forth.outcome, back.outcome) == ("higher", "lower")
    assert forth.high is not None
    assert back.low == pytest.approx(1 / forth.high)


def test_counts_that_happen_to_agree_are_not_taken_for_certainty() -> None:
    once_more = [11 / 10] * 3  # of ten answers one more, in all three repeats
    certain, counted = paired(once_more), paired(once_more, step_ratio=1 / 10)
    assert certain is not None
    assert counted is not None
    assert (certain.outcome, counted.outcome) == ("higher", "no_difference_seen")


def test_nothing_is_compared_with_nothing() -> None:
    assert paired([]) is None
    assert unpaired([], [1.0]) is None
    assert unpaired([1.0], []) is None


@pytest.mark.parametrize("wrong", [[1.0, 0.0, 1.0], [-1.0] * 3])
def test_what_has_no_logarithm_is_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        paired(wrong)
    with pytest.raises(ValueError, match="above 0"):
        unpaired(wrong, [1.0] * 3)


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        ([2.0, 2.1, 1.9], [1.0, 1.05, 0.95], "higher"),
        ([1.0, 1.05, 0.95], [2.0, 2.1, 1.9], "lower"),
        ([1.0, 1.1, 0.9], [1.0, 1.05, 0.95], "no_difference_seen"),
        ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], "higher"),
        ([1.0] * 3, [1.0] * 3, "no_difference_seen"),
        ([2.0, 2.1], [1.0, 1.05, 0.95], "inconclusive"),
        ([9.0, 9.0, 9.0], [1.0], "inconclusive"),
    ],
)
def test_runs_without_partners_are_compared_too(ours: list[float], theirs: list[float], outcome: str) -> None:
    found = unpaired(ours, theirs)
    assert found is not None
    assert found.outcome == outcome


@pytest.mark.parametrize(("num_ours", "num_theirs"), [(3, 3), (3, 10), (10, 10)])
def test_equal_runs_without_partners_are_called_different_as_seldom_as_promised(num_ours: int, num_theirs: int) -> None:
    random = np.random.default_rng(3)
    found: list[Difference | None] = [
        unpaired(list(np.exp(random.normal(0, 0.05, num_ours))), list(np.exp(random.normal(0, 0.05, num_theirs))))
        for _ in range(2000)
    ]
    alarms = sum(1 for one in found if one and one.outcome != "no_difference_seen")
    assert 0.02 <= alarms / 2000 <= 0.08
