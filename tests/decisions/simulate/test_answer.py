"""The first screen of a simulation: who is compared with whom, and that what is said follows from the numbers shown."""

from __future__ import annotations

import re
from typing import Any

import pytest

from serving.decisions.simulate.answer import answer, flow_answer
from serving.decisions.simulate.flow import FlowOutcome
from serving.decisions.simulate.outcome import Outcome


def outcome(policy: str, in_time: int, cost: float, **more: Any) -> Outcome:
    told: dict[str, Any] = {
        "duration_s": 1800.0, "num_requests": 1000, "num_late": 1000 - in_time, "num_refused": 0, "num_expired": 0,
        "hours": {"cpu": 1.0, "gpu": 0.5}, "cpu_hours": 1.0, "gpu_hours": 0.5, "num_gpu_starts": 1,
        "num_handovers": 0, "latency_mean_s": None,
        "latency_p50_s": None, "latency_p99_s": None, "reasons": (), "timeline": (),
    }  # fmt: skip
    return Outcome(policy=policy, num_in_time=in_time, cost=cost, **{**told, **more})


MINE = outcome("tandem", 990, 0.5)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ([], r"99 % of 1,000 .* for 0.50\.$"),
        ([outcome("cheap", 400, 0.1), outcome("dear", 990, 2.0), outcome("dearer", 1000, 3.0)], "dear.* 2.00, 4.00 times"),
        ([outcome("same", 990, 0.5)], "same costs the same"),
        ([outcome("better", 1000, 0.25)], "better.* 0.25, 0.50 times"),
        ([outcome("worse", 900, 0.1), outcome("worst", 100, 0.05)], "worse has 90 % for 0.10"),
        ([outcome("oracle", 1000, 0.1)], r"for 0.50\.$"),
    ],
)  # fmt: skip
def test_it_is_compared_with_the_cheapest_that_is_as_good(others: list[Outcome], says: str) -> None:
    found = answer([*others, MINE], 0.3)
    assert re.search(says, found.sentence), found.sentence
    in_time, hourly, woken = found.figures
    assert in_time[1] == "99 %"
    assert hourly[1] == "1.00"
    assert woken[1] == "once"


def test_a_share_is_never_rounded_up_to_all() -> None:
    found = answer([outcome("tandem", 999_999, 1.0, num_requests=1_000_000, num_late=1, num_gpu_starts=3)], 0.3)
    assert found.figures[0][1] == "99.99 %"
    assert found.figures[2][1] == "3 times"


def test_a_flow_is_told_by_its_regret() -> None:
    def of(name: str, cost: float, undone: float) -> FlowOutcome:
        return FlowOutcome(name, cost, undone, 0.01, 1, 1, {}, 3600.0)

    found = flow_answer([of("tandem", 1.0, 0.2), of("hpa", 1.5, 0.5), of("keda", 1.6, 0.0)], of("optimum", 1.0, 0.0))
    assert found.figures[0][1] == "1.20"
    assert "keda" in found.sentence
    assert "1.60" in found.sentence
