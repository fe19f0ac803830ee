"""A plan that promises too much is seen, and so is one that promises too little."""

from __future__ import annotations

import pytest

from loadtest.bench.prove.planned import verdicts
from loadtest.bench.verdicts import Outcome
from serving.decisions.profile import LoadPoint


def runs(rate_rps: float, throughputs_rps: list[float], late_ratio: float) -> list[LoadPoint]:
    return [LoadPoint(rate_rps, 1, 1000, t, None, None, int(late_ratio * 1000), 0.05, True) for t in throughputs_rps]


@pytest.mark.parametrize(
    ("throughputs_rps", "late_as_planned", "late_beyond", "wanted"),
    [
        ([100, 99, 101, 98, 100], 0.002, 0.6, [Outcome.MET, Outcome.MET, Outcome.MET]),
        ([100, 60, 99, 50, 98], 0.002, 0.6, [Outcome.MET, Outcome.MET, Outcome.MET]),  # the median decides
        ([80, 80, 80, 80, 80], 0.015, 0.6, [Outcome.MISSED, Outcome.MISSED, Outcome.MET]),
        ([60, 60, 60, 60, 60], 0.05, 0.6, [Outcome.FAILED, Outcome.FAILED, Outcome.MET]),
        ([100, 100, 100, 100, 100], 0.0, 0.0, [Outcome.MET, Outcome.MET, Outcome.FAILED]),  # it carries far more
    ],
)
def test_what_a_server_does_is_held_against_its_plan(
    throughputs_rps: list[float], late_as_planned: float, late_beyond: float, wanted: list[Outcome]
) -> None:
    found = verdicts(
        100.0, runs(100, throughputs_rps, 0.01), runs(70, [70] * 5, late_as_planned), runs(150, [90], late_beyond)
    )
    assert [verdict.outcome for verdict in found] == wanted
