"""What `make prove` says of nets that really compute, and of a refusal's cost: pure tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.bench.prove.computed import Busy, Calm, Trial, judged
from loadtest.bench.prove.overload import Overload
from loadtest.bench.prove.refusals import Turn, verdict
from loadtest.bench.verdicts import Outcome
from loadtest.errors import CannotMeasure

CALM = Calm(capacity_rps=640.0, requests_per_execution=8.0, alone_s=0.010)
FINE = Trial(
    Overload(630.0, 0.98, 0.001, 0.0, 0.001, 0.002, 2.0, ()),
    requests_per_execution=7.9,
    busy=Busy(triton=0.99, generator=0.2, gateways=(0.3, 0.3)),
    lag_s=0.001,
    in_time_ratio=0.49,
    simulated_in_time_ratio=0.50,
    offered_ratio=2.0,
)


def test_a_trial_that_is_as_it_should_be_meets_every_aim() -> None:
    found = list(judged("2 × mlp", FINE, CALM, 2.0))
    assert len(found) == 6
    assert {one.outcome for one in found} == {Outcome.MET}


@pytest.mark.parametrize(
    ("trial", "missed"),
    [
        (replace(FINE, simulated_in_time_ratio=0.45), "simulated"),
        (replace(FINE, requests_per_execution=7.0), "rows of an execution"),
    ],
)
def test_what_is_off_is_missed(trial: Trial, missed: str) -> None:
    wrong = [one.name for one in judged("2 × mlp", trial, CALM, 2.0) if one.outcome is not Outcome.MET]
    assert len(wrong) == 1
    assert missed in wrong[0]


def test_two_gateways_and_a_generator_that_fill_their_core_are_not_judged() -> None:
    full = replace(FINE, busy=Busy(triton=0.7, generator=0.3, gateways=(0.35, 0.35)))
    with pytest.raises(CannotMeasure):
        list(judged("3 × mlp", full, CALM, 3.0))


def test_the_simulator_is_told_what_a_full_execution_takes() -> None:
    assert CALM.full_s == pytest.approx(0.0125)
    assert CALM.service.seconds(8) == pytest.approx(CALM.full_s)
    assert replace(CALM, alone_s=0.020).service.seconds(1) == pytest.approx(CALM.full_s)


def test_a_refusals_cost_is_the_median_of_turns() -> None:
    assert verdict("cost", [Turn(300e-6, 60e-6), Turn(200e-6, 50e-6), Turn(100e-6, 90e-6)]).value == pytest.approx(0.25)


def test_a_gateway_whose_work_does_not_show_measures_nothing() -> None:
    with pytest.raises(CannotMeasure):
        verdict("cost", [Turn(0.0, 0.0)])
