"""Which errors do clients have to live with? Two kinds, each in one phase alone. Values only."""

from __future__ import annotations

from tests.cluster.bed.api import Object
from tests.cluster.hybrid.channels import NUM_CHANNELS

GATEWAY_KILLED, UPGRADED = "a gateway is killed", "an upgrade rolls both gateways and the CPU pool"
# UNAVAILABLE alone: gRPC's own word for a connection that is lost or refused
NO_ANSWER = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "IncompleteReadError", "UNAVAILABLE")
# What gRPC's own server says to RPCs that reach it in the milliseconds between its stop and the client's hearing of it, before the gateway sees them:
# seen once in three runs. One for each channel and each gateway that is rolled, and no more.
CUT_OFF, MOST_CUT_OFF = "CANCELLED", 2 * NUM_CHANNELS


def excused(report: Object) -> dict[str, int]:
    """By phase, the errors that clients have to live with: who is connected to a gateway when it is killed, or is sent there before nodes know;
    and RPCs that are cut off by a gateway's stop."""
    said: dict[str, dict[str, int]] = {name: it["said"] for name, it in report["phases"].items()}
    killed = sum(count for what, count in said.get(GATEWAY_KILLED, {}).items() if what in NO_ANSWER)
    cut_off = said.get(UPGRADED, {}).get(CUT_OFF, 0)
    return {GATEWAY_KILLED: killed, UPGRADED: min(cut_off, MOST_CUT_OFF)}


def unexcused(report: Object) -> int:
    return int(report["all"]["errors"]) - sum(excused(report).values())
