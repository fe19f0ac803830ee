"""What many new versions cost those who ask meanwhile, and what they leave behind: judged by tables, and shown on a real Triton."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.prove.swaps import NUM_SWAPS, NUM_WARM, Memory, swaps, verdicts
from loadtest.bench.verdicts import Outcome, Verdict
from loadtest.sending.sent_request import Shot

GOOD = Shot(0.0, 0.0, 0.01, status=200)
REAL = [pytest.mark.slow, pytest.mark.triton, pytest.mark.campaigns, pytest.mark.timeout(900)]


def judged(shots: list[Shot], memory: Memory, num_swapped: int) -> list[Outcome]:
    return [verdict.outcome for verdict in verdicts(shots, memory, num_swapped, 10)]


def test_a_version_that_does_not_come_and_a_request_that_fails_are_failures() -> None:
    memory = Memory([100, 150], [50] * 10)
    met, failed = Outcome.MET, Outcome.FAILED
    assert judged([GOOD] * 9, memory, 10) == [met] * 5
    assert judged([GOOD] * 9, memory, 9) == [failed, met, met, met, met]
    assert judged([GOOD, Shot(0.0, 0.0, 0.01, status=503)], memory, 10) == [met, failed, met, met, met]
    assert judged([GOOD], Memory([100, 500], [50] * 10), 10) == [met, met, met, failed, met]


def test_what_a_swap_leaves_is_the_slope_after_those_that_warm_it() -> None:
    warming, growing = [10, 400, 10, 10, 10], [1000, 1030, 1060, 5000, 1120, 1150]
    assert Memory(after=[*warming, *growing]).left_bytes == pytest.approx(30)
    assert Memory(after=warming + growing[:2]).left_bytes is None
    assert len(warming) == NUM_WARM


def require_no_loss(found: list[Verdict]) -> None:
    outcomes = {verdict.name.partition(": ")[2]: (verdict.outcome, verdict.cells()) for verdict in found}
    for name in ("versions that did not come", "requests without a 200", "most memory at once, of that before"):
        assert outcomes[name][0] is Outcome.MET, outcomes[name]


@pytest.mark.parametrize(
    "num_swaps",
    [pytest.param(4, marks=REAL), pytest.param(NUM_SWAPS, marks=[*REAL, pytest.mark.thorough])],
)
def test_versions_change_under_load_without_an_error(num_swaps: int, tmp_path: Path) -> None:
    require_no_loss(list(swaps(tmp_path, num_swaps)))
