"""Contradictions in what is said of pools and their model repository."""

from __future__ import annotations

from tests.helm.conftest import Object

GPU_ON = {"enabled": True, "device": "gpu"}

# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "BF16 on NVIDIA's server": (
        {"pools": {"cpu": {"server": "nvidia", "models": ["minilm-fp32", "minilm-bf16"]}}},
        "pools.cpu.models names minilm-bf16, but NVIDIA's server cannot ask OpenVINO for BF16 and would compute in FP32 without "
        "a word. Leave it out, or set pools.cpu.server=tandem.",
    ),
    "a pool that is killed while it drains": (
        {"pools": {"cpu": {"terminationGracePeriodSeconds": 60, "drain": {"exitTimeoutSeconds": 90}}}},
        "pools.cpu.terminationGracePeriodSeconds is 60, but its drain takes 100 s (5 before SIGTERM, 90 to finish, 5 margin), "
        "so requests would be cut off. Raise it to 100, shorten the drain, or leave it unset.",
    ),
    "pools without an account": (
        {"triton": {"serviceAccount": {"create": False}}},
        "triton.serviceAccount.create is false and no name is given. Set triton.serviceAccount.name to an account that exists.",
    ),
    "a pool without models": (
        {"pools": {"extra": {}}},
        "pools.extra.models is empty, so its Triton would serve nothing. Name the variants to load, for example digits-fp32.",
    ),
    "how NVIDIA's server is to run a model": (
        {"pools": {"cpu": {"server": "nvidia", "queueDelayUs": 0}}},
        "pools.cpu.queueDelayUs would be ignored, because NVIDIA's server reads it from the model repository. "
        "Leave it out, or set pools.cpu.server=tandem.",
    ),
    "a GPU pool of the slim image": (
        {"pools": {"gpu": {**GPU_ON, "server": "tandem"}}},
        "pools.gpu.server is tandem, but Tandem's own Triton image is for CPU pools only so far. Set pools.gpu.server=nvidia.",
    ),
    "an open Triton with known holes": (
        {"pools": {"cpu": {"server": "tandem"}}, "networkPolicy": {"enabled": False}},
        "pools.cpu.server is tandem, whose Triton 2.51 has known security holes and may only be reached by the gateway. "
        "Keep networkPolicy.enabled=true, or set pools.cpu.server=nvidia.",
    ),
    "a GPU pool that follows CPU use": (
        {"pools": {"gpu": {**GPU_ON, "autoscaling": {"enabled": True}}}},
        "pools.gpu.autoscaling follows CPU use, which says nothing about a GPU. "
        "Set pools.gpu.autoscaling.enabled=false and pools.gpu.replicas.",
    ),
    "an autoscaler upside down": (
        {"pools": {"cpu": {"autoscaling": {"minReplicas": 5}}}},
        "pools.cpu.autoscaling.minReplicas is 5, more than its maxReplicas of 4. Make them agree.",
    ),
    "a card asked for twice": (
        {"pools": {"gpu": {**GPU_ON, "resources": {"limits": {"nvidia.com/gpu": 1}}}}},
        "pools.gpu.resources.limits names nvidia.com/gpu, which pools.gpu.gpu sets. Use pools.gpu.device=gpu with gpu.resource "
        "and gpu.count.",
    ),
    "a card for a CPU pool": (
        {"pools": {"cpu": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}}},
        "pools.cpu.resources.limits names nvidia.com/mig-1g.10gb, which pools.cpu.gpu sets. Use pools.cpu.device=gpu with "
        "gpu.resource and gpu.count.",
    ),
    "a price that was forgotten": (
        {"pools": {"gpu": {**GPU_ON, "pricePerHour": 1.2}}},
        "pools.cpu.pricePerHour is not set and that of pools.gpu is. Give every pool that is on a price, or none (without prices "
        "all Tritons cost the same).",
    ),
    "fewest above most": (
        {"pools": {"cpu": {"minReplicas": 3, "maxReplicas": 2}}},
        "pools.cpu.minReplicas is 3, more than its maxReplicas of 2. Make them agree.",
    ),
    "two autoscalers' numbers": (
        {"pools": {"cpu": {"maxReplicas": 9, "autoscaling": {"enabled": True}}}},
        "pools.cpu.minReplicas and maxReplicas would be ignored, because pools.cpu.autoscaling is on and has its own. "
        "Leave them out.",
    ),
}
