"""Which taints keep a pod off a node? Pure, as the scheduler decides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from serving.cluster.api import Object
from serving.cluster.fields import at

# What a cluster sets itself while a node is not fit; none of them is for a chart to tolerate.
_OWN = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/", "ToBeDeletedByClusterAutoscaler")

Toleration = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"

    @property
    def counts(self) -> bool:
        """Whether it keeps pods off, and was set by somebody who wants to be asked."""
        return self.effect in ("NoSchedule", "NoExecute") and not self.key.startswith(_OWN)

    @property
    def toleration(self) -> str:
        """As it is written into values."""
        return f"{{key: {self.key}, operator: Exists, effect: {self.effect}}}"


def taints(node: Object) -> tuple[Taint, ...]:
    return tuple(
        Taint(str(it.get("key", "")), str(it.get("value") or ""), str(it.get("effect", "")))
        for it in at(node, "spec", "taints", default=())
    )


def closed(found: Iterable[Taint], tolerations: Iterable[Toleration]) -> list[Taint]:
    """Those that keep a pod off."""
    tolerated = tuple(tolerations)
    return [it for it in found if it.counts and not any(_is_tolerated(it, each) for each in tolerated)]


def _is_tolerated(taint: Taint, by: Toleration) -> bool:
    """An absent key with Exists is every key, an absent effect every effect."""
    if by.get("effect") and by["effect"] != taint.effect:
        return False
    if by.get("operator") == "Exists":
        return by.get("key", "") in ("", taint.key)
    return by.get("key") == taint.key and (by.get("value") or "") == taint.value
