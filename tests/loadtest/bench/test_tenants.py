"""What `make prove --only tenants` says of shots that are made up."""

from __future__ import annotations

import pytest

from loadtest.bench.prove import models
from loadtest.bench.prove.overload import DEADLINE_S, SHARED
from loadtest.bench.prove.tenants import goodput_verdict, jain, small_verdicts
from loadtest.bench.verdicts import Outcome
from loadtest.sending.sent_request import Shot


def shots(*took_s: float, status: int = 200) -> list[Shot]:
    return [Shot(0.0, 0.0, seconds, status) for seconds in took_s]


def test_jain_is_one_for_equals_and_one_over_their_number_where_one_has_all() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1.0)
    assert jain([5, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == jain([0, 0]) == 0.0


def test_late_and_refused_requests_are_not_in_time_and_p99_is_told_in_largest_executions() -> None:
    largest_s = SHARED.seconds(32)
    beside = [*shots(0.02, 0.02 + largest_s), *shots(DEADLINE_S + 0.1), *shots(0.001, status=503)]
    in_time, rise = small_verdicts(beside[:2], shots(0.02), shots(0.001, status=503))
    assert (in_time.value, in_time.outcome) == (1.0, Outcome.MET)
    assert rise.value == pytest.approx(1.0, abs=0.05)
    in_time, _ = small_verdicts(beside, shots(0.02), [])
    assert in_time.value == 0.5
    assert in_time.outcome is not Outcome.MET
    _, rise = small_verdicts(shots(0.001, status=503), shots(0.02), [])
    assert rise.value is None
    assert rise.outcome is Outcome.FAILED


def test_goodput_is_a_quotient_of_answers_in_time() -> None:
    one = goodput_verdict("x", shots(0.1, 0.1, DEADLINE_S + 1), shots(0.1, 0.1))
    assert (one.value, one.outcome) == (1.0, Outcome.MET)
    assert goodput_verdict("x", shots(0.1), shots(DEADLINE_S + 1)).value is None


def test_models_that_flood_one_device_are_judged_by_their_parts_of_what_they_do_alone() -> None:
    told = models.share_verdict({0: 50.0, 1: 5.0}, [100.0, 10.0])
    assert (told.value, told.outcome) == (pytest.approx(1.0), Outcome.MET)
    assert models.share_verdict({0: 90.0, 1: 1.0}, [100.0, 10.0]).outcome is not Outcome.MET
    in_time, rise = models.small_verdicts(shots(0.08, 0.5), shots(0.05), deadline_s=0.4, full_s=0.1)
    assert (in_time.value, rise.value) == (0.5, pytest.approx(4.5))
