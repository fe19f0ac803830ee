"""The check of a plan: whether the planned rate can be run here, and what its runs say together."""

from __future__ import annotations

import pytest

from loadtest.profile.load import LoadRun
from loadtest.records import Row
from loadtest.verdict.check import summarise, why_not
from loadtest.verdict.report import Source
from serving.decisions.plan.result import Objective, Plan
from serving.decisions.plan.search import make_plan
from serving.decisions.profile import LoadPoint, Profile
from tests.loadtest.verdict.made import OBJECTIVE_S, PRICES, cpu_profile, gpu_profile


def plan_of(*profiles: Profile, rate_rps: float = 200, **given: int) -> Plan:
    return make_plan("digits", Objective(OBJECTIVE_S, ((24, rate_rps),), **given), profiles, PRICES)  # type: ignore[arg-type]


def seen(num_late: int, p99_s: float | None = 0.009, void: str | None = None, num_due: int = 1_000) -> LoadRun:
    is_met = void is None and num_late <= num_due / 100
    return LoadRun(LoadPoint(200, 1, num_due, 199, 0.003, p99_s, num_late, OBJECTIVE_S, is_met, void), void is not None)


def row(latency_s: float) -> Row:
    return Row(1.5, 0.0, latency_s, 200, 10, None, "int8", "cpu", "cpu", "")


# -- whether it can be run ---------------------------------------------------------------------------------------------


def test_what_was_measured_here_and_fits_one_server_is_run() -> None:
    here = cpu_profile()
    assert why_not(plan_of(here), [Source(here, "here")]) is None


def test_two_servers_for_safety_are_no_reason_where_one_carries_the_rate() -> None:
    here = cpu_profile()
    assert why_not(plan_of(here, min_replicas=2), [Source(here, "here")]) is None


@pytest.mark.parametrize(
    ("origin", "rate_rps", "says"),
    [
        ("given", 200, "the CPU server that is planned is not this machine"),
        ("shipped", 200, "the CPU server that is planned is not this machine"),
        ("here", 700, "700/s exceeds one machine like this one; 2 are planned"),
    ],
)
def test_what_cannot_be_run_here_says_why(origin: str, rate_rps: float, says: str) -> None:
    here = cpu_profile()
    assert why_not(plan_of(here, rate_rps=rate_rps), [Source(here, origin)]) == says  # type: ignore[arg-type]


def test_a_plan_of_two_pools_or_of_none_is_not_run() -> None:
    here, there = cpu_profile(), gpu_profile()
    sources = [Source(here, "here"), Source(there, "given")]
    two = make_plan("digits", Objective(OBJECTIVE_S, ((16, 100), (8, 3000))), [here, there], PRICES)
    assert "two pools" in (why_not(two, sources) or "")
    assert why_not(plan_of(), []) == "nothing is planned"


def test_emulated_servers_are_not_run() -> None:
    here = cpu_profile(provenance="emulated")
    assert "follow a file" in (why_not(plan_of(here), [Source(here, "here")]) or "")


# -- what its runs say -------------------------------------------------------------------------------------------------


def test_three_runs_have_the_median_p99_with_an_interval_and_one_curve() -> None:
    chosen = plan_of(cpu_profile()).pools[0].chosen
    runs = [seen(2, p99) for p99 in (0.008, 0.009, 0.011)]
    check = summarise(chosen, 200, runs, [[row(0.002 + k / 1e5) for k in range(300)]] * 3)
    assert check.is_met
    assert check.latency_p99_s is not None
    assert check.latency_p99_s.value == 0.009
    assert check.latency_p99_s.runs == (0.008, 0.009, 0.011)
    assert check.latency_p99_s.low is not None
    assert check.num_due == 3_000
    assert check.late_or_lost_ratio == pytest.approx(0.002)
    assert check.latency_curve[-1][0] == pytest.approx(0.00499)


def test_more_than_one_in_a_hundred_late_over_all_runs_is_missed() -> None:
    chosen = plan_of(cpu_profile()).pools[0].chosen
    assert summarise(chosen, 200, [seen(10), seen(10), seen(10)], [[]] * 3).is_met
    assert not summarise(chosen, 200, [seen(10), seen(11), seen(10)], [[]] * 3).is_met


def test_void_runs_are_in_no_number_and_are_told() -> None:
    chosen = plan_of(cpu_profile()).pools[0].chosen
    check = summarise(chosen, 200, [seen(2), seen(900, 0.5, void="the generator lagged")], [[row(0.003)], [row(0.5)]])
    assert check.void is None
    assert check.voids == ("the generator lagged",)
    assert check.num_due == 1_000
    assert max(value for value, _ in check.latency_curve) == pytest.approx(0.003)


def test_only_void_runs_are_no_check() -> None:
    chosen = plan_of(cpu_profile()).pools[0].chosen
    check = summarise(chosen, 200, [seen(0, void="the generator lagged")], [[]])
    assert check.void == "the generator lagged"
    assert not check.is_met
    assert check.latency_p99_s is None


def test_too_few_answers_for_a_p99_leave_it_out() -> None:
    chosen = plan_of(cpu_profile()).pools[0].chosen
    assert summarise(chosen, 5, [seen(0), seen(0, p99_s=None)], [[], []]).latency_p99_s is None
