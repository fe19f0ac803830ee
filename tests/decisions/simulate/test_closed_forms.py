"""What paper and pencil say, the simulator says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from serving.decisions.simulate.scenario import Policy
from serving.settings import ScalingRules
from tests.decisions.simulate.settings import cpu, evenly, gpu, made, run, setting

CPU_ALONE = Policy("cpu", True, "none")


@pytest.mark.parametrize(
    ("rate", "cold_s"),
    [(20, 40), *(pytest.param(*row, marks=pytest.mark.thorough) for row in ((20, 100), (50, 30), (10, 300)))],
)
def test_without_a_bridge_all_that_comes_during_the_cold_start_is_late(rate: float, cold_s: float) -> None:
    """L · T, but for the second until demand is looked at, and the last objective's worth, which can wait."""
    found = run("no-bridge", evenly(rate, 0.0, 2.0 * cold_s), 2.0 * cold_s + 20.0, setting(gpu=gpu(cold_s=cold_s)))
    assert found.num_violations == pytest.approx(rate * cold_s, abs=3 * rate)
    assert found.num_gpu_starts == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rate", "servers"),
    [(60, 2), (30, 4), *(pytest.param(*row, marks=pytest.mark.thorough) for row in ((60, 4), (100, 4)))],
)
def test_with_a_bridge_only_what_the_cpu_cannot_carry_is_lost(rate: float, servers: int) -> None:
    """max(0, L − C) · T with C = 10 requests a second for each CPU server; T is longer by some seconds until the demand shows."""
    found = run("tandem", evenly(rate, 0.0, 600.0), 700.0, setting(cpu=cpu(servers)))
    beyond = max(0.0, rate - 10 * servers)
    assert found.num_violations == pytest.approx(beyond * 103.0, rel=0.04, abs=3)


def test_holding_requests_makes_them_late_instead_of_refusing_them() -> None:
    found = run("hold", evenly(20, 0.0, 200.0), 220.0)
    assert found.num_refused == 0
    assert found.num_late == pytest.approx(20 * 100.0, rel=0.05)


def test_an_idle_gpu_is_kept_as_long_as_renting_skis_says() -> None:
    """No longer needed, it costs until that is as much as a cold start: T* = the cold start's time, at one price."""
    of = setting(cpu=cpu(1), gpu=gpu(cold_s=200.0))
    found = run("tandem", evenly(20, 0.0, 300.0), 700.0, of)
    faded_s = 30.0  # until ten seconds' demand is forgotten, so that one CPU server is enough: about three windows
    assert found.gpu_hours * 3600 == pytest.approx(300.0 + faded_s + 200.0, abs=25.0)


def test_a_gpu_is_paid_for_from_the_moment_it_is_asked_for() -> None:
    found = run("gpu-always", evenly(50, 0.0, 20.0), 3600.0)
    assert (found.gpu_hours, found.cpu_hours) == (1.0, 0.0)
    assert found.cost == 1.0
    assert found.num_violations == 0


@pytest.mark.thorough
def test_an_oracle_is_late_for_nobody_and_pays_for_no_idle_hour() -> None:
    of = setting(cpu=replace(cpu(4), min_replicas=0))
    found = run("oracle", evenly(50, 1000.0, 1300.0), 2500.0, of)
    assert found.num_violations == 0
    assert found.gpu_hours * 3600 == pytest.approx(300.0 + 100.0, abs=30.0)


# -- waiting times ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("load", [0.6, *(pytest.param(load, marks=pytest.mark.thorough) for load in (0.3, 0.8))])
def test_waiting_is_that_of_an_m_d_1_queue(load: float) -> None:
    service_s = 0.1
    of = setting(1e6, cpu=cpu(1, service_s))
    found = run(CPU_ALONE, made(load / service_s, 3_000.0), 3_000.0, of)
    assert found.latency_mean_s == pytest.approx(service_s + load * service_s / (2 * (1 - load)), rel=0.08)


@pytest.mark.thorough
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_waiting_is_that_of_an_m_m_1_queue_where_times_are_exponential(load: float) -> None:
    service_s, generator = 0.1, random.Random(5)
    of = setting(1e6, cpu=cpu(1, service_s, noise_ratio=1.0))
    found = run(CPU_ALONE, made(load / service_s, 3_000.0), 3_000.0, of, stretch=generator.expovariate)
    assert found.latency_mean_s == pytest.approx(service_s / (1 - load), rel=0.1)


def test_overload_answers_what_the_servers_can_and_nothing_late() -> None:
    found = run(CPU_ALONE, made(120.0, 60.0), 60.0)
    assert found.num_in_time == pytest.approx(40.0 * 60.0, rel=0.03)
    assert (found.num_late, found.num_expired) == (0, 0)


def test_a_burst_that_is_over_before_a_node_would_be_there_wakes_none() -> None:
    of = setting(wake=ScalingRules(patience_s=5.0))
    found = run("tandem", [*evenly(30, 0.0, 50.0), *evenly(200, 50.0, 51.0), *evenly(30, 51.0, 100.0)], 100.0, of)
    assert found.num_gpu_starts <= 1
