"""Contradictions about the scaler and pools that follow it."""

from __future__ import annotations

from typing import Any

from tests.helm.conftest import Names, Object

PEERS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
ON = {"enabled": True}


def pool(scaling: Object, **values: Any) -> Object:
    return {"scaler": ON, "pools": {"gpu": {"enabled": True, "autoscaling": {"enabled": True, **scaling}}}, **values}


def warm(pools: list[str], of_chat: Object) -> Object:
    """Nodes that are kept for these pools, of which two are there."""
    sleeps: Object = {"autoscaling": {"enabled": True, "by": "scaler", "minReplicas": 0}}
    chat: Object = {"device": "gpu", "models": ["digits-fp16"], **sleeps, **of_chat}
    nodes: Object = {"cards": {"pools": pools, "maxNodes": 1}}
    return {"scaler": {**ON, "warmNodes": nodes}, "pools": {"gpu": {**ON, **sleeps}, "chat": chat}}


# (values, what the sentence names)
CONTRADICTIONS: dict[str, tuple[Object, Names]] = {
    "a pool that follows a scaler which is not there": (
        pool({"by": "keda"}, scaler={"enabled": False}),
        ("pools.gpu.autoscaling.by", "scaler.enabled=true", "pools.gpu.autoscaling.by=metrics"),
    ),
    "the same by Prometheus": (
        pool({"by": "wanted"}, scaler={"enabled": False}),
        ("pools.gpu.autoscaling.by", "scaler.enabled=true", "pools.gpu.autoscaling.by=metrics"),
    ),
    "a number that nobody carries": (
        pool({"by": "wanted"}),
        ("pools.gpu.autoscaling.by", "monitoring.serviceMonitor.enabled=true", "pools.gpu.autoscaling.by=keda"),
    ),
    "a KEDA that is kept out": (
        pool({"by": "keda"}),
        (
            "pools.gpu.autoscaling.by",
            "networkPolicy.kedaFrom",
            "{namespaceSelector",
            "{matchLabels",
            "{kubernetes.io/metadata.name",
        ),
    ),
    "metrics beside the scaler": (
        pool({"by": "keda", "metrics": [{"type": "External"}]}, networkPolicy={"kedaFrom": PEERS}),
        ("pools.gpu.autoscaling.metrics", "pools.gpu.autoscaling.by", "pools.gpu.autoscaling.by=metrics"),
    ),
    "a target of CPU use beside the scaler": (
        pool({"by": "keda", "targetCpuPercent": 50}, networkPolicy={"kedaFrom": PEERS}),
        ("pools.gpu.autoscaling.targetCpuPercent", "pools.gpu.autoscaling.by", "pools.gpu.autoscaling.by=metrics"),
    ),
    "a beginning that is one anyway": (
        pool({"by": "scaler", "minReplicas": 0, "beginsAtMinReplicas": True}),
        ("pools.gpu.autoscaling.beginsAtMinReplicas", "pools.gpu.autoscaling.by"),
    ),
    "a behaviour of an autoscaler that is not there": (
        pool({"by": "scaler", "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}),
        ("pools.gpu.autoscaling.behavior", "pools.gpu.autoscaling.by"),
    ),
    "something to follow without an autoscaler": (
        {"scaler": ON, "pools": {"cpu": {"autoscaling": {"by": "keda"}}}},
        ("pools.cpu.autoscaling.by", "pools.cpu.autoscaling.enabled", "pools.cpu.autoscaling.enabled=true"),
    ),
    "bounds that cannot be, beside the scaler": (
        pool({"by": "keda", "minReplicas": 5}, networkPolicy={"kedaFrom": PEERS}),
        ("pools.gpu.autoscaling.minReplicas", "5", "maxReplicas", "4"),
    ),
    "a scaler that cannot ask the gateways": (
        {"scaler": ON, "gateway": {"admin": {"enabled": False}}},
        ("scaler.enabled", "gateway.admin.enabled=true"),
    ),
    "a scaler without a key": (
        {"scaler": ON, "test": {"enabled": False}, "auth": {"existingSecret": "keys", "insecureNoAuth": False}},
        ("scaler.enabled", "auth.client.existingSecret", "scaler.enabled=false"),
    ),
    "a scaler's account that nobody makes": (
        {"scaler": {**ON, "serviceAccount": {"create": False}}},
        ("scaler.serviceAccount.create", "scaler.serviceAccount.name"),
    ),
    "rules for a scaler that is off": (
        {"scaler": {"rules": {"patienceS": 9}}},
        ("scaler.rules", "scaler.enabled", "scaler.enabled=true"),
    ),
    "a quota of a pool that is off": (
        {"scaler": {**ON, "quotas": {"gpus": {"pools": ["gpu"], "maxCards": 1}}}},
        ("scaler.quotas.gpus.pools",),
    ),
    "warm nodes without a scaler": (
        {"scaler": {"warmNodes": {"cards": {"pools": ["gpu", "chat"], "maxNodes": 1}}}},
        ("scaler.warmNodes", "scaler.enabled", "scaler.enabled=true"),
    ),
    "warm nodes for a pool that is off": (warm(["gpu", "tpu"], {}), ("scaler.warmNodes.cards.pools", "tpu")),
    "warm nodes for a pool that is always there": (
        warm(["gpu", "cpu"], {}),
        ("scaler.warmNodes.cards.pools", "cpu", "autoscaling.by=scaler"),
    ),
    "warm nodes for a pool that somebody else scales": (
        warm(["gpu", "chat"], {"autoscaling": {"enabled": False}}),
        ("scaler.warmNodes.cards.pools", "chat", "pools.chat.autoscaling.enabled=true", "autoscaling.by=scaler"),
    ),
    "warm nodes for pools of different nodes": (
        warm(["gpu", "chat"], {"nodeSelector": {"card": "h100"}}),
        ("scaler.warmNodes.cards.pools", "chat", "nodeSelector"),
    ),
    "warm nodes for pools of different cards": (
        warm(["gpu", "chat"], {"gpu": {"count": 2}}),
        ("scaler.warmNodes.cards.pools", "chat", "gpu"),
    ),
    "a label by which the scaler is found": (
        {"scaler": {**ON, "podLabels": {"app.kubernetes.io/name": "mine"}}},
        ("scaler.podLabels", "app.kubernetes.io/name"),
    ),
}
