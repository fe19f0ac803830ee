"""What whole servers cost at a rate, and that the break-even is where the cheaper kind really changes, once and for all."""

from __future__ import annotations

import math
import random

import pytest

from serving.decisions.break_even import break_even_rps
from serving.decisions.fleet import cost_point, curve, replicas
from serving.decisions.prices import per_million
from tests.decisions.plan.figures import objective, priced

ASKED = objective(100)


@pytest.mark.parametrize(
    ("rate", "headroom", "fewest", "count"),
    [
        (0, 1.0, 1, 1),
        (100, 1.0, 1, 1),
        (100.1, 1.0, 1, 2),
        (100, 0.7, 1, 2),
        (70, 0.7, 1, 1),
        (70, 0.7, 2, 2),
        (1000, 1.0, 2, 10),
        (0, 1.0, 0, 1),
    ],
)
def test_servers_are_whole_no_busier_than_the_headroom_and_never_fewer_than_the_fewest(
    rate: float, headroom: float, fewest: int, count: int
) -> None:
    asked = objective(rate, headroom_ratio=headroom, min_replicas=fewest)
    assert replicas(priced("cpu", 100, 0.2), rate, asked) == count


def test_a_million_costs_what_the_hours_that_it_takes_cost() -> None:
    one = priced("cpu", 100, 0.36)
    assert one.per_million() == pytest.approx(1.0)
    assert one.per_million(0.5) == pytest.approx(2.0)
    assert per_million(0.36, 50) == pytest.approx(2.0)


def test_a_kind_that_is_missing_or_carries_nothing_has_no_price() -> None:
    point = cost_point([priced("cpu", 0, 0.2)], [], 10, ASKED)
    assert (point.cpu_per_hour, point.gpu_per_hour) == (None, None)


def test_a_curve_has_the_objectives_rates_and_goes_up_in_steps() -> None:
    points = curve([priced("cpu", 30, 0.2)], [priced("gpu", 1000, 0.5)], ASKED, 2, 200.0)
    assert {100.0, 0.0, 200.0} <= {point.rate_rps for point in points}
    prices = [point.cpu_per_hour or 0 for point in points]
    assert prices == sorted(prices)
    assert (points[0].cpu_replicas, points[0].gpu_replicas) == (2, 2)


# -- the break-even ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "gpu", "fewest", "expected"),
    [
        ((100, 0.2), (1000, 0.5), 1, 200.0),  # a third CPU server is dearer than a card
        ((100, 0.2), (1000, 0.6), 1, 300.0),  # three cost as much: the fourth
        ((100, 0.2), (1000, 0.5), 2, 500.0),  # two cards: the sixth
        ((100, 0.2), (150, 0.5), 1, None),  # dearer for each request
        ((100, 0.2), (1000, 0.1), 1, 0.0),  # cheaper anyway
        ((100, 0.2), (250, 0.5), 1, None),  # at its best it is no cheaper
        ((100, 0.2), (300, 0.5), 1, 1000.0),  # cheaper from 200 to 300, and only from 1,000 on for good
    ],
)
def test_the_break_even_of_whole_servers_by_hand(
    cpu: tuple[float, float], gpu: tuple[float, float], fewest: int, expected: float | None
) -> None:
    asked = objective(100, min_replicas=fewest)
    found = break_even_rps([priced("cpu", *cpu)], [priced("gpu", *gpu)], asked)
    assert found == (None if expected is None else pytest.approx(expected, rel=1e-6))


@pytest.mark.parametrize("seed", range(40))
def test_the_cheaper_kind_flips_within_two_per_cent_of_the_break_even_and_never_again_above(seed: int) -> None:
    draw = random.Random(seed)
    cpu = [priced("cpu", draw.uniform(20, 200), draw.uniform(0.05, 0.4)) for _ in range(draw.randint(1, 2))]
    gpu = [priced("gpu", draw.uniform(500, 5000), draw.uniform(0.4, 2.0)) for _ in range(draw.randint(1, 2))]
    asked = objective(100, min_replicas=draw.choice([1, 2]), headroom_ratio=draw.choice([0.7, 1.0]))
    found = break_even_rps(cpu, gpu, asked)

    def gpu_is_cheaper(rate: float) -> bool:
        point = cost_point(cpu, gpu, rate, asked)
        assert point.cpu_per_hour is not None
        assert point.gpu_per_hour is not None
        return point.gpu_per_hour < point.cpu_per_hour

    if found is None:
        assert not all(gpu_is_cheaper(rate * 1000.0) for rate in range(50, 60))
        return
    assert gpu_is_cheaper(found * 1.02 + 1e-6)
    assert found == 0 or not gpu_is_cheaper(found * (1 - 1e-6))
    top = max(found, 100) * 20
    assert all(gpu_is_cheaper(found + 1e-6 + (top - found) * k / 4000) for k in range(4000))


@pytest.mark.parametrize("seed", range(20))
def test_with_ever_smaller_cpu_servers_the_break_even_nears_the_closed_form(seed: int) -> None:
    draw = random.Random(seed)
    rate, price = draw.uniform(50, 300), draw.uniform(0.1, 0.3)
    card = priced("gpu", 1e6, draw.uniform(0.4, 2.0))  # one carries all: only the CPU has steps
    whole = priced("cpu", rate, price)
    asked = objective(100, headroom_ratio=0.7)
    closed = card.per_hour / price * rate * 0.7  # were CPU servers divisible
    small = priced("cpu", rate / 100, price / 100)
    assert break_even_rps([small], [card], asked) == pytest.approx(closed, rel=0.02)
    steps = math.floor(card.per_hour / price + 1e-9)  # of whole servers: as many as cost no more than the card
    assert break_even_rps([whole], [card], asked) == pytest.approx(steps * rate * 0.7, rel=1e-6)


def test_two_kinds_that_nearly_agree_are_an_answer_in_time() -> None:
    found = break_even_rps([priced("cpu", 1.0, 0.2)], [priced("gpu", 1.00001, 0.2)], ASKED)
    assert found is None or found >= 0
