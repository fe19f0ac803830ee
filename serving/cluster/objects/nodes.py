"""Nodes, and Karpenter's NodePools and NodeClaims; which taints keep a pod off a node, as the scheduler decides it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from serving.cluster.objects.fields import (
    Condition,
    Object,
    amounts,
    at,
    condition,
    conditions,
    created,
    is_leaving,
    is_true,
    label,
    name_of,
    text,
)
from serving.cluster.objects.gpus import INSTANCE_TYPE, gpus, is_gpu, sign_of_gpu

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

    @classmethod
    def parse(cls, it: Object) -> Taint:
        return cls(text(it, "key"), text(it, "value"), text(it, "effect"))

    @property
    def counts(self) -> bool:
        """Whether it keeps pods off, and was set by somebody who wants to be asked."""
        return self.effect in ("NoSchedule", "NoExecute") and not self.key.startswith(_OWN)

    @property
    def toleration(self) -> str:
        """As it is written into values."""
        return f"{{key: {self.key}, operator: Exists, effect: {self.effect}}}"


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


@dataclass(frozen=True, slots=True)
class Node:
    """`capacity`: GPU resources that the device plugin once announced; `allocatable`: of those the healthy ones, some maybe in use."""

    name: str
    is_ready: bool
    is_cordoned: bool
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    sign_of_gpu: str | None = None  # a label that says it has a card
    taints: tuple[Taint, ...] = ()
    instance_type: str = ""
    not_ready: str = ""  # the kubelet's own words
    created_at: datetime | None = None
    ready_since: datetime | None = None
    not_ready_since: datetime | None = None

    @classmethod
    def parse(cls, it: Object) -> Node:
        ready = condition(conditions(it), "Ready")
        is_ready = ready is not None and ready.is_true
        return cls(
            name=name_of(it),
            is_ready=is_ready,
            is_cordoned=bool(at(it, "spec", "unschedulable")),
            capacity={key: count for key, count in gpus(amounts(it, "status", "capacity")).items() if count},
            allocatable=gpus(amounts(it, "status", "allocatable")),
            sign_of_gpu=sign_of_gpu(at(it, "metadata", "labels", default={})),
            taints=tuple(map(Taint.parse, at(it, "spec", "taints", default=()))),
            instance_type=label(it, INSTANCE_TYPE),
            not_ready="" if is_ready or ready is None else ready.message,
            created_at=created(it),
            ready_since=ready.since if ready is not None and is_ready else None,
            not_ready_since=None if ready is None or is_ready else ready.since,
        )

    @property
    def is_usable(self) -> bool:
        return self.is_ready and not self.is_cordoned


@dataclass(frozen=True, slots=True)
class NodePool:
    """Of Karpenter. Whether it buys cards follows from its limits, taints and requirements, not from what clouds sell."""

    name: str
    is_ready: bool
    sign_of_gpu: str | None
    trouble: str = ""

    @classmethod
    def parse(cls, it: Object) -> NodePool:
        ready = condition(conditions(it), "Ready")
        return cls(
            name=name_of(it),
            is_ready=ready is not None and ready.is_true,
            sign_of_gpu=_sign_of_pool(it),
            trouble="" if ready is None or ready.is_true else f"{ready.reason}: {ready.message}",
        )


def _sign_of_pool(it: Object) -> str | None:
    if limits := [key for key in at(it, "spec", "limits", default={}) if is_gpu(key)]:
        return f"limits.{limits[0]}"
    spec = at(it, "spec", "template", "spec", default={})
    if tainted := [key for each in at(spec, "taints", default=()) if is_gpu(key := text(each, "key"))]:
        return f"taint {tainted[0]}"
    for each in at(spec, "requirements", default=()):
        key, values = text(each, "key"), at(each, "values", default=())
        if "gpu" in key and each.get("operator") != "DoesNotExist":
            return f"requirement {key}"
        if found := next((sign for value in values if (sign := sign_of_gpu({key: str(value)}))), None):
            return f"requirement {found}"
    return None


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A node that Karpenter buys or has bought. Its conditions' times are the phases of a cold start."""

    name: str
    node: str
    node_pool: str
    instance_type: str
    gpus: Mapping[str, int]
    conditions: tuple[Condition, ...]
    created_at: datetime | None
    is_leaving: bool = False

    @classmethod
    def parse(cls, it: Object) -> NodeClaim:
        requests = amounts(it, "spec", "resources", "requests")
        return cls(
            name=name_of(it),
            node=text(it, "status", "nodeName"),
            node_pool=label(it, "karpenter.sh/nodepool"),
            instance_type=label(it, INSTANCE_TYPE),
            gpus=gpus(amounts(it, "status", "capacity")) or gpus(requests),
            conditions=conditions(it),
            created_at=created(it),
            is_leaving=is_leaving(it),
        )

    @property
    def is_coming(self) -> bool:
        return not self.is_leaving and not is_true(self.conditions, "Initialized")
