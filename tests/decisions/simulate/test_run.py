"""Every request is counted once, and the same seed gives the same result."""

from __future__ import annotations

import os
import random
from dataclasses import asdict, replace
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.decisions.fleet import Quota
from serving.decisions.simulate import flow
from serving.decisions.simulate.arrivals import Bursts, ListedArrivals, bursts, copies, daily, poisson, share_of
from serving.decisions.simulate.outcome import Latencies
from serving.decisions.simulate.pool import SimulatedPool
from serving.decisions.simulate.requests import Backlog
from serving.decisions.simulate.scenario import POLICIES, ColdStart, PoolSetting
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.decisions.simulate import settings as small
from tests.decisions.simulate.settings import cpu, gpu, run, setting


@pytest.mark.parametrize("times", [(3, 2, 4), (1, 5, 4), (-1, 0, 1)])
def test_a_cold_start_that_makes_no_sense_is_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="usual"):
        ColdStart(*times)


@pytest.mark.parametrize("options", [{"objective_s": 0.0}, {"objective_s": -1.0}, {"rows": 0.0}])
def test_an_objective_or_a_request_of_nothing_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="objective"):
        setting(**options)


def test_cold_starts_lie_between_their_ends_and_have_their_mean() -> None:
    cold, generator = ColdStart(240, 300, 420), random.Random(1)
    drawn = [cold.at(generator.random()) for _ in range(20_000)]
    assert cold.at(0.0) == 240
    assert cold.at(1.0) == 420
    assert sum(drawn) / len(drawn) == pytest.approx(cold.mean_s, rel=0.01)
    assert ColdStart(5, 5, 5).at(0.3) == 5


# -- arrivals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.3, 5.0, 63.0, 65.0, 500.0])
def test_counts_have_the_mean_and_the_variance_of_poisson(mean: float) -> None:
    generator = random.Random(1)
    counts = [poisson(mean, generator) for _ in range(20_000)]
    average = sum(counts) / len(counts)
    assert average == pytest.approx(mean, rel=0.03)
    assert sum((c - average) ** 2 for c in counts) / len(counts) == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(
    ("number", "ratio"), [(0, 0.5), (40, 0.25), (900, 0.05), (5_000, 0.01), (5_000, 0.3), (300, 1.0)]
)
def test_shares_have_the_mean_and_the_variance_of_binomials(number: int, ratio: float) -> None:
    generator = random.Random(1)
    counts = [share_of(number, ratio, generator) for _ in range(4_000)]
    average = sum(counts) / len(counts)
    assert average == pytest.approx(number * ratio, rel=0.03)
    assert sum((c - average) ** 2 for c in counts) / len(counts) == pytest.approx(
        number * ratio * (1 - ratio), rel=0.08
    )
    assert all(0 <= count <= number for count in counts)


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    first, same, other = (
        [a for n in range(60) for a in small.made(5, 60, seed).between(n, n + 1)] for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


def test_requests_come_in_order_as_many_as_were_told() -> None:
    made = small.made(daily(50), 61.3)
    for second in range(61):
        come = made.between(second, second + 1)
        assert list(come) == sorted(come)
        assert all(second <= at < second + 1 for at, _ in come)
        assert sum(made.asked(second).values()) == len(come)
    assert all(61 <= at < 61.3 for at, _ in made.between(61, 61.3))


def test_a_part_of_a_second_has_its_share_of_the_requests() -> None:
    made = small.made(1000, 300)
    parts = [len(made.between(second + 0.25, second + 0.35)) for second in range(300)]
    assert sum(parts) / 300 == pytest.approx(100, rel=0.03)
    assert made.between(7.25, 7.35) == made.between(7.25, 7.35)


def test_listed_requests_are_found_by_time_each_with_its_rows() -> None:
    listed = ListedArrivals([2.5, 0.0, 0.5, 1.0], 3.0, [4, 1, 2, 1])
    assert listed.between(0, 1) == [(0.0, 1), (0.5, 2)]
    assert listed.between(1, 1.5) == [(1.0, 1)]
    assert (listed.asked(0), listed.asked(2)) == ({1: 1, 2: 1}, {4: 1})


def test_a_day_has_its_mean_and_its_swing() -> None:
    rate = daily(100, 0.8)
    rates = [rate(hour * 3600) for hour in range(24)]
    assert (min(rates), max(rates)) == (pytest.approx(20), pytest.approx(180))
    assert sum(rates) / 24 == pytest.approx(100)


def test_bursts_are_as_many_times_the_rate_outside_and_as_often_and_as_long_as_asked_and_the_rate_is_the_mean() -> None:
    rate = bursts(14, Bursts(5, every_s=100, lasting_s=10), random.Random(1))
    rates = [rate(float(at)) for at in range(200_000)]
    assert set(rates) == {10, 50}
    assert rates.count(50) / len(rates) == pytest.approx(0.1, rel=0.1)
    assert sum(before < after for before, after in pairwise(rates)) == pytest.approx(2000, rel=0.1)
    assert sum(rates) / len(rates) == pytest.approx(14, rel=0.05)


@pytest.mark.parametrize("wrong", [(0.5, 10, 1), (2, 10, 10), (2, 10, 0), (2, inf, 1), (nan, 10, 1), (2, 10, nan)])
def test_bursts_that_are_none_or_never_end_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"ends.*begins"):
        Bursts(*wrong)


