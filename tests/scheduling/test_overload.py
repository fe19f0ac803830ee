"""More than a batching server can do: is what was let in done in time, and is the server kept busy?"""

from __future__ import annotations

import pytest

from loadtest.bench.prove.batching import LOAD_S, Batching
from serving.scheduling.curve import Curve

SLOW = Curve(((1.0, 0.020), (8.0, 0.080), (32.0, 0.320)))
FAST = Curve(((1.0, 0.008), (8.0, 0.050), (32.0, 0.200)))
SHARED = Curve(((1.0, 0.010), (8.0, 0.050), (32.0, 0.200)))
FLAT = Curve(((1.0, 0.005), (32.0, 0.012)))


@pytest.mark.parametrize(
    ("curve", "at_once"),
    [
        (SLOW, False),
        (SLOW, True),
        (FLAT, True),
        *(pytest.param(*row, marks=pytest.mark.thorough) for row in ((FAST, False), (FAST, True), (FLAT, False))),
    ],
)
def test_a_batching_server_with_three_times_too_much_to_do_is_used_fully_and_answers_in_time(
    curve: Curve, at_once: bool
) -> None:
    server = Batching(curve, at_once=at_once)
    server.run(3.0)
    assert server.good / LOAD_S >= 0.95 * server.capacity_rps
    assert server.late <= 0.01 * server.good
    assert server.expired <= 0.03 * server.num_let_in  # what cannot be in time is refused, not let in
    assert server.refused > server.num_let_in


@pytest.mark.parametrize(
    "curve",
    [SLOW, FAST, SHARED, pytest.param(FLAT, marks=pytest.mark.thorough)],
    ids=["slow", "fast", "shared", "flat"],
)
def test_what_is_learnt_of_a_server_that_keeps_to_its_curve_is_that_it_does(curve: Curve) -> None:
    server = Batching(curve)
    server.run(3.0)
    assert 0.9 <= server.gateways[0].candidate.service.correction.factor <= 1.1


@pytest.mark.parametrize(
    ("curve", "num_gateways", "max_late_ratio"), [(FAST, 2, 0.02), (SHARED, 2, 0.02), (SHARED, 4, 0.03)]
)
def test_several_gateways_on_a_batching_server_answer_in_time_at_twice_what_it_can_do(
    curve: Curve, num_gateways: int, max_late_ratio: float
) -> None:
    server = Batching(curve, num_gateways)
    server.run(2.0)
    assert server.good / LOAD_S >= 0.95 * server.capacity_rps
    assert server.late <= max_late_ratio * server.good
    assert server.expired <= 0.03 * server.num_let_in
    believed = [gateway.candidate.service.correction for gateway in server.gateways]
    times = sorted(each.factor / each.left_ratio for each in believed)
    assert 0.75 <= times[(num_gateways - 1) // 2] / num_gateways <= 1.25, "each gets its part of it"
