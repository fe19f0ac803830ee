"""Prices by hand: of a million requests, and compared as they were written."""

from __future__ import annotations

import pytest

from serving.decisions.prices import exact, is_less, per_million


def test_a_million_requests_cost_the_time_that_they_take() -> None:
    assert per_million(3.6, 1000.0) == pytest.approx(1.0)
    assert per_million(0.526, 5808) == pytest.approx(0.025, abs=0.0005)  # an anchor: ResNet-50 on a T4


def test_three_servers_at_ten_cents_cost_as_much_as_one_at_thirty() -> None:
    assert 3 * 0.1 != 0.3
    assert 3 * exact(0.1) == exact(0.3)


def test_prices_that_differ_by_what_floats_leave_are_the_same() -> None:
    six_of_six = 6 * exact(3.4 / 6)
    assert not is_less(six_of_six, exact(3.4))
    assert not is_less(exact(3.4), six_of_six)
    assert is_less(exact(3.39), exact(3.4))
