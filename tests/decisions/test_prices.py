"""Prices of servers and of requests."""

from __future__ import annotations

import pytest

from serving.decisions.prices import Price


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_what_is_no_price_is_refused(price: float) -> None:
    with pytest.raises(ValueError, match="a price"):
        Price(price)


def test_a_server_that_answers_nothing_has_no_price_per_answer() -> None:
    with pytest.raises(ValueError, match="no price"):
        Price(1.0).per_million(0.0)


def test_a_request_is_charged_for_the_time_it_takes() -> None:
    assert Price(3.6).of(2.0) == pytest.approx(0.002)


def test_a_million_answers_cost_what_the_server_costs_meanwhile() -> None:
    assert Price(0.526).per_million(5808) == pytest.approx(0.025, abs=0.0005)  # an anchor: ResNet-50 on a T4
