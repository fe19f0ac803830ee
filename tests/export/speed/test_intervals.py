"""How sure a ratio is."""

from __future__ import annotations

import numpy as np
import pytest

from serving.export.speed import ratio_interval


def test_equal_ratios_have_an_interval_of_no_width() -> None:
    assert ratio_interval([np.full(30, 1.5)] * 5) == (1.5, 1.5, 1.5)


def test_the_interval_holds_the_median_and_is_the_same_every_time() -> None:
    rounds = [np.random.default_rng(i).normal(1.2, 0.1, 40) for i in range(5)]
    ratio, low, high = ratio_interval(rounds)
    assert 1.1 < low < ratio < high < 1.3
    assert ratio_interval(rounds) == (ratio, low, high)


def test_one_wild_turn_does_not_move_the_ratio() -> None:
    ratios = np.full(40, 1.2)
    ratios[7] = 900.0
    assert ratio_interval([ratios] * 5) == (1.2, 1.2, 1.2)


def test_rounds_that_disagree_widen_the_interval_beyond_what_their_pairs_would() -> None:
    pairs = [np.random.default_rng(i).normal(0.0, 0.001, 100) for i in range(5)]
    shifts = (0.95, 0.98, 1.0, 1.02, 1.05)
    _, low, high = ratio_interval([shift + noise for shift, noise in zip(shifts, pairs, strict=True)])
    assert low < 0.99 < 1.01 < high
    _, low, high = ratio_interval([1.0 + noise for noise in pairs])
    assert high - low < 0.001


@pytest.mark.parametrize("lengths", [(1, 1, 1), (2, 40, 3), (1,), (3000, 2)])
def test_rounds_may_have_any_number_of_turns(lengths: tuple[int, ...]) -> None:
    rounds = [np.random.default_rng(i).uniform(1.0, 2.0, length) for i, length in enumerate(lengths)]
    ratio, low, high = ratio_interval(rounds)
    assert min(r.min() for r in rounds) <= low <= ratio <= high <= max(r.max() for r in rounds)


def test_few_turns_are_less_sure_than_many() -> None:
    def width(count: int) -> float:
        _, low, high = ratio_interval([np.random.default_rng(i).normal(1.0, 0.1, count) for i in range(3)])
        return high - low

    assert width(2) > 3 * width(200)
