"""The oracle is late for no more than anybody else, and dearer only where it is late for fewer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.decisions.simulate.scenario import POLICIES, ColdStart
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.decisions.simulate.settings import cpu, evenly, gpu, run, setting

OTHERS = [policy.name for policy in POLICIES if policy.scaler != "oracle"]
BRIDGE = cpu(6, min_replicas=1, cold_start=ColdStart(5, 10, 20))
OF = setting(0.5, cpu=BRIDGE, gpu=gpu(2, cold_s=40.0))


@pytest.mark.thorough
@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(
    st.lists(st.tuples(st.floats(0, 170), st.floats(1, 30), st.floats(1, 120)), min_size=1, max_size=4),
    st.integers(1, 1000),
    st.sampled_from([None, 10]),
)
def test_nobody_is_late_for_fewer_or_for_as_many_at_less_cost(
    bursts: list[tuple[float, float, float]], seed: int, per_second: int | None
) -> None:
    generator = random.Random(seed)
    times = sorted(
        begin + generator.random() * for_s for begin, for_s, rate in bursts for _ in range(int(rate * for_s))
    )
    oracle = run("oracle", times, 200.0, OF, seed=seed, per_second=per_second)
    for other in OTHERS:
        found = run(other, times, 200.0, OF, seed=seed, per_second=per_second)
        assert (oracle.num_violations, oracle.cost) <= (found.num_violations, found.cost + 1e-9), other


@pytest.mark.thorough
def test_it_is_there_before_a_burst_and_gone_after_it_where_the_others_are_late_or_pay_all_day() -> None:
    times = [*evenly(5, 0, 300), *evenly(80, 300, 350), *evenly(5, 350, 900)]
    oracle, tandem, warm = (run(name, times, 900.0, OF) for name in ("oracle", "tandem", "gpu-always"))
    assert oracle.num_violations == 0 < tandem.num_violations
    assert oracle.cost < 0.5 * warm.cost


def test_it_plans_more_for_a_slot_in_which_a_burst_is_too_short_for_the_mean_to_show() -> None:
    times = [*evenly(5, 0, 65), *evenly(100, 65, 66), *evenly(5, 66, 120)]
    of = setting(0.3, cpu=cpu(16, min_replicas=0, cold_start=ColdStart(5, 5, 5)), gpu=gpu(0))
    assert run("oracle", times, 120.0, of).num_violations < run("tandem", times, 120.0, of).num_violations


@pytest.mark.thorough
def test_it_plans_cpu_servers_for_what_the_gpu_does_not_answer_in_time() -> None:
    times = [*evenly(25, 0, 100), *evenly(2, 100, 400)]
    slow = Service(Curve(((1, 2.0), (16, 2.1))), max_batch=16)
    of = setting(0.5, cpu=BRIDGE, gpu=gpu(2, cold_s=40.0, service=slow))
    oracle, tandem = (run(name, times, 400.0, of) for name in ("oracle", "tandem"))
    assert oracle.num_violations <= tandem.num_violations
    assert oracle.cost < 0.9 * tandem.cost  # which keeps its servers for five minutes


def test_what_rivals_did_is_taken_from_those_who_know() -> None:
    times = evenly(20, 0, 60)
    impossible = replace(run("tandem", times, 60.0, OF), cost=-1.0)
    assert run("oracle", times, 60.0, OF, rivals=[impossible]).cost == -1.0


def test_no_request_needs_no_server() -> None:
    assert run("oracle", [], 600.0, OF).cost == pytest.approx(0.0, abs=0.02)
