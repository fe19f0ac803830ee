"""Where did the time of a GPU pool's cold starts go? Pure: what its scaler tells, else what its newest pod's own times tell.

A scaler knows all phases (`decisions/cold_start.py`). Without one, or where it may not be asked, the objects know those between a pod's
creation and its readiness, and not whether the pool was cold before. Rule: what nobody saw is left out, and who tells is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from serving.cluster.api import Object
from serving.cluster.fields import at, name_of
from serving.cluster.scaler.objects import node_of, server
from serving.cluster.status.snapshot import Pod
from serving.decisions.cold_start import PHASES, ColdStart, Server

STEPS = PHASES[:-1]  # without their total


@dataclass(frozen=True, slots=True)
class ColdLine:
    """One cold start. `now_in`: the phase that goes on, where that is known; `boot_s`: part of `node`, from purchase until ready."""

    told_by: str  # "scaler" or "pod"; "nobody": `why` says why its scaler tells nothing
    state: str  # "over", "goes on", "given up" or "unknown"
    since: str  # ISO 8601: the decision, or the pod's creation
    age_s: float
    phases_s: dict[str, float]
    now_in: str | None = None
    boot_s: float | None = None
    why: str = ""


def servers(pods: Iterable[Object], nodes: Iterable[Object], claims: Iterable[Object]) -> dict[str, Server]:
    """By pod. A container that was started again tells of its last start only, which is no cold start's."""
    by_name, bought = {name_of(it): it for it in nodes}, tuple(claims)
    found = {}
    for pod in pods:
        it = server(pod, by_name.get(node_of(pod) or ""), bought)
        again = any(each.get("restartCount") for each in at(pod, "status", "containerStatuses", default=()))
        found[it.name] = replace(it, started_at=None, ready_at=None) if again else it
    return found


def told_by_scaler(answer: Object) -> tuple[ColdStart, ...]:
    """Of its `/cold-starts`, oldest first. Raises what a text of another shape raises (KeyError, TypeError)."""
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
    pool: str, told: tuple[ColdStart, ...] | str | None, pods: Iterable[Pod], seen: Mapping[str, Server], now: datetime
) -> tuple[ColdLine, ...]:
    """The last that is over and the one that goes on. `told`: by a scaler, why it tells nothing, None: there is none.

    A scaler that started after a cold start had begun tells nothing of it, and its pod does.
    """
    of_it = [it for it in told if it.pool == pool] if isinstance(told, tuple) else []
    if of_it:
        last = [it for it in of_it if it.is_over][-1:]
        return tuple(_line(it, "scaler", now) for it in (*last, *(it for it in of_it if not it.is_over)))
    its = [seen[it.name] for it in pods if it.name in seen and not it.is_leaving]
    its = [it for it in its if it.created_at is not None]
    newest = max(its, key=lambda it: it.created_at or 0.0, default=None)
    silent = [ColdLine("nobody", "unknown", "", 0.0, {}, why=told)] if isinstance(told, str) else []
    return (*silent, *(() if newest is None else _of_pod(newest, pool, now)))


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
    """The phase after the last whose end was seen; before the first nobody knows: its pod may only not be visible."""
    seen = [number for number, name in enumerate(STEPS) if name in phases]
    return STEPS[seen[-1] + 1] if seen and seen[-1] + 1 < len(STEPS) else None


def as_line(it: ColdLine, duration: Callable[[float], str]) -> str:
    """For a terminal. `duration`: how seconds are written."""
    if it.told_by == "nobody":
        return f"cold starts: {it.why}"
    words = [f"{name.replace('_', ' ')} {duration(took_s)}" for name, took_s in it.phases_s.items() if name != "total"]
    if it.boot_s is not None and "node" in it.phases_s:
        place = words.index(f"node {duration(it.phases_s['node'])}")
        words[place] += f" (bought and booted in {duration(it.boot_s)})"
    if it.now_in:
        words.append(f"now {it.now_in.replace('_', ' ')}")
    phases = ", ".join(words) or "no phase was seen"
    if it.told_by == "pod":
        what = "newest pod" if it.state == "over" else "newest pod, on its way"
        return f"{what}, made {duration(it.age_s)} ago: {phases} (the decision, warm-up and first answer only a scaler knows that saw them)"
    total = f" in {duration(it.phases_s['total'])}" if "total" in it.phases_s else ""
    heads = {
        "over": f"last cold start, {duration(it.age_s)} ago{total}",
        "given up": f"last cold start, {duration(it.age_s)} ago, given up: no longer wanted",
        "goes on": f"cold start for {duration(it.age_s)}",
    }
    return f"{heads[it.state]}: {phases}"
