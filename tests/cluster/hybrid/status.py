"""What does a kubelet write about a pod? Values only: the status, from what its containers do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tests.cluster.bed.api import Object

OURS = ("Initialized", "ContainersReady", "Ready")


@dataclass(slots=True)
class Seen:
    """One container. `exit_code` is None while it runs."""

    name: str
    image: str
    started_at: str = ""
    is_started: bool = False
    is_ready: bool = False
    restarts: int = 0
    exit_code: int | None = None
    waits_for: str = "PodInitializing"  # empty once it runs or ran

    def told(self) -> Object:
        if self.waits_for:
            state: Object = {"waiting": {"reason": self.waits_for}}
        elif self.exit_code is None:
            state = {"running": {"startedAt": self.started_at}}
        else:
            reason = "Completed" if self.exit_code == 0 else "Error"
            state = {
                "terminated": {
                    "exitCode": self.exit_code,
                    "reason": reason,
                    "startedAt": self.started_at,
                    "finishedAt": now(),
                }
            }
        runs = not self.waits_for and self.exit_code is None
        return {
            "name": self.name, "image": self.image, "imageID": "", "restartCount": self.restarts, "state": state,
            "ready": runs and self.is_ready, "started": runs and self.is_started,
        }  # fmt: skip


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status(pod: Object, init: list[Seen], containers: list[Seen], *, is_initialized: bool) -> Object:
    """A patch. Conditions that others wrote (PodScheduled, DisruptionTarget) stay."""
    told = [it.told() for it in containers]
    is_ready = is_initialized and all(it["ready"] for it in told)
    values = {"Initialized": is_initialized, "ContainersReady": is_ready, "Ready": is_ready}
    before = {it["type"]: it for it in pod["status"].get("conditions") or ()}
    others = [it for kind, it in before.items() if kind not in OURS]
    return {
        "phase": "Running" if is_initialized else "Pending",
        "conditions": [*others, *(_condition(kind, is_true, before.get(kind)) for kind, is_true in values.items())],
        "initContainerStatuses": [it.told() | {"ready": it.exit_code == 0} for it in init],
        "containerStatuses": told,
    }


def _condition(kind: str, is_true: bool, before: Object | None) -> Object:
    value = "True" if is_true else "False"
    if before is not None and before["status"] == value:
        return before
    return {"type": kind, "status": value, "lastTransitionTime": now()}
