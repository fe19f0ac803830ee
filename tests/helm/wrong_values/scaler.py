"""Contradictions about the scaler and pools that follow it."""

from __future__ import annotations

from typing import Any

from tests.helm.conftest import Object

PEERS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
ON = {"enabled": True}


def pool(scaling: Object, **values: Any) -> Object:
    return {"scaler": ON, "pools": {"gpu": {"enabled": True, "autoscaling": {"enabled": True, **scaling}}}, **values}


# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "a pool that follows a scaler which is not there": (
        pool({"by": "keda"}, scaler={"enabled": False}),
        "pools.gpu.autoscaling.by is keda, but there is no scaler to say how many Tritons are wanted. Set scaler.enabled=true, or "
        "pools.gpu.autoscaling.by=metrics.",
    ),
    "the same by Prometheus": (
        pool({"by": "wanted"}, scaler={"enabled": False}),
        "pools.gpu.autoscaling.by is wanted, but there is no scaler to say how many Tritons are wanted. Set scaler.enabled=true, or "
        "pools.gpu.autoscaling.by=metrics.",
    ),
    "a number that nobody carries": (
        pool({"by": "wanted"}),
        "pools.gpu.autoscaling.by is wanted, a number that Prometheus has to carry, and nothing tells it where the scaler is. Set "
        "monitoring.serviceMonitor.enabled=true, or pools.gpu.autoscaling.by=keda.",
    ),
    "a KEDA that is kept out": (
        pool({"by": "keda"}),
        "pools.gpu.autoscaling.by is keda, but networkPolicy.kedaFrom names nobody, so KEDA would be kept out. Name its pods there, such "
        "as {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: keda}}}.",
    ),
    "metrics beside the scaler": (
        pool({"by": "keda", "metrics": [{"type": "External"}]}, networkPolicy={"kedaFrom": PEERS}),
        "pools.gpu.autoscaling.metrics would be ignored, because pools.gpu.autoscaling.by is keda. Leave them out, or set "
        "pools.gpu.autoscaling.by=metrics.",
    ),
    "a target of CPU use beside the scaler": (
        pool({"by": "keda", "targetCpuPercent": 50}, networkPolicy={"kedaFrom": PEERS}),
        "pools.gpu.autoscaling.targetCpuPercent would be ignored, because pools.gpu.autoscaling.by is keda. Leave it out, or set "
        "pools.gpu.autoscaling.by=metrics.",
    ),
    "a beginning that is one anyway": (
        pool({"by": "scaler", "minReplicas": 0, "beginsAtMinReplicas": True}),
        "pools.gpu.autoscaling.beginsAtMinReplicas would be ignored, because pools.gpu.autoscaling.by is scaler: its pods wait for the "
        "scaler, so an install buys no node anyway. Leave it out.",
    ),
    "a behaviour of an autoscaler that is not there": (
        pool({"by": "scaler", "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}),
        "pools.gpu.autoscaling.behavior would be ignored, because pools.gpu.autoscaling.by is scaler, which has weighed how long a Triton "
        "stays. Leave it out.",
    ),
    "something to follow without an autoscaler": (
        {"scaler": ON, "pools": {"cpu": {"autoscaling": {"by": "keda"}}}},
        "pools.cpu.autoscaling.by would be ignored, because pools.cpu.autoscaling.enabled is false. Set "
        "pools.cpu.autoscaling.enabled=true, or leave it out.",
    ),
    "bounds that cannot be, beside the scaler": (
        pool({"by": "keda", "minReplicas": 5}, networkPolicy={"kedaFrom": PEERS}),
        "pools.gpu.autoscaling.minReplicas is 5, more than its maxReplicas of 4. Make them agree.",
    ),
    "a scaler that cannot ask the gateways": (
        {"scaler": ON, "gateway": {"admin": {"enabled": False}}},
        "scaler.enabled is true, but it goes by the gateways' metrics, which are on their admin listener, and that is off. Set "
        "gateway.admin.enabled=true.",
    ),
    "a scaler without a key": (
        {"scaler": ON, "test": {"enabled": False}, "auth": {"existingSecret": "keys", "insecureNoAuth": False}},
        "scaler.enabled is true and the gateway asks for keys, so the scaler needs one. Put a key with the scope metrics into a secret "
        "and set auth.client.existingSecret to its name, or set scaler.enabled=false.",
    ),
    "a scaler's account that nobody makes": (
        {"scaler": {**ON, "serviceAccount": {"create": False}}},
        "scaler.serviceAccount.create is false and no name is given. Set scaler.serviceAccount.name to an account that exists.",
    ),
    "rules for a scaler that is off": (
        {"scaler": {"rules": {"patienceS": 9}}},
        "scaler.rules would be ignored, because scaler.enabled is false. Set scaler.enabled=true, or leave it out.",
    ),
    "a quota of a pool that is off": (
        {"scaler": {**ON, "quotas": {"gpus": {"pools": ["gpu"], "maxCards": 1}}}},
        "scaler.quotas.gpus.pools names gpu, and no pool of that name is on. Turn it on, or leave it out.",
    ),
    "a label by which the scaler is found": (
        {"scaler": {**ON, "podLabels": {"app.kubernetes.io/name": "mine"}}},
        "scaler.podLabels has app.kubernetes.io/name, which the chart sets itself and finds its pods by. Leave it out.",
    ),
}
