"""Splits a request's time into net, waiting, transfer, JSON and gateway. Pure: differences between rungs of a ladder.

The net is the engine alone; waiting is Triton's own count; what else HTTP with binary tensors takes beyond the engine is transfer, copies
and Triton's backend; JSON and the gateway are what each adds. A difference below 0 is 0, one whose ends overlap is noise, and a net that
was slower alone than in Triton takes no longer than Triton. Rule: a part that does not follow from what was measured is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from serving.decisions.profile import Timing

PartName = Literal["compute", "queue", "transfer", "json", "gateway"]
MIN_QUEUE_RATIO = 0.05  # of a request: a smaller wait is told as part of the transfer (a guess: what a bar can show)


class HasLadder(Protocol):
    """A server whose ladder was measured: of a profile, or of a report."""

    @property
    def label(self) -> str: ...

    @property
    def ladder(self) -> tuple[Timing, ...]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """`is_noise`: the two rungs do not differ significantly."""

    name: PartName
    seconds: float
    is_noise: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """A request's time in parts. The top is JSON through the gateway, where that was measured; the parts' sum may miss it by noise."""

    batch_size: int
    top: Timing
    parts: tuple[Part, ...]

    @property
    def total_s(self) -> float:
        return self.top.latency_p50_s

    def seconds(self, name: PartName) -> float:
        return next((part.seconds for part in self.parts if part.name == name), 0.0)

    def ratio(self, name: PartName) -> float:
        """Of the sum of all parts."""
        whole_s = sum(part.seconds for part in self.parts)
        return self.seconds(name) / whole_s if whole_s else 0.0

    def is_noise(self, name: PartName) -> bool:
        return any(part.is_noise for part in self.parts if part.name == name)


def batch_sizes(server: HasLadder) -> list[int]:
    return sorted({timing.batch_size for timing in server.ladder})


def split(ladder: Sequence[Timing], batch_size: int) -> Split | None:
    """None where neither the engine nor Triton's count of it is there, or nothing above it."""
    rungs = {timing.rung: timing for timing in ladder if timing.batch_size == batch_size}
    direct = rungs.get("triton_http_binary") or rungs.get("triton_grpc")
    if direct is None:
        return None
    alone = rungs.get("in_process")
    compute_s = alone.latency_p50_s if alone else direct.compute_infer_s
    if compute_s is None:
        return None
    queue_s = direct.queue_s or 0.0
    if queue_s < MIN_QUEUE_RATIO * direct.latency_p50_s:
        queue_s = 0.0
    left_s = direct.latency_p50_s - compute_s - queue_s
    parts = [Part("compute", compute_s + min(0.0, left_s), left_s < 0)]
    if queue_s:
        parts.append(Part("queue", queue_s))
    parts.append(Part("transfer", max(0.0, left_s), left_s <= 0 or overlap(alone, direct)))
    top = direct
    if (json := rungs.get("triton_http_json")) is not None:
        parts.append(_between("json", direct, json))
        top = json
    above = rungs.get("gateway_json" if top.rung == "triton_http_json" else "gateway_binary")
    if above is not None:
        parts.append(_between("gateway", top, above))
        top = above
    return Split(batch_size, top, tuple(parts))


def _between(name: PartName, below: Timing, above: Timing) -> Part:
    seconds = above.latency_p50_s - below.latency_p50_s
    return Part(name, max(0.0, seconds), seconds <= 0 or overlap(below, above))


def overlap(below: Timing | None, above: Timing) -> bool:
    """Whether the intervals of the medians overlap; False where one has no interval."""
    if below is None or below.high_s is None or above.low_s is None:
        return False
    return below.high_s >= above.low_s
