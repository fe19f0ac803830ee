"""What `make prove --only shadow` says of p99s that are made up, and when it says nothing."""

from __future__ import annotations

import pytest

from loadtest.bench.prove.shadow import judged, p99_s
from loadtest.bench.verdicts import Outcome
from loadtest.errors import CannotMeasure
from loadtest.sending.sent_request import Shot


@pytest.mark.parametrize(
    ("on_s", "outcome"),
    [([0.010, 0.021, 0.012], Outcome.MET), ([0.011, 0.024], Outcome.MISSED), ([0.03, 0.06], Outcome.FAILED)],
)
def test_p99s_are_compared_turn_by_turn(on_s: list[float], outcome: Outcome) -> None:
    off_s = [0.010, 0.020, 0.012][: len(on_s)]
    verdict = judged(on_s, off_s, num_compared=9, num_skipped=1)
    assert verdict.outcome is outcome
    assert "9 compared, 1 skipped" in verdict.note


def test_nothing_is_said_without_a_comparison_or_with_failures() -> None:
    with pytest.raises(CannotMeasure):
        judged([0.01], [0.01], num_compared=0, num_skipped=5)
    answered = [Shot(0.0, 0.0, number / 100, 200) for number in range(1, 101)]
    assert p99_s(answered) == pytest.approx(0.99, abs=0.01)
    with pytest.raises(CannotMeasure):
        p99_s([*answered, Shot(0.0, 0.0, 0.1, 503)])