def test_copies_are_as_many_and_close_by_and_as_large() -> None:
    made = copies([(1.0, 3), (2.0, 5)], 10, 0.5, random.Random(1))
    assert len(made) == 20
    assert made == sorted(made)
    assert all(at < 1.5 if rows == 3 else 2.0 <= at < 2.5 for at, rows in made)
    assert copies([(1.0, 3), (2.0, 5)], 1, 0.5, random.Random(1)) == [(1.0, 3), (2.0, 5)]


# -- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("policy", [policy.name for policy in POLICIES])
def test_no_requests_cost_only_what_stands_there(policy: str) -> None:
    found = run(policy, [], 3600.0)
    assert (found.num_requests, found.attainment_ratio, found.num_gpu_starts) == (0, 1.0, 0)
    assert found.latency_p99_s is None
    assert found.cost_per_million is None


@settings(deadline=None, max_examples=50 if os.environ.get("THOROUGH") else 10)
@given(
    st.sampled_from([policy.name for policy in POLICIES]),
    st.floats(1, 150),
    st.integers(1, 5),
    st.floats(0.02, 2.0),
    st.booleans(),
)
def test_every_request_is_counted_once(
    policy: str, rate: float, servers: int, objective_s: float, in_part: bool
) -> None:
    of = setting(objective_s, cpu=cpu(servers), gpu=gpu(2, cold_s=10.0))
    found = run(policy, small.made(rate, 20.0, 3), 20.0, of, per_second=10 if in_part else None)
    counted = found.num_in_time + found.num_late + found.num_refused + found.num_expired
    assert counted == found.num_requests
    assert min(found.num_in_time, found.num_late, found.num_refused, found.num_expired) >= 0
    assert sum(moment.num_requests for moment in found.timeline) <= found.num_requests


@pytest.mark.thorough
@pytest.mark.parametrize("policy", [policy.name for policy in POLICIES])
def test_the_same_inputs_give_the_same_outcome(policy: str) -> None:
    first, second = (run(policy, small.made(60, 120.0), 120.0) for _ in range(2))
    assert asdict(first) == asdict(second)


def test_the_bridge_is_told_apart_from_what_the_cpu_does_cheaper() -> None:
    reasons = dict(run("tandem", small.made(30, 100.0), 100.0, setting(gpu=gpu(cold_s=20.0))).reasons)
    assert reasons["bridged"] > 0
    assert set(reasons) <= {"bridged", "cheapest_in_time", "spill"}


def test_no_more_servers_are_paid_for_than_can_be_had() -> None:
    found = run("tandem", small.made(500, 40.0), 40.0, setting(gpu=gpu(2, cold_s=10.0)))
    assert found.gpu_hours <= 2 * 40 / 3600 + 1e-9
    assert found.cpu_hours == pytest.approx(4 * 40 / 3600)


def test_servers_come_and_go_with_the_demand() -> None:
    of = setting(cpu=replace(cpu(4), min_replicas=1, max_replicas=4, cold_start=ColdStart(5, 5, 5)), gpu=gpu(0))
    found = run("cpu-only", [*small.evenly(5, 0, 60), *small.evenly(25, 60, 180)], 180.0, of)
    assert {moment.num_cpu for moment in found.timeline} == {1, 2, 3, 4}


