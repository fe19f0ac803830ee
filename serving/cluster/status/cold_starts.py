"""Where did the time of a GPU pool's cold starts go? Pure: by its scaler's report, else by the timestamps of its newest pod.

A scaler knows all phases (`decisions/cold_start.py`). Without one, or where it cannot be asked, the objects show those between a pod's
creation and its readiness, and not whether the pool was cold before. Rule: what was not observed is left out, and the source is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from serving.cluster.objects.fields import Object
from serving.cluster.objects.pods import Pod
from serving.cluster.snapshot import ClusterSnapshot
from serving.decisions.cold_start import PHASES, ColdStart, Server

STEPS = PHASES[:-1]  # without their total
Report = tuple[ColdStart, ...] | str  # a scaler's cold starts, oldest first; or why it reports none


@dataclass(frozen=True, slots=True)
class ColdLine:
    """One cold start. `now_in`: the current phase, where known; `boot_s`: part of `node`, from purchase until ready."""

    told_by: str  # "scaler" or "pod"; "nobody": `why` says why its scaler reports nothing
    state: str  # "over", "goes on", "given up" or "unknown"
    since: str  # ISO 8601: the decision, or the pod's creation
    age_s: float
    phases_s: dict[str, float]
    now_in: str | None = None
    boot_s: float | None = None
    why: str = ""


def parse_report(answer: Object) -> tuple[ColdStart, ...]:
    """From a scaler's `/cold-starts`. Raises what a text of another shape raises (KeyError, TypeError)."""
    return tuple(_cold_start(it) for it in answer["cold_starts"])


def _cold_start(it: Mapping[str, Any]) -> ColdStart:
    pool, pod = str(it["pool"]), it["server"]
    names = Server.__dataclass_fields__
    return ColdStart(
        pool=pool,
        decided_at=float(it["decided_at"]),
        server=None if pod is None else Server(**{key: value for key, value in pod.items() if key in names}),
        warm_at=it.get("warm_at"),
        answered_at=it.get("answered_at"),
        is_given_up=bool(it.get("is_given_up")),
    )


def of_pool(
    pool: str, report: Report | None, pods: Iterable[Pod], snapshot: ClusterSnapshot, now: datetime
) -> tuple[ColdLine, ...]:
    """The last cold start that is over, and one in progress. `report` None: there is no scaler.

    A scaler that started after a cold start had begun does not report it, and its pod does.
    """
    reported = [it for it in report if it.pool == pool] if isinstance(report, tuple) else []
    if reported:
        last = [it for it in reported if it.is_over][-1:]
        return tuple(_line(it, "scaler", now) for it in (*last, *(it for it in reported if not it.is_over)))
    servers = [_server(it, snapshot) for it in pods if it.created_at is not None and not it.is_leaving]
    newest = max(servers, key=lambda it: it.created_at or 0.0, default=None)
    silent = [ColdLine("nobody", "unknown", "", 0.0, {}, why=report)] if isinstance(report, str) else []
    return (*silent, *(() if newest is None else _of_pod(newest, pool, now)))


def _server(pod: Pod, snapshot: ClusterSnapshot) -> Server:
    """A restarted container shows only its last start, which is not the cold start's."""
    found = snapshot.server(pod)
    has_restarted = any(it.num_restarts for it in pod.containers if not it.is_init)
    return replace(found, started_at=None, ready_at=None) if has_restarted else found


def _of_pod(it: Server, pool: str, now: datetime) -> Iterable[ColdLine]:
    assert it.created_at is not None  # or it would not be the newest
    line = _line(ColdStart(pool, it.created_at, it), "pod", now)
    phases = {name: took_s for name, took_s in line.phases_s.items() if name != "decision"}
    is_over = it.ready_at is not None
    if phases or not is_over:
        yield replace(
            line, phases_s=phases, state="over" if is_over else "goes on", now_in=None if is_over else line.now_in
        )


def _line(it: ColdStart, told_by: str, now: datetime) -> ColdLine:
    node = it.server or Server("")
    known = node.node_created_at is not None and node.node_ready_at is not None
    # A node that was there before took no time of this cold start's.
    is_new = known and (node.node_ready_at or 0.0) >= it.decided_at
    phases = it.phases
    return ColdLine(
        told_by=told_by,
        state="given up" if it.is_given_up else "over" if it.is_over else "goes on",
        since=datetime.fromtimestamp(it.decided_at, UTC).isoformat(timespec="seconds"),
        age_s=max(0.0, now.timestamp() - it.decided_at),
        phases_s={name: round(took_s, 3) for name, took_s in phases.items()},
        now_in=None if it.is_over else _next(phases),
        boot_s=(node.node_ready_at or 0.0) - (node.node_created_at or 0.0) if is_new else None,
    )


def _next(phases: Mapping[str, float]) -> str | None:
    """The phase after the last one that ended; None before the first, because its pod may just not be visible."""
    ended = [number for number, name in enumerate(STEPS) if name in phases]
    return STEPS[ended[-1] + 1] if ended and ended[-1] + 1 < len(STEPS) else None
