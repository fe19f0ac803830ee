"""Joules of a request are told where they were measured, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.profile.load import joules_per_answer
from loadtest.profile.server import at_the_highest_rate
from loadtest.records import Evidence
from serving.decisions.profile import LoadPoint, MaxRate

POINT = LoadPoint(100.0, 1, 400, 99.0, 0.01, None, 0, 0.02, True)
MOST = MaxRate(0.02, 1, 100.0, 90.0, 110.0)


@pytest.mark.parametrize(
    ("cpu_j", "gpu_j", "pool", "num_answers", "told"),
    [
        (50.0, None, "cpu", 100, 0.5),
        (50.0, 200.0, "cpu", 100, 0.5),  # a card that idles beside the cpu pool is not its own
        (50.0, 200.0, "gpu", 100, 2.5),
        (None, 200.0, "gpu", 100, 2.0),
        (50.0, None, "gpu", 100, None),  # without the card's it is not the gpu pool's
        (None, None, "cpu", 100, None),
        (0.0, None, "cpu", 100, None),  # a counter that stands still
        (50.0, None, "cpu", 0, None),
        (50.0, 200.0, "emulated-gpu", 100, None),
    ],
)
def test_a_request_takes_what_was_measured_over_the_good_answers(
    cpu_j: float | None, gpu_j: float | None, pool: str, num_answers: int, told: float | None
) -> None:
    assert joules_per_answer(Evidence(cpu_energy_j=cpu_j, gpu_energy_j=gpu_j), pool, num_answers) == told


def test_a_run_without_evidence_tells_nothing() -> None:
    assert joules_per_answer(None, "cpu", 100) is None


def test_a_server_has_the_joules_of_the_runs_at_its_highest_rate() -> None:
    load = [
        replace(POINT, joules_per_request=0.4),
        replace(POINT, joules_per_request=0.6),
        replace(POINT, rate_rps=50.0, joules_per_request=9.0),  # another rate
        replace(POINT, joules_per_request=9.0, is_met=False),
        POINT,  # its meter failed
    ]
    assert at_the_highest_rate(load, [MOST]) == 0.5
    assert at_the_highest_rate([POINT], [MOST]) is None
    assert at_the_highest_rate(load, []) is None


def test_where_requests_of_several_sizes_were_sent_none_is_told() -> None:
    load = [replace(POINT, joules_per_request=0.4)]
    assert at_the_highest_rate(load, [MOST, replace(MOST, batch_size=8)]) is None
