"""Two pools that nobody scales answer what paper and pencil say, and go by rows and price."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from serving.decisions.simulate.fixed_pools import FixedPool, replay
from serving.decisions.simulate.outcome import Tally
from serving.decisions.simulate.pool import SimulatedPool
from serving.decisions.simulate.requests import RequestFlow
from serving.decisions.simulate.scenario import ColdStart, PoolSetting
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
    found = replay(pools, poisson(750, 20.0), 0.3)
    assert found.goodput_rps == pytest.approx(50 + 200, rel=0.03)
    assert found.attainment_ratio == pytest.approx(250 / 750, rel=0.05)
    assert found.num_requests == found.num_in_time + found.num_late + found.num_refused + found.num_expired
    assert dict(found.num_by_pool)["gpu"] == pytest.approx(200 * 20, rel=0.03)


def test_few_rows_go_to_the_cheap_pool_and_many_to_the_fast_one() -> None:
    few = dict(replay([SLOW, FAST], poisson(5, 60.0), 0.5).num_by_pool)
    many = dict(replay([SLOW, FAST], poisson(5, 60.0, rows=16), 0.5).num_by_pool)
    assert few["gpu"] == 0 == many["cpu"]
    mixed = [*poisson(5, 60.0), *poisson(5, 60.0, rows=16)]
    assert dict(replay([SLOW, FAST], mixed, 0.5).num_by_pool) == {"cpu": few["cpu"], "gpu": many["gpu"]}


def test_servers_are_as_many_as_were_said() -> None:
    one, three = (replay([FixedPool("cpu", SLOW.service, 0.1, n)], poisson(300, 15.0), 0.3) for n in (1, 3))
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


@pytest.mark.parametrize("num_gateways", [pytest.param(2, marks=pytest.mark.thorough), 4])
def test_several_gateways_do_as_much_as_one_once_they_have_seen_what_the_server_does_for_the_others(
    num_gateways: int,
) -> None:
    pools, load = [FixedPool("gpu", Service(Curve(((1, 0.01), (8, 0.01))), 1, 8), 0.5)], poisson(1600, 8.0)
    unknown, known = (replay(pools, load, 0.05, num_gateways=num_gateways, begin_s=begin_s) for begin_s in (0.0, 4.0))
    assert known.goodput_rps == pytest.approx(800, rel=0.05)
    assert known.num_late <= 0.005 * known.num_in_time
    assert unknown.num_late > known.num_late
    assert known.num_requests == sum(at >= 4.0 for at, _ in load)
    assert known.num_requests == known.num_in_time + known.num_late + known.num_refused + known.num_expired


@pytest.mark.parametrize("num_gateways", [2, 4])
@pytest.mark.parametrize(("points", "rate_rps"), [(((1, 0.06), (32, 1.92)), 28.0), (((1, 0.035), (8, 0.07)), 120.0)])
def test_a_request_is_demand_for_as_much_however_many_gateways_share_the_servers(
    num_gateways: int, points: tuple[tuple[int, float], ...], rate_rps: float
) -> None:
    """What others send makes answers later, and a gateway learns that: it is no work of its own."""
    service = Service(Curve(points), 1, points[-1][0])
    setting = PoolSetting("cpu", service, 1.0, 2, 2, ColdStart(0, 0, 0))
    pool = SimulatedPool(setting, num_gateways)
    pool.begin_with(2)
    flow = RequestFlow([pool], 2.0, Tally(2.0), None)
    demands_s = []
    for number, at in enumerate(at for at, _ in poisson(rate_rps, 30.0)):
        flow.until(at)
        flow.ask(at, 1, 1, number % num_gateways)
        if at > 10.0:
            demands_s.append(pool.candidates[number % num_gateways].service.work_s(1))
    assert fmean(demands_s) == pytest.approx(service.cost_s(1), rel=0.03)
