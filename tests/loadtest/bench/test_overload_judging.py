"""What `make prove` says of nets that really compute, and of a refusal's cost: pure tables."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from loadtest.bench.prove import features
from loadtest.bench.prove.computed import ALL, FEW, Busy, Calm, Trial, judged, lateness
from loadtest.bench.prove.overload import Overload
from loadtest.bench.prove.refusals import Turn, verdict
from loadtest.bench.verdicts import Outcome
from loadtest.errors import CannotMeasure
from loadtest.sending.sent_request import Shot

CALM = Calm(capacity_rps=640.0, requests_per_execution=8.0, alone_s=0.010)
FINE = Trial(
    Overload(630.0, 0.98, 0.001, 0.0, 0.001, 0.002, 2.0, ()),
    requests_per_execution=7.9,
    busy=Busy(triton=0.99, generator=0.2, gateways=(0.3, 0.3), others_at_triton=0.01, others_beside=0.02),
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


@pytest.mark.parametrize(
    "busy",
    [{"generator": 0.31}, {"gateways": (0.4, 0.4)}, {"others_at_triton": 0.06}, {"others_beside": 0.06}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_row_whose_cores_are_full_or_taken_by_other_work_is_not_judged(busy: dict[str, Any]) -> None:
    with pytest.raises(CannotMeasure):
        list(judged("3 × mlp", replace(FINE, busy=replace(FINE.busy, **busy)), CALM, 3.0))


def test_late_answers_are_told_with_those_that_only_the_generator_made_late() -> None:
    shots = [
        Shot(due_s=0.0, sent_s=sent_s, ended_s=ended_s, status=200)
        for sent_s, ended_s in ((0, 0.09), (0.02, 0.11), (0, 0.14))
    ]
    assert re.findall(r"\d[.\d]*", lateness(shots, 0.1)) == ["2", "25.0", "40.0", "1"]
    assert not lateness(shots[:1], 0.1)


def test_the_short_table_has_each_value_of_each_property_of_the_whole_one_twice() -> None:
    of_all, of_few = (
        list(zip(*((c.is_fixed, c.execution_s, c.num_gateways, c.num_variants) for c in cells), strict=True))
        for cells in (ALL, FEW)
    )
    assert [Counter(values) for values in of_few] == [dict.fromkeys(values, 2) for values in of_all]


def test_the_simulator_is_told_what_a_full_execution_takes() -> None:
    assert CALM.full_s == pytest.approx(0.0125)
    assert CALM.service.seconds(8) == pytest.approx(CALM.full_s)
    assert replace(CALM, alone_s=0.020).service.seconds(1) == pytest.approx(CALM.full_s)
    assert replace(CALM, num_nets=2).full_s == pytest.approx(0.025)  # each shares the cores with the other


def test_a_refusals_cost_is_the_median_of_turns() -> None:
    assert verdict("cost", [Turn(300e-6, 60e-6), Turn(200e-6, 50e-6), Turn(100e-6, 90e-6)]).value == pytest.approx(0.25)


def test_a_gateway_whose_work_does_not_show_measures_nothing() -> None:
    with pytest.raises(CannotMeasure):
        verdict("cost", [Turn(0.0, 0.0)])


def test_what_everything_costs_is_the_median_of_turns_in_pairs() -> None:
    told = features.verdict([210e-6, 330e-6, 105e-6], [200e-6, 300e-6, 100e-6])
    assert (told.value, told.outcome) == (pytest.approx(1.05), Outcome.MET)
    assert features.verdict([220e-6] * 3, [200e-6] * 3).outcome is not Outcome.MET
    assert features.verdict([208e-6] * 3, [200e-6] * 3).outcome is Outcome.MET
    traces = features.verdict([208e-6] * 3, [200e-6] * 3, "traces", features.TRACES_COST)
    assert traces.outcome is not Outcome.MET
