"""How are fields of a Kubernetes object read that may be absent or null? Pure; nothing here knows a kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.cluster.api import Object


@dataclass(frozen=True, slots=True)
class Condition:
    """One line of a `status.conditions`."""

    kind: str
    status: str  # "True", "False" or "Unknown"
    reason: str
    message: str
    since: datetime | None

    @property
    def is_true(self) -> bool:
        return self.status == "True"


def at(it: Object, *path: str, default: Any = None) -> Any:
    """What stands at a path; the default where it, or something before it, is absent or null."""
    found: Any = it
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return default
    return found


def name_of(it: Object) -> str:
    return str(at(it, "metadata", "name", default=""))


def label(it: Object, key: str) -> str:
    return str((at(it, "metadata", "labels", default={})).get(key) or "")


def moment(text: str | None) -> datetime | None:
    """A time as the server writes it: 2026-11-20T10:00:00Z, events also with microseconds."""
    return datetime.fromisoformat(text) if text else None


def created(it: Object) -> datetime | None:
    return moment(at(it, "metadata", "creationTimestamp"))


def conditions(it: Object) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            kind=str(each.get("type", "")),
            status=str(each.get("status", "")),
            reason=str(each.get("reason") or ""),
            message=one_line(each.get("message")),
            since=moment(each.get("lastTransitionTime")),
        )
        for each in at(it, "status", "conditions", default=())
    )


def condition(found: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((it for it in found if it.kind == kind), None)


def amounts(it: Object, *path: str) -> dict[str, Decimal]:
    """Quantities by resource, in base units: "1500m" is 1.5, "1Gi" is 2**30."""
    from kubernetes.utils import parse_quantity  # not where the scaler runs, which asks for no amounts

    return {key: parse_quantity(value) for key, value in at(it, *path, default={}).items()}


def one_line(text: Any) -> str:
    return " ".join(str(text or "").split())
