"""What was seen of a namespace: values only. None is "this user may not see it", never "there is none"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from serving.cluster.fields import Condition
from serving.cluster.taints import Taint, Toleration
from serving.decisions.cold_start import ColdStart, Server

GATEWAY, TRITON = "gateway", "triton"  # label app.kubernetes.io/component, as the chart sets it; others help them


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment of the chart: the gateway, or one pool."""

    name: str
    release: str
    component: str
    pool: str  # the name under `pools`; empty for the gateway
    version: str
    num_wanted: int
    num_ready: int
    image: str
    models: tuple[str, ...]  # what it is told to load; empty: all that its repository holds
    gpus: Mapping[str, int]  # GPU resource -> how many one pod asks for
    conditions: tuple[Condition, ...]
    is_paused: bool = False
    is_noticed: bool = True  # the controller has seen the newest change


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    image: str
    is_init: bool
    is_ready: bool
    is_running: bool
    is_started: bool  # its startup probe has passed
    num_restarts: int
    waits: str  # the kubelet's reason (ImagePullBackOff, CrashLoopBackOff ...), empty when it does not wait
    message: str
    exit_code: int | None  # of its last end, None while there was none
    ended: str  # the reason of that end: Error, OOMKilled, Completed
    last_words: str


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    release: str
    component: str
    pool: str
    node: str | None
    phase: str
    reason: str  # of a pod that failed as a whole: Evicted, NodeShutdown ...
    message: str
    is_ready: bool
    is_leaving: bool
    conditions: tuple[Condition, ...]
    containers: tuple[Container, ...]
    gpus: Mapping[str, int]
    claims: tuple[str, ...]  # names of the PersistentVolumeClaims it mounts
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Autoscaler:
    name: str
    target: str  # the Deployment's name
    min_replicas: int
    max_replicas: int
    metrics: tuple[str, ...]  # "cpu 35% of 70%"
    conditions: tuple[Condition, ...]
    follows_scaler: bool = False


@dataclass(frozen=True, slots=True)
class Scaled:
    """A ScaledObject of KEDA."""

    name: str
    target: str
    min_replicas: int
    max_replicas: int
    conditions: tuple[Condition, ...]
    follows_scaler: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    is_ready: bool
    is_cordoned: bool
    instance_type: str
    gpus: Mapping[str, int]  # allocatable
    not_ready: str = ""  # the kubelet's own words
    taints: tuple[Taint, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Event:
    pod: str
    reason: str
    message: str
    source: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim."""

    name: str
    phase: str
    storage_class: str


@dataclass(frozen=True, slots=True)
class Seen:
    namespace: str
    workloads: tuple[Workload, ...] = ()
    pods: tuple[Pod, ...] | None = ()
    answering: frozenset[str] | None = frozenset()  # names of pods that a Service sends to
    autoscalers: tuple[Autoscaler, ...] | None = ()
    scaled: tuple[Scaled, ...] | None = ()
    claims: tuple[Claim, ...] | None = ()
    events: tuple[Event, ...] | None = ()
    nodes: tuple[Node, ...] | None = ()
    node_claims: tuple[NodeClaim, ...] | None = ()
    servers: Mapping[str, Server] = field(default_factory=dict)  # by pod: the moments that its objects tell
    # By release, where it has a scaler: its cold starts, oldest first, or why it could not be asked.
    cold_starts: Mapping[str, tuple[ColdStart, ...] | str] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = field(
        default=()
    )  # other namespaces that hold a Tandem, looked for where this one holds none
