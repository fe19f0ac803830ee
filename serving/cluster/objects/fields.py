"""Reads fields of a Kubernetes object that may be absent or null, and the labels that the chart sets. Pure; knows no kind.

Quantities are parsed here and not by the package `kubernetes`, because the scaler runs where that is not installed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

Object = Mapping[str, Any]  # the plain JSON that the server sends

NAME, RELEASE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
COMPONENT, VERSION = "app.kubernetes.io/component", "app.kubernetes.io/version"
PART_OF, MANAGED_BY = "app.kubernetes.io/part-of", "app.kubernetes.io/managed-by"
POOL = "tandem-pool"
OURS = f"{PART_OF}=tandem"  # on every object of the chart
# Values of COMPONENT.
GATEWAY, TRITON, SCALER, LOADTEST, WARM_NODES = "gateway", "triton", "scaler", "loadtest", "warm-nodes"

SHOWN = 3  # names or problems in one line
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkMGTPE]|[KMGTPE]i)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


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


def text(it: Object, *path: str) -> str:
    """The same on one line; empty where it is absent."""
    return one_line(at(it, *path))


def name_of(it: Object) -> str:
    return text(it, "metadata", "name")


def label(it: Object, key: str) -> str:
    return str((at(it, "metadata", "labels", default={})).get(key) or "")


def annotation(it: Object, key: str) -> str:
    return str((at(it, "metadata", "annotations", default={})).get(key) or "")


def moment(text: str | None) -> datetime | None:
    """A time as the server writes it: 2026-11-20T10:00:00Z, events also with microseconds."""
    return datetime.fromisoformat(text) if text else None


def created(it: Object) -> datetime | None:
    return moment(at(it, "metadata", "creationTimestamp"))


def is_leaving(it: Object) -> bool:
    return at(it, "metadata", "deletionTimestamp") is not None


def age_s(since: datetime | None, now: datetime) -> float:
    """Seconds; 0 where it is not known since when."""
    return max(0.0, (now - since).total_seconds()) if since is not None else 0.0


def conditions(it: Object) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            kind=text(each, "type"),
            status=text(each, "status"),
            reason=text(each, "reason"),
            message=text(each, "message"),
            since=moment(each.get("lastTransitionTime")),
        )
        for each in at(it, "status", "conditions", default=())
    )


def condition(found: tuple[Condition, ...], kind: str) -> Condition | None:
    return next((it for it in found if it.kind == kind), None)


def is_true(found: tuple[Condition, ...], kind: str) -> bool:
    of_kind = condition(found, kind)
    return of_kind is not None and of_kind.is_true


def amounts(it: Object, *path: str) -> dict[str, Decimal]:
    """Quantities by resource, in base units."""
    return {key: quantity(value) for key, value in at(it, *path, default={}).items()}


def quantity(value: str | float) -> Decimal:
    """ "1500m" is 1.5, "1Gi" is 2**30. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        raise ValueError(f"'{value}' is no quantity")
    number, unit = Decimal(found[1]), found[2] or ""
    if unit.endswith("i"):
        return number * Decimal(1024 ** ("KMGTPE".index(unit[0]) + 1))
    return number.scaleb(_DECIMAL[unit]) if unit else number


def one_line(text: Any) -> str:
    return " ".join(str("" if text is None else text).split())


def there_are(names: Collection[str]) -> str:
    """ "there is a", "there are a, b": what could have been meant."""
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def shortened(parts: Sequence[str], separator: str = ", ") -> str:
    """The first three, and how many more there are."""
    more = f"{separator}and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return separator.join(parts[:SHOWN]) + more
