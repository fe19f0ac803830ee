"""Which errors do clients have to live with? One kind, in one phase alone. Values only."""

from __future__ import annotations

from tests.cluster.bed.api import Object
from tests.cluster.hybrid.chart import HIGH_RPS

GATEWAY_KILLED, UPGRADED = "a gateway is killed", "an upgrade rolls both gateways and the CPU pool"
# UNAVAILABLE alone: gRPC's own word for a connection that is lost or refused
NO_ANSWER = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "IncompleteReadError", "UNAVAILABLE")
MOST = int(2 * HIGH_RPS)  # of two seconds: nodes hear of it within one, and it gets half of the traffic


def excused(report: Object) -> dict[str, int]:
    """By phase: who is connected to a gateway when it is killed, or is sent there before nodes know."""
    said: dict[str, dict[str, int]] = {name: it["said"] for name, it in report["phases"].items()}
    lost = sum(count for what, count in said.get(GATEWAY_KILLED, {}).items() if what in NO_ANSWER)
    return {GATEWAY_KILLED: min(lost, MOST)}


def unexcused(report: Object) -> int:
    return int(report["all"]["errors"]) - sum(excused(report).values())