# -- latencies --------------------------------------------------------------------------------------------------------


def test_quantiles_are_right_to_two_percent_and_never_too_small() -> None:
    latencies = Latencies()
    for n in range(1, 1001):
        latencies.add(n / 1000, 1)
    for q in (0.01, 0.5, 0.99, 1.0):
        found = latencies.quantile(q)
        assert found is not None
        assert q <= found * (1 + 1e-9) <= q * 1.021
    assert Latencies().quantile(0.5) is None


# -- requests that wait for however long ------------------------------------------------------------------------------


def test_a_backlog_is_emptied_in_order_by_as_many_rows_as_could_be_done() -> None:
    backlog = Backlog()
    backlog.add(1.0, 2.0, 3)
    backlog.add(2.0, 1.0, 1)
    assert backlog.rows == 7.0
    assert list(backlog.drain(0.0)) == []
    assert list(backlog.drain(4.0)) == [(1.0, 2)]
    assert list(backlog.drain(10.0)) == [(1.0, 1), (2.0, 1)]
    assert backlog.rows == 0.0
    backlog.add(3.0, 1.0, 1)
    assert list(backlog.drain(0.0)) == []  # what was not needed then is over


# -- requests of many rows --------------------------------------------------------------------------------------------


def batching(pool: PoolSetting) -> PoolSetting:
    """It takes up to sixteen rows at once, and gains nothing by that."""
    return replace(pool, service=Service(Curve(((1, 0.1),)), max_batch=16))


@pytest.mark.parametrize(("rows", "num_gpu_starts"), [(1, 0), (16, 1)])
def test_requests_too_large_for_the_cpu_wake_the_gpu(rows: float, num_gpu_starts: int) -> None:
    """Sixteen rows take a CPU server 1.6 s, and a second is the objective."""
    come = ListedArrivals(small.evenly(2, 0, 120), 120.0, rows)
    found = run("tandem", come, 120.0, setting(gpu=gpu(1, cold_s=20.0)))
    assert found.num_gpu_starts == num_gpu_starts
    assert found.num_refused == (pytest.approx(2 * 23, abs=8) if rows == 16 else 0)


def test_what_is_too_large_for_the_cpu_is_no_demand_for_it() -> None:
    """Sixteen rows take a CPU server 1.6 s, and a second is the objective: those are the GPU's, and the rest needs one CPU server."""
    of = setting(cpu=batching(cpu(8, min_replicas=1)), gpu=gpu(1, cold_s=30.0))
    times = [*small.evenly(5, 0, 200), *small.evenly(2, 0.05, 200)]
    come = ListedArrivals(times, 200.0, [1.0] * 1000 + [16.0] * (len(times) - 1000))
    found = run("tandem", come, 200.0, of)
    assert {moment.num_cpu for moment in found.timeline} == {1}
    assert found.num_gpu_starts == 1


def test_what_only_the_cpu_answers_in_time_wakes_no_gpu() -> None:
    slow = Service(Curve(((1, 2.0), (256, 2.1))), max_batch=256)  # many rows a second, and each too late
    of = setting(cpu=cpu(8, min_replicas=1), gpu=replace(gpu(1, cold_s=5.0), service=slow))
    found = run("tandem", small.evenly(50, 0, 100), 100.0, of)  # eight CPU servers are dearer than a GPU
    assert (found.num_gpu_starts, found.num_violations) == (0, 0)
    assert {moment.num_cpu for moment in found.timeline if moment.at_s > 45} == {8}  # until then the meter rises


def test_what_no_pool_answers_in_time_is_no_demand() -> None:
    of = setting(0.01, cpu=batching(cpu(8, min_replicas=1)), gpu=gpu(1, cold_s=5.0))
    found = run("tandem", ListedArrivals(small.evenly(30, 0, 60), 60.0, 16.0), 60.0, of)
    assert (found.num_gpu_starts, found.num_refused) == (0, 1800)
    assert {moment.num_cpu for moment in found.timeline} == {1}


