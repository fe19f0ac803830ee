"""What else a namespace or a cluster holds: Services, policies, autoscalers, volume claims, quotas, limits, events. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from serving.cluster.objects.fields import (
    COMPONENT,
    POOL,
    RELEASE,
    Condition,
    Object,
    amounts,
    annotation,
    at,
    conditions,
    created,
    label,
    moment,
    name_of,
    text,
)


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    release: str
    component: str
    ports: Mapping[str, int]  # by name
    pool: str = ""

    @classmethod
    def parse(cls, it: Object) -> Service:
        ports = at(it, "spec", "ports", default=())
        named = {text(each, "name"): each["port"] for each in ports}
        return cls(name_of(it), label(it, RELEASE), label(it, COMPONENT), named, label(it, POOL))


@dataclass(frozen=True, slots=True)
class EndpointSlice:
    """`pods`: those behind an address that a Service sends to, and that are ready themselves."""

    pods: frozenset[str]

    @classmethod
    def parse(cls, it: Object) -> EndpointSlice:
        endpoints = at(it, "endpoints", default=())
        return cls(frozenset(text(each, "targetRef", "name") for each in endpoints if _is_answering(each)))


def _is_answering(endpoint: Object) -> bool:
    """Absent means true, as the API says. A Service that publishes what is not ready calls it `ready`, and only `serving` tells."""
    return all(at(endpoint, "conditions", name, default=True) for name in ("ready", "serving"))


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    match_labels: Mapping[str, str]
    limits_egress: bool
    allows_egress: bool  # anywhere

    @classmethod
    def parse(cls, it: Object) -> NetworkPolicy:
        return cls(
            match_labels=at(it, "spec", "podSelector", "matchLabels", default={}),
            limits_egress="Egress" in at(it, "spec", "policyTypes", default=()),
            allows_egress=bool(at(it, "spec", "egress")),
        )


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """A HorizontalPodAutoscaler."""

    name: str
    target: str  # the Deployment's name
    min_replicas: int
    max_replicas: int
    metrics: tuple[str, ...]  # "cpu 35% of 70%"
    conditions: tuple[Condition, ...]
    reads_external: bool = False  # a metric of external.metrics.k8s.io

    @classmethod
    def parse(cls, it: Object) -> Autoscaler:
        current = at(it, "status", "currentMetrics", default=())
        metrics = at(it, "spec", "metrics", default=())
        return cls(
            name=name_of(it),
            target=text(it, "spec", "scaleTargetRef", "name"),
            min_replicas=at(it, "spec", "minReplicas", default=1),
            max_replicas=at(it, "spec", "maxReplicas", default=0),
            metrics=tuple(_metric(each, current) for each in metrics),
            conditions=conditions(it),
            reads_external=any(text(each, "type") == "External" for each in metrics),
        )

    @property
    def trouble(self) -> str:
        """Why it does nothing, or no more; empty if it is well. At 0 replicas it is `ScalingDisabled` by design."""
        for it in self.conditions:
            if it.kind in ("AbleToScale", "ScalingActive") and not it.is_true and it.reason != "ScalingDisabled":
                return f"{it.reason}: {it.message}"
        limited = next((it for it in self.conditions if it.kind == "ScalingLimited" and it.is_true), None)
        return f"{limited.reason}: {limited.message}" if limited and limited.reason == "TooManyReplicas" else ""


def _metric(it: Object, current: tuple[Object, ...]) -> str:
    name, target = _metric_name(it), _metric_body(it).get("target") or {}
    there = next((_metric_body(each).get("current") or {} for each in current if _metric_name(each) == name), {})
    for key, unit in (("averageUtilization", "%"), ("averageValue", " each"), ("value", "")):
        if (aim := target.get(key)) is not None:
            # A server without a value says 0 or leaves the field out; at 0 replicas some write a huge negative number.
            now = there.get(key)
            return f"{name} {'unknown' if now is None or str(now).startswith('-') else f'{now}{unit}'} of {aim}{unit}"
    return name


def _metric_body(it: Object) -> Object:
    """A metric's own part stands under its type's name: Resource -> resource, ContainerResource -> containerResource."""
    kind = text(it, "type")
    found: Object = it.get(kind[:1].lower() + kind[1:]) or {}
    return found


def _metric_name(it: Object) -> str:
    body = _metric_body(it)
    return text(body, "name") or text(body, "metric", "name")


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """Of KEDA."""

    name: str
    target: str
    min_replicas: int
    max_replicas: int
    conditions: tuple[Condition, ...]
    created_at: datetime | None = None

    @classmethod
    def parse(cls, it: Object) -> ScaledObject:
        return cls(
            name=name_of(it),
            target=text(it, "spec", "scaleTargetRef", "name"),
            min_replicas=at(it, "spec", "minReplicaCount", default=0),  # KEDA's own defaults
            max_replicas=at(it, "spec", "maxReplicaCount", default=100),
            conditions=conditions(it),
            created_at=created(it),
        )


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """`num_allowed`: pods that may be evicted now; `num_expected`: of those that it is about; `num_needed`: of these, healthy ones."""

    name: str
    match_labels: Mapping[str, str]
    num_allowed: int
    num_expected: int
    num_healthy: int
    num_needed: int

    @classmethod
    def parse(cls, it: Object) -> DisruptionBudget:
        def number(name: str) -> int:
            return int(at(it, "status", name, default=0))

        return cls(
            name=name_of(it),
            match_labels=at(it, "spec", "selector", "matchLabels", default={}),
            num_allowed=number("disruptionsAllowed"),
            num_expected=number("expectedPods"),
            num_healthy=number("currentHealthy"),
            num_needed=number("desiredHealthy"),
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """Of coordination.k8s.io: that somebody of several works, which he renews every few seconds."""

    name: str
    namespace: str
    holder: str
    renewed_at: datetime | None

    @classmethod
    def parse(cls, it: Object) -> Lease:
        return cls(
            name=name_of(it),
            namespace=text(it, "metadata", "namespace"),
            holder=text(it, "spec", "holderIdentity"),
            renewed_at=moment(at(it, "spec", "renewTime")),
        )


@dataclass(frozen=True, slots=True)
class Certificate:
    """Of cert-manager, which writes into `secret` and tells until when it holds: the secret itself is not read."""

    name: str
    secret: str
    ends_at: datetime | None
    conditions: tuple[Condition, ...]

    @classmethod
    def parse(cls, it: Object) -> Certificate:
        return cls(name_of(it), text(it, "spec", "secretName"), moment(at(it, "status", "notAfter")), conditions(it))


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim. `storage_class` None: the cluster's default."""

    name: str
    storage_class: str | None = None
    storage_bytes: Decimal = Decimal(0)
    phase: str = ""

    @classmethod
    def parse(cls, it: Object) -> VolumeClaim:
        requests = amounts(it, "spec", "resources", "requests")
        return cls(
            name=name_of(it),
            storage_class=at(it, "spec", "storageClassName"),
            storage_bytes=requests.get("storage", Decimal(0)),
            phase=text(it, "status", "phase"),
        )


