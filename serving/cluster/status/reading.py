"""From the server's JSON to the values of `seen`. Pure; a field that is absent or null is no error."""

from __future__ import annotations

from collections.abc import Iterable

from serving.cluster.api import Object
from serving.cluster.fields import amounts, at, condition, conditions, created, label, moment, name_of, one_line
from serving.cluster.gpus import INSTANCE_TYPE, follows_scaler, gpus, total
from serving.cluster.status.snapshot import (
    Claim,
    Container,
    Event,
    Node,
    NodeClaim,
    Pod,
    Scaled,
    Workload,
)
from serving.cluster.taints import taints

RELEASE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
VERSION = "app.kubernetes.io/version"
POOL = "tandem-pool"
LOADED = (
    "--load-model="  # how NVIDIA's Triton is told what to load; `tandem triton` loads all that its repository holds
)


def workload(it: Object) -> Workload:
    template = at(it, "spec", "template", "spec", default={})
    main: Object = (at(template, "containers", default=()) or ({},))[0]
    words = [str(word) for word in (*at(main, "command", default=()), *at(main, "args", default=()))]
    return Workload(
        name=name_of(it),
        release=label(it, RELEASE),
        component=label(it, COMPONENT),
        pool=label(it, POOL),
        version=label(it, VERSION),
        num_wanted=at(it, "spec", "replicas", default=1),
        num_ready=at(it, "status", "readyReplicas", default=0),
        image=str(at(main, "image", default="")),
        models=tuple(word.removeprefix(LOADED) for word in words if word.startswith(LOADED)),
        gpus=_asked(template),
        conditions=conditions(it),
        is_paused=bool(at(it, "spec", "paused")),
        is_noticed=at(it, "status", "observedGeneration", default=0) >= at(it, "metadata", "generation", default=0),
    )


def pod(it: Object) -> Pod:
    found = conditions(it)
    ready = condition(found, "Ready")
    volumes = at(it, "spec", "volumes", default=())
    return Pod(
        name=name_of(it),
        release=label(it, RELEASE),
        component=label(it, COMPONENT),
        pool=label(it, POOL),
        node=at(it, "spec", "nodeName"),
        phase=str(at(it, "status", "phase", default="")),
        reason=str(at(it, "status", "reason", default="")),
        message=one_line(at(it, "status", "message")),
        is_ready=bool(ready and ready.is_true),
        is_leaving=at(it, "metadata", "deletionTimestamp") is not None,
        conditions=found,
        containers=(
            *(_container(each, is_init=True) for each in at(it, "status", "initContainerStatuses", default=())),
            *(_container(each, is_init=False) for each in at(it, "status", "containerStatuses", default=())),
        ),
        gpus=_asked(at(it, "spec", default={})),
        claims=tuple(
            claim for each in volumes if (claim := at(each, "persistentVolumeClaim", "claimName")) is not None
        ),
        tolerations=tuple(at(it, "spec", "tolerations", default=())),
    )


def _container(it: Object, *, is_init: bool) -> Container:
    # While it waits to be started again, how it ended stands in lastState; an init container that failed for good, in state.
    ended = at(it, "state", "terminated") or at(it, "lastState", "terminated") or {}
    return Container(
        name=str(it.get("name", "")),
        image=str(it.get("image", "")),
        is_init=is_init,
        is_ready=bool(it.get("ready")),
        is_running=at(it, "state", "running") is not None,
        is_started=bool(it.get("started")),
        num_restarts=it.get("restartCount") or 0,
        waits=str(at(it, "state", "waiting", "reason", default="")),
        message=one_line(at(it, "state", "waiting", "message")),
        exit_code=ended.get("exitCode"),
        ended=str(ended.get("reason") or ""),
        last_words=one_line(ended.get("message")),
    )


def _asked(spec: Object) -> dict[str, int]:
    """GPU resources that one pod asks for; an extended resource's request is its limit."""
    return total(gpus(amounts(each, "resources", "limits")) for each in at(spec, "containers", default=()))


def answering(slices: Iterable[Object]) -> frozenset[str]:
    """Pods behind an address that a Service sends to, and that are ready themselves."""
    return frozenset(
        at(each, "targetRef", "name", default="")
        for it in slices
        for each in at(it, "endpoints", default=())
        if _is_answering(at(each, "conditions", default={}))
    )


def _is_answering(conditions: Object) -> bool:
    """Absent means true, as the API says. A Service that publishes what is not ready calls it `ready`, and only `serving` tells."""
    return all(at(conditions, name, default=True) for name in ("ready", "serving"))


def scaled(it: Object) -> Scaled:
    return Scaled(
        name=name_of(it),
        target=str(at(it, "spec", "scaleTargetRef", "name", default="")),
        min_replicas=at(it, "spec", "minReplicaCount", default=0),  # KEDA's own defaults
        max_replicas=at(it, "spec", "maxReplicaCount", default=100),
        conditions=conditions(it),
        follows_scaler=follows_scaler(it),
    )


def claim(it: Object) -> Claim:
    return Claim(
        name=name_of(it),
        phase=str(at(it, "status", "phase", default="")),
        storage_class=str(at(it, "spec", "storageClassName", default="")),
    )


def event(it: Object) -> Event:
    when = at(it, "lastTimestamp") or at(it, "eventTime") or at(it, "metadata", "creationTimestamp")
    return Event(
        pod=str(at(it, "involvedObject", "name", default="")),
        reason=str(it.get("reason") or ""),
        message=one_line(it.get("message")),
        source=str(at(it, "source", "component") or it.get("reportingComponent") or ""),
        at=moment(when),
    )


def node(it: Object) -> Node:
    ready = condition(conditions(it), "Ready")
    is_ready = bool(ready and ready.is_true)
    return Node(
        name=name_of(it),
        is_ready=is_ready,
        is_cordoned=bool(at(it, "spec", "unschedulable")),
        instance_type=label(it, INSTANCE_TYPE),
        gpus=gpus(amounts(it, "status", "allocatable")),
        not_ready="" if is_ready or ready is None else ready.message,
        taints=taints(it),
    )


def node_claim(it: Object) -> NodeClaim:
    asked = amounts(it, "spec", "resources", "requests")
    return NodeClaim(
        name=name_of(it),
        node=str(at(it, "status", "nodeName", default="")),
        node_pool=label(it, "karpenter.sh/nodepool"),
        instance_type=label(it, INSTANCE_TYPE),
        gpus=gpus(amounts(it, "status", "capacity")) or gpus(asked),
        conditions=conditions(it),
        created_at=created(it),
        is_leaving=at(it, "metadata", "deletionTimestamp") is not None,
    )
