"""A reason not to serve, and the words that all reasons share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from serving.cluster.status.seen import Event, Pod, Workload


@dataclass(frozen=True, slots=True)
class Reason:
    """`why` completes "waits: …". No way out: nothing is to be done but wait."""

    why: str
    way_out: str | None = None


def values_of(it: Pod | Workload) -> str:
    """Where the chart's values set what a pod is."""
    return f"pools.{it.pool}" if it.pool else it.component


def when(it: Event) -> float:
    return it.at.timestamp() if it.at else 0.0
