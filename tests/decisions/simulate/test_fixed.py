"""Two pools that nobody scales answer what paper and pencil say, and go by rows and price."""

from __future__ import annotations

import random

import pytest

from serving.decisions.simulate.fixed_pools import FixedPool, replay
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service

SLOW = FixedPool("cpu", Service(Curve(((1, 0.02), (16, 0.32))), max_batch=16), price_per_hour=0.1)  # 50 rows/s
FAST = FixedPool("gpu", Service(Curve(((1, 0.01), (16, 0.02))), max_batch=16), price_per_hour=0.5)  # 800 rows/s


def poisson(rate: float, duration_s: float, rows: float = 1.0) -> list[tuple[float, float]]:
    generator, at, times = random.Random(1), 0.0, []
    while (at := at + generator.expovariate(rate)) < duration_s:
        times.append((at, rows))
    return times


def test_nothing_came() -> None:
    found = replay([SLOW, FAST], [], 0.3)
    assert (found.num_requests, found.attainment_ratio, found.throughput_rps) == (0, 1.0, 0.0)


def test_all_are_answered_where_there_is_enough() -> None:
    found = replay([SLOW, FAST], poisson(30, 60.0), 0.3)
    assert found.attainment_ratio == 1.0
    assert found.throughput_rps == found.goodput_rps == pytest.approx(found.num_requests / 60, rel=0.02)


def test_two_overloaded_pools_answer_what_both_can() -> None:
    pools = [SLOW, FixedPool("gpu", Service(Curve(((1, 0.01),))), 0.5, num_servers=2)]
    found = replay(pools, poisson(750, 60.0), 0.3)
    assert found.goodput_rps == pytest.approx(50 + 200, rel=0.03)
    assert found.attainment_ratio == pytest.approx(250 / 750, rel=0.05)
    assert found.num_requests == found.num_in_time + found.num_late + found.num_refused + found.num_expired
    assert dict(found.num_by_pool)["gpu"] == pytest.approx(200 * 60, rel=0.03)


def test_few_rows_go_to_the_cheap_pool_and_many_to_the_fast_one() -> None:
    few = dict(replay([SLOW, FAST], poisson(5, 60.0), 0.5).num_by_pool)
    many = dict(replay([SLOW, FAST], poisson(5, 60.0, rows=16), 0.5).num_by_pool)
    assert few["gpu"] == 0 == many["cpu"]
    mixed = [*poisson(5, 60.0), *poisson(5, 60.0, rows=16)]
    assert dict(replay([SLOW, FAST], mixed, 0.5).num_by_pool) == {"cpu": few["cpu"], "gpu": many["gpu"]}


def test_servers_are_as_many_as_were_said() -> None:
    one, three = (replay([FixedPool("cpu", SLOW.service, 0.1, n)], poisson(300, 30.0), 0.3) for n in (1, 3))
    assert three.goodput_rps == pytest.approx(3 * one.goodput_rps, rel=0.05)
    with pytest.raises(ValueError, match="server"):
        replay([FixedPool("cpu", SLOW.service, 0.1, 0)], [], 0.3)


def test_noise_stretches_executions() -> None:
    noisy = FixedPool("cpu", SLOW.service, 0.1, noise_ratio=0.5)
    plain = replay([SLOW], poisson(10, 60.0), 0.3)
    slower = replay([noisy], poisson(10, 60.0), 0.3, lambda noise_ratio: 1 + noise_ratio)
    assert slower.latency_p50_s == pytest.approx(1.5 * plain.latency_p50_s, rel=0.05)  # type: ignore[operator]
    with pytest.raises(ValueError, match="draws it"):
        replay([noisy], poisson(10, 60.0), 0.3)
