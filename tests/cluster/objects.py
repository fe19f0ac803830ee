"""Kubernetes objects as its API server writes them, to be read by pure code. What a test does not say is as in a release that serves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from serving.cluster.snapshot import LISTINGS, ClusterSnapshot

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
SINCE = "2026-11-20T11:59:18Z"  # 42 s before
GPU = "nvidia.com/gpu"
Object = dict[str, Any]

# What the scheduler of Kubernetes 1.35 writes about a pod; which taint it does not say.
NO_CARD = (
    "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu. no new claims to "
    "deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
)


def labels(component: str, pool: str = "", release: str = "tandem") -> Object:
    found = {
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": "0.1.0",
    }
    return {**found, "tandem-pool": pool} if pool else found


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE}


def deployment(
    pool: str = "", *, release: str = "tandem", gpus: int = 0, replicas: int = 1, ready: int = 1, **more: Any
) -> Object:
    resources = {"limits": {"cpu": "2", **({GPU: str(gpus)} if gpus else {})}}
    args = ["tritonserver", "--load-model=digits-fp32", "--load-model=digits-int8"] if pool else ["tandem", "gateway"]
    main = {"name": "triton" if pool else "gateway", "image": "example/image:1", "args": args, "resources": resources}
    return {
        "metadata": {
            "name": f"{release}-{pool or 'gateway'}",
            "labels": labels("triton" if pool else "gateway", pool, release),
            "generation": 2,
        },
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [main]}}, **more.get("spec", {})},
        "status": {"observedGeneration": 2, "readyReplicas": ready, "conditions": [], **more.get("status", {})},
    }


def container(
    state: Object, *, name: str = "triton", ready: bool = False, last: Object | None = None, **more: Any
) -> Object:
    return {
        "name": name, "image": "example/image:1", "ready": ready, "started": ready, "restartCount": 0,
        "state": state, "lastState": last or {}, **more,
    }  # fmt: skip


RUNNING = {"running": {"startedAt": SINCE}}


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", message: str = "") -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": SINCE}}


def pod(
    pool: str = "",
    *containers: Object,
    name: str = "",
    release: str = "tandem",
    node: str | None = "cpu-0",
    gpus: int = 0,
    init: tuple[Object, ...] = (),
    unscheduled: str | None = None,
    claim: str | None = None,
    tolerates: str = "",
    **status: Any,
) -> Object:
    """Ready unless something else is said of it: `containers`, `init`, `unscheduled`, or fields of its status."""
    is_ready = not containers and not init and unscheduled is None and node is not None and not status
    conditions = [condition("Ready", str(is_ready))]
    if unscheduled is not None:
        node = None
        conditions.append(condition("PodScheduled", "False", "Unschedulable", unscheduled))
    main = "triton" if pool else "gateway"
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    return {
        "metadata": {
            "name": name or f"{release}-{pool or 'gateway'}-1",
            "labels": labels("triton" if pool else "gateway", pool, release),
            "creationTimestamp": SINCE,
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": main, "resources": resources}],
            "tolerations": [{"key": tolerates, "operator": "Exists", "effect": "NoSchedule"}] if tolerates else None,
            "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": claim}}] if claim else None,
        },
        "status": {
            "phase": "Running" if is_ready else "Pending",
            "conditions": conditions,
            "initContainerStatuses": list(init) or None,
            "containerStatuses": list(containers)
            or ([container(RUNNING, name=main, ready=True)] if is_ready else None),
            **status,
        },
    }


def node(name: str, gpus: int = 0, ready: str = "True", message: str = "", taint: str = "", **spec: Any) -> Object:
    if taint:
        spec["taints"] = [{"key": taint, "effect": "NoSchedule"}]
    return {
        "metadata": {
            "name": name,
            "labels": {"node.kubernetes.io/instance-type": "m5.large"},
            "creationTimestamp": SINCE,
        },
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "4", **({GPU: str(gpus)} if gpus else {})},
            "conditions": [condition("Ready", ready, "KubeletReady", message)],
        },
    }


def node_claim(name: str = "gpu-x7k2p", *conditions: Object, node: str = "", gpus: int = 1) -> Object:
    return {
        "metadata": {
            "name": name,
            "labels": {"karpenter.sh/nodepool": "gpu", "node.kubernetes.io/instance-type": "g6.xlarge"},
            "creationTimestamp": SINCE,
        },
        "spec": {"resources": {"requests": {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}}},
        "status": {"nodeName": node, "conditions": list(conditions)},
    }


def event(pod: str, reason: str, message: str, source: str = "karpenter", at: str = SINCE) -> Object:
    return {
        "involvedObject": {"kind": "Pod", "name": pod}, "reason": reason, "message": message,
        "source": {"component": source}, "lastTimestamp": at,
    }  # fmt: skip


def endpoints(*pods: str, ready: bool | None = True, serving: bool | None = None) -> Object:
    conditions = {"ready": ready, "serving": serving}
    return {"endpoints": [{"conditions": conditions, "targetRef": {"kind": "Pod", "name": it}} for it in pods]}


def parsed(field: str, objects: Any) -> Any:
    """As `look` reads a list of the snapshot; None stays what may not be seen."""
    return None if objects is None else tuple(map(LISTINGS[field].parse, objects))


def snapshot(deployments: list[Object], pods: list[Object], **more: list[Object] | None) -> ClusterSnapshot:
    """Pods that are ready are behind their Services unless `endpoint_slices` says otherwise; `more` by field of the snapshot."""
    ready = [
        it["metadata"]["name"]
        for it in pods
        if any(each["type"] == "Ready" and each["status"] == "True" for each in it["status"]["conditions"])
    ]
    lists = {"endpoint_slices": [endpoints(*ready)], "nodes": [node("cpu-0")], **more}
    lists |= {"deployments": deployments, "pods": pods}
    return ClusterSnapshot("serve", **{field: parsed(field, it) for field, it in lists.items()})
