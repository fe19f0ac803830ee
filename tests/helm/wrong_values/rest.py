"""Contradictions in everything else: images, no pool, monitoring."""

from __future__ import annotations

from tests.helm.conftest import Names, Object

PEERS = [{"podSelector": {}}]
ON = {"enabled": True}

# (values, what the sentence names)
CONTRADICTIONS: dict[str, tuple[Object, Names]] = {
    "a collector that nobody reaches": (
        {"otel": {"endpoint": "http://otel-collector:4318"}},
        ("otel.endpoint", "networkPolicy.collectorTo"),
    ),
    "a registry for all charts": (
        {"global": {"imageRegistry": "registry.example.com"}},
        ("global.imageRegistry", "registry.example.com", "imageRegistry", "images.*"),
    ),
    "secrets for all charts": (
        {"global": {"imagePullSecrets": ["mine"]}},
        ("global.imagePullSecrets", "imagePullSecrets"),
    ),
    "a tag that moves": (
        {"images": {"nvidia": {"tag": "latest"}}},
        ("images.nvidia.tag",),
    ),
    "no pool": (
        {"pools": {"cpu": {"enabled": False}}},
        ("pools.cpu.enabled=true",),
    ),
    "a monitor of what does not listen": (
        {
            "monitoring": {"serviceMonitor": ON},
            "networkPolicy": {"metricsFrom": PEERS},
            "gateway": {"admin": {"enabled": False}},
        },
        ("monitoring.serviceMonitor.enabled", "gateway.admin.enabled=true"),
    ),
    "a Prometheus that is kept out": (
        {"monitoring": {"serviceMonitor": ON}},
        ("monitoring.serviceMonitor.enabled", "networkPolicy.metricsFrom", "NetworkPolicy"),
    ),
    "rules without anything to look at": (
        {"monitoring": {"prometheusRule": ON}},
        ("monitoring.prometheusRule.enabled", "monitoring.serviceMonitor", "monitoring.serviceMonitor.enabled=true"),
    ),
}
