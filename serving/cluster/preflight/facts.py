"""What a cluster says of itself: values only. None is "this user may not see it", never "there is none"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from serving.cluster.preflight.requirements import Kind
from serving.cluster.taints import Taint

NODE_POOL = Kind("karpenter.sh", "v1", "NodePool")
SCALED_OBJECT = Kind("keda.sh", "v1alpha1", "ScaledObject")
SERVICE_MONITOR = Kind("monitoring.coreos.com", "v1", "ServiceMonitor")
HTTP_ROUTE = Kind("gateway.networking.k8s.io", "v1", "HTTPRoute")
METRICS = ("metrics.k8s.io", "external.metrics.k8s.io", "custom.metrics.k8s.io")


class Api(StrEnum):
    """Whether something is served; an aggregated API is `broken` while its own server is down."""

    SERVED = "served"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class MetricsApi:
    state: Api
    server: str | None = None  # "kube-system/metrics-server"; None where it cannot be seen
    trouble: str = ""  # the aggregator's own words


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    is_ready: bool
    is_cordoned: bool
    capacity: Mapping[str, int]  # GPU resources that the device plugin once announced
    allocatable: Mapping[str, int]  # of those, the healthy ones; some may be in use
    sign_of_gpu: str | None = None  # a label that says it has a card
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePool:
    """Of Karpenter. Whether it buys cards follows from its limits, taints and requirements, not from what clouds sell."""

    name: str
    is_ready: bool
    sign_of_gpu: str | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class StorageClass:
    name: str
    is_default: bool
    provisioner: str


@dataclass(frozen=True, slots=True)
class Quota:
    name: str
    hard: Mapping[str, Decimal]
    used: Mapping[str, Decimal]
    is_scoped: bool = False  # counts only some pods, by priority or deadline


@dataclass(frozen=True, slots=True)
class LimitRange:
    """One line of a LimitRange, by resource."""

    name: str
    kind: str  # Container, Pod, PersistentVolumeClaim
    least: Mapping[str, Decimal]
    most: Mapping[str, Decimal]
    default: Mapping[str, Decimal]
    ratio: Mapping[str, Decimal]  # most that a limit may be, in requests


@dataclass(frozen=True, slots=True)
class FailedPull:
    image: str
    says: str
    at: datetime | None


class Secret(StrEnum):
    THERE = "there"
    OTHER_TYPE = "other type"  # only where a type is asked for
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Facts:
    server_version: str  # as the server writes it: v1.35.0, v1.31.4-gke.1256000
    namespace: str
    has_namespace: bool | None
    enforced: str | None  # label pod-security.kubernetes.io/enforce, empty without one
    denied: tuple[str, ...]  # resources that the installation makes and this user may not
    denied_optional: tuple[str, ...]  # the same of what other values make, with what for
    nodes: tuple[Node, ...] | None
    node_pools: tuple[NodePool, ...] | None
    kinds: Mapping[Kind, Api]
    metrics: Mapping[str, MetricsApi]
    storage_classes: tuple[StorageClass, ...] | None
    quotas: tuple[Quota, ...] | None
    limit_ranges: tuple[LimitRange, ...] | None
    own_use: Mapping[str, Decimal] | None  # of the quotas, by a Tandem that is installed there already
    pull_secrets: Mapping[str, Secret | None]
    secrets: Mapping[str, Secret | None]
    claims: Mapping[str, str | None]  # name -> phase, empty if there is none
    failed_pulls: tuple[FailedPull, ...] | None
