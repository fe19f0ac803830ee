"""What a service costs, and how predictions learn from answers without believing accidents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.scheduling.curve import Curve
from serving.scheduling.prediction import (
    LARGEST,
    SMALLEST,
    UNCORRECTED,
    Correction,
    Service,
    corrected,
)

CURVE = Curve(((1, 0.002), (8, 0.004), (64, 0.02)))


@pytest.mark.parametrize(("instances", "batch"), [(0, 1), (1, 0), (-1, 1)])
def test_a_server_without_instances_or_rows_is_refused(instances: int, batch: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Service(CURVE, instances, batch)


def test_work_costs_its_share_of_full_executions_and_takes_its_own_time() -> None:
    service = Service(CURVE, num_instances=2, max_batch=8)
    assert service.rate_rows_per_s == 4000
    assert service.cost_s(4) == 0.001
    assert service.seconds(1) == 0.002
    assert service.device_s(1) == 0.001  # half of the server
    assert service.bound == 32


def test_a_correction_changes_times_and_costs_but_not_what_is_charged() -> None:
    plain, slow = Service(CURVE, 2, 8), Service(CURVE, 2, 8, Correction(3.0, 0.5))
    assert slow.seconds(5) == pytest.approx(3 * plain.seconds(5))
    assert slow.careful_seconds(5) == pytest.approx(4 * plain.seconds(5))
    assert slow.cost_s(5) == pytest.approx(3 * plain.cost_s(5))
    assert slow.device_s(5) == plain.device_s(5)


@pytest.mark.parametrize(("predicted_s", "actual_s"), [(0, 1), (1, 0), (-1, 1), (1, -1)])
def test_times_that_are_none_teach_nothing(predicted_s: float, actual_s: float) -> None:
    assert corrected(UNCORRECTED, predicted_s, actual_s) == UNCORRECTED


@pytest.mark.parametrize("truth", [0.5, 1.0, 2.0, 5.0])
def test_a_correction_comes_to_the_truth_and_stays(truth: float) -> None:
    correction = UNCORRECTED
    for _ in range(400):
        correction = corrected(correction, 0.01 * correction.factor, 0.01 * truth)
    assert correction.factor == pytest.approx(truth, rel=0.01)
    assert correction.spread < 0.02 * truth


@pytest.mark.parametrize("lag", [1, 50, 400])
def test_predictions_that_are_answered_late_do_not_make_it_swing(lag: int) -> None:
    """A long queue: each answer was predicted by what was believed `lag` answers before."""
    believed = [UNCORRECTED] * lag
    for _ in range(20 * lag + 200):
        by = believed[-lag]
        believed.append(corrected(believed[-1], 0.01 * by.factor, 0.01 * 1.5, by))
    assert all(correction.factor <= 1.5 + 1e-9 for correction in believed)
    assert believed[-1].factor == pytest.approx(1.5, rel=0.001)


def test_one_stall_does_not_change_the_belief_much() -> None:
    assert corrected(UNCORRECTED, 0.01, 30.0).factor < 2


@settings(deadline=None)  # of one example: machines are busy
@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)), max_size=200))
def test_a_correction_stays_within_its_limits_whatever_happens(answers: list[tuple[float, float]]) -> None:
    correction = UNCORRECTED
    for predicted_s, actual_s in answers:
        correction = corrected(correction, predicted_s, actual_s)
    assert SMALLEST <= correction.factor <= LARGEST
    assert correction.spread >= 0


def test_full_executions_are_so_long_that_the_way_to_the_server_does_not_leave_it_idle() -> None:
    """A row costs the same in any batch, so that one alone would be as good: with two of 1 ms there, it would wait for messages."""
    assert Service(Curve(((1, 0.001), (8, 0.008))), max_batch=8).bound == 2 * 3
    assert Service(Curve(((1, 0.0001), (8, 0.0008))), max_batch=8).bound == 2 * 8
    assert Service(Curve(((1, 0.01), (8, 0.08))), max_batch=8).bound == 2 * 1
