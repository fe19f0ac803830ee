"""Which errors do clients have to live with? One kind, in one phase alone. Values only."""

from __future__ import annotations

from tests.cluster.bed.api import Object

GATEWAY_KILLED, UPGRADED = "a gateway is killed", "an upgrade rolls both gateways and the CPU pool"
# UNAVAILABLE alone: gRPC's own word for a connection that is lost or refused
NO_ANSWER = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "IncompleteReadError", "UNAVAILABLE")


def excused(report: Object) -> dict[str, int]:
    """By phase: who is connected to a gateway when it is killed, or is sent there before nodes know."""
    said: dict[str, dict[str, int]] = {name: it["said"] for name, it in report["phases"].items()}
    return {GATEWAY_KILLED: sum(count for what, count in said.get(GATEWAY_KILLED, {}).items() if what in NO_ANSWER)}


def unexcused(report: Object) -> int:
    return int(report["all"]["errors"]) - sum(excused(report).values())