def test_each_request_has_its_own_rows() -> None:
    of = setting(cpu=cpu(4), gpu=gpu(0))
    rows = [16.0 if n % 4 == 0 else 1.0 for n in range(200)]
    found = run("cpu-only", ListedArrivals(small.evenly(2, 0, 100), 100.0, rows), 100.0, of)
    assert (found.num_refused, found.num_in_time) == (50, 150)


# -- any number of pools, by the scaler's own rule -------------------------------------------------------------------------


def sized(name: str, price: float, times: float, **changes: object) -> PoolSetting:
    """With a card that does so many times what one CPU server does."""
    service = Service(Curve(((1, 0.1 / times),)))
    return replace(gpu(4, cold_s=20.0), name=name, price_per_hour=price, service=service, **changes)  # type: ignore[arg-type]


SMALL, LARGE = sized("small", 0.8, 8), sized("large", 4.1, 40)
FEW = cpu(4, min_replicas=1)


@pytest.mark.parametrize("names", [("small", "large"), pytest.param(("a", "z"), marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("rate", "servers"), [(50.0, (1, 0)), pytest.param(265.0, (0, 1), marks=pytest.mark.thorough)])
def test_the_size_that_is_the_cheapest_answers_whatever_its_name_is(
    names: tuple[str, str], rate: float, servers: tuple[int, int]
) -> None:
    """Ten requests a second are a CPU server's work: of 50 a small card does all, of 265 four with all CPU servers not enough."""
    small_, large_ = (replace(it, name=name) for it, name in zip((SMALL, LARGE), names, strict=True))
    of = setting(cpu=FEW, gpu=large_, more=(small_,))
    found = run("tandem", small.made(rate, 60.0), 60.0, of, per_second=20)
    last = found.timeline[-1].servers
    assert tuple(last[name] for name in names) == servers
    assert found.hours.keys() == {"cpu", *names}
    assert sum(found.hours.values()) == pytest.approx(found.cpu_hours + found.gpu_hours)


def test_both_simulations_go_by_the_same_rule() -> None:
    of = setting(cpu=FEW, gpu=SMALL, more=(LARGE,))
    arrivals = small.made(100.0, 60.0)
    work, sizes = flow.of_arrivals(arrivals, of)
    first = flow.first_of(work, sizes, of.wake)
    by_flow = flow.play("tandem", work, sizes, of.wake, flow.by_scaler(sizes, of.wake, first), first)
    found = run("tandem", arrivals, 60.0, of)
    assert found.cost == pytest.approx(by_flow.cost, rel=0.05)
    for name, hours in by_flow.hours.items():
        assert found.hours[name] == pytest.approx(hours, abs=5 / 3600), name


def test_cards_that_several_pools_may_have_together_are_never_exceeded() -> None:
    quota = Quota(frozenset({"small", "large"}), 2)
    of = setting(cpu=FEW, gpu=SMALL, more=(replace(LARGE, price_per_hour=9.0),), quotas=(quota,))
    for policy in ("tandem", "gpu-always", "oracle"):
        found = run(policy, small.made(300.0, 30.0), 30.0, of, per_second=20)
        assert 0 < max(it.num_gpu for it in found.timeline) <= 2, policy


def test_what_is_always_there_is_the_cheapest_mix_for_the_peak() -> None:
    of = setting(cpu=FEW, gpu=SMALL, more=(LARGE,))
    found = run("gpu-always", [*small.evenly(20, 0, 60), *small.evenly(250, 60, 90)], 120.0, of)
    assert found.timeline[0].servers == found.timeline[-1].servers == {"small": 0, "large": 1}
    assert found.num_violations == 0


@pytest.mark.parametrize(
    ("billing", "seconds"),
    [({}, 240), ({"min_billing_s": 400.0}, 800), ({"consolidation_s": 50.0}, 340), ({"servers_per_card": 2}, 120)],
)
def test_servers_are_paid_for_by_the_card_and_as_long_as_their_node_is(
    billing: dict[str, float], seconds: float
) -> None:
    """Two servers for 120 s, and then none; a card that two share is paid for once."""
    pool = SimulatedPool(replace(SMALL, **billing))  # type: ignore[arg-type]
    pool.begin_with(2)
    pool.scale(120.0, 0, lambda: 0.0)
    pool.close(1000.0)
    assert pool.paid_s == pytest.approx(seconds)
