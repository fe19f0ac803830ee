"""Contradictions in everything else: images, no pool, monitoring."""

from __future__ import annotations

from tests.helm.conftest import Object

PEERS = [{"podSelector": {}}]
ON = {"enabled": True}

# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "a registry for all charts": (
        {"global": {"imageRegistry": "registry.example.com"}},
        "global.imageRegistry is registry.example.com, but this chart's images come from imageRegistry and from images.*. Set "
        "imageRegistry, too.",
    ),
    "secrets for all charts": (
        {"global": {"imagePullSecrets": ["mine"]}},
        "global.imagePullSecrets names secrets, but this chart's pods take imagePullSecrets. Set those, too.",
    ),
    "a tag that moves": (
        {"images": {"nvidia": {"tag": "latest"}}},
        "images.nvidia.tag is latest, which is another image tomorrow. Name a version or a digest.",
    ),
    "no pool": (
        {"pools": {"cpu": {"enabled": False}}},
        "no pool is on, so nothing would serve. Set pools.cpu.enabled=true or another pool's.",
    ),
    "a monitor of what does not listen": (
        {
            "monitoring": {"serviceMonitor": ON},
            "networkPolicy": {"metricsFrom": PEERS},
            "gateway": {"admin": {"enabled": False}},
        },
        "monitoring.serviceMonitor.enabled is true, but the gateway's metrics are on its admin listener, which is off. "
        "Set gateway.admin.enabled=true.",
    ),
    "a Prometheus that is kept out": (
        {"monitoring": {"serviceMonitor": ON}},
        "monitoring.serviceMonitor.enabled is true, but networkPolicy.metricsFrom names nobody, so Prometheus would be kept out. "
        "Name its pods there, as NetworkPolicy peers.",
    ),
    "rules without anything to look at": (
        {"monitoring": {"prometheusRule": ON}},
        "monitoring.prometheusRule.enabled is true, but its rules ask for labels that only monitoring.serviceMonitor gives, so that "
        "they would see nothing. Set monitoring.serviceMonitor.enabled=true.",
    ),
}
