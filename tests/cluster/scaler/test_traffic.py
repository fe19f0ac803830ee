"""How many of the last minute's requests failed, by what gateways count: none of them twice, and none of a gateway's past."""

from __future__ import annotations

from serving.cluster.scaler.gateways import GatewayReport
from serving.cluster.scaler.reconcile import TRAFFIC_S, TrafficLog
from serving.cluster.scaler.state import Traffic


def report(good: float, failed: float, refused: float = 0.0) -> GatewayReport:
    return GatewayReport({}, {}, {"gpu": good}, {"": refused, "gpu": failed})


def test_of_two_gateways_what_came_since_they_were_first_heard_counts_for_a_minute() -> None:
    log = TrafficLog()
    assert log.observe(0.0, {"a": report(1000, 50), "b": report(10, 0)})["gpu"] == Traffic(0, 0)
    assert log.observe(1.0, {"a": report(1008, 52, 3), "b": report(20, 0)}) == {
        "": Traffic(0, 3),
        "gpu": Traffic(18, 2),
    }
    assert log.observe(2.0, {"b": report(21, 0)})["gpu"] == Traffic(19, 2)
    assert log.observe(3.0, {"a": report(1010, 52, 3)})["gpu"] == Traffic(21, 2)
    assert log.observe(1.0 + TRAFFIC_S, {})["gpu"] == Traffic(3, 0)
    assert log.observe(9.0 + TRAFFIC_S, {}) == {}


def test_a_count_that_goes_back_is_no_failure() -> None:
    log = TrafficLog()
    log.observe(0.0, {"a": report(5, 5)})
    assert log.observe(1.0, {"a": report(0, 0)})["gpu"] == Traffic(0, 0)
    assert log.observe(2.0, {"a": report(1, 1)})["gpu"] == Traffic(1, 1)