@dataclass(frozen=True, slots=True)
class StorageClass:
    name: str
    is_default: bool
    provisioner: str

    @classmethod
    def parse(cls, it: Object) -> StorageClass:
        is_default = annotation(it, "storageclass.kubernetes.io/is-default-class") == "true"
        return cls(name_of(it), is_default, text(it, "provisioner"))


@dataclass(frozen=True, slots=True)
class Quota:
    name: str
    hard: Mapping[str, Decimal]
    used: Mapping[str, Decimal] = field(default_factory=dict)
    is_scoped: bool = False  # counts only some pods, by priority or deadline

    @classmethod
    def parse(cls, it: Object) -> Quota:
        return cls(
            name=name_of(it),
            hard=amounts(it, "status", "hard") or amounts(it, "spec", "hard"),  # a new one has no status yet
            used=amounts(it, "status", "used"),
            is_scoped=bool(at(it, "spec", "scopes") or at(it, "spec", "scopeSelector")),
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """One line of a LimitRange, by resource."""

    name: str  # of its LimitRange
    kind: str  # Container, Pod, PersistentVolumeClaim
    min: Mapping[str, Decimal] = field(default_factory=dict)
    max: Mapping[str, Decimal] = field(default_factory=dict)
    default: Mapping[str, Decimal] = field(default_factory=dict)
    max_ratio: Mapping[str, Decimal] = field(default_factory=dict)  # most that a limit may be, in requests


@dataclass(frozen=True, slots=True)
class LimitRange:
    name: str
    limits: tuple[Limit, ...]

    @classmethod
    def parse(cls, it: Object) -> LimitRange:
        limits = tuple(
            Limit(
                name=name_of(it),
                kind=text(each, "type"),
                min=amounts(each, "min"),
                max=amounts(each, "max"),
                default={**amounts(each, "max"), **amounts(each, "default")},  # absent defaults are the maximum
                max_ratio=amounts(each, "maxLimitRequestRatio"),
            )
            for each in at(it, "spec", "limits", default=())
        )
        return cls(name_of(it), limits)


@dataclass(frozen=True, slots=True)
class Event:
    """Events go after an hour, by a cluster's default. `about`: the name of the object."""

    about: str
    reason: str
    message: str
    source: str
    at: datetime | None

    @classmethod
    def parse(cls, it: Object) -> Event:
        when = at(it, "lastTimestamp") or at(it, "eventTime") or at(it, "metadata", "creationTimestamp")
        return cls(
            about=text(it, "involvedObject", "name"),
            reason=text(it, "reason"),
            message=text(it, "message"),
            source=text(it, "source", "component") or text(it, "reportingComponent"),
            at=moment(when),
        )

    @property
    def at_s(self) -> float:
        """Seconds of 1970, to compare."""
        return self.at.timestamp() if self.at else 0.0
