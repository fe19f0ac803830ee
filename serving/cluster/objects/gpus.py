"""Which resources and which nodes are GPUs? Pure: NVIDIA's only, because nothing else runs the GPU pools' Triton."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TypeVar

GPU = "nvidia.com/gpu"
# nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb: what NVIDIA's device plugin announces.
_RESOURCE = re.compile(r"nvidia\.com/(gpu(\..+)?|mig-.+)")
# Labels that say "this machine has a card" before any driver does: of NVIDIA's feature discovery, NFD, and the clouds.
_PRESENT = {
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",  # 10de is NVIDIA's PCI vendor
    "feature.node.kubernetes.io/pci-0302_10de.present": "true",
    "feature.node.kubernetes.io/pci-0300_10de.present": "true",
    "accelerator": "nvidia",  # AKS
    "kubernetes.azure.com/accelerator": "nvidia",
}
_NAMED = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
# AWS g4dn p5 ...; Azure Standard_NC/ND/NV; Google a2- a3- g2-. A hint only: the label is asked for first.
_TYPES = re.compile(r"(p[2-6]|g[3-6])[a-z]*\.|Standard_N[CDV]|(a2|a3|a4|g2|g4)-", re.IGNORECASE)
_AMD_ON_AWS = re.compile(r"g4ad\.", re.IGNORECASE)


def is_gpu(resource: str) -> bool:
    return bool(_RESOURCE.fullmatch(resource))


def gpus(resources: Mapping[str, Decimal]) -> dict[str, int]:
    """The GPU resources among others. A quantity may be "1k" for a thousand shared ones."""
    return {key: int(value) for key, value in sorted(resources.items()) if is_gpu(key)}


def sign_of_gpu(labels: Mapping[str, str]) -> str | None:
    """The label by which a node looks like one with a card, as KEY=VALUE; None if none does."""
    for key, value in _PRESENT.items():
        if labels.get(key) == value:
            return f"{key}={value}"
    for key in _NAMED:
        if labels.get(key):
            return f"{key}={labels[key]}"
    kind = labels.get(INSTANCE_TYPE, "")
    if _TYPES.match(kind) and not _AMD_ON_AWS.match(kind):
        return f"{INSTANCE_TYPE}={kind}"
    return None


def listed(counts: Mapping[str, int]) -> str:
    """ "4 nvidia.com/gpu, 7 nvidia.com/mig-1g.10gb" """
    return ", ".join(f"{count} {resource}" for resource, count in counts.items())


Amount = TypeVar("Amount", int, Decimal)


def total(each: Iterable[Mapping[str, Amount]]) -> dict[str, Amount]:
    """The sum of each resource."""
    summed: dict[str, Amount] = {}
    for amounts in each:
        for resource, amount in amounts.items():
            summed[resource] = summed[resource] + amount if resource in summed else amount
    return dict(sorted(summed.items()))
