"""What the chart refuses, and with which sentence: misspelt names and wrong types by the schema, contradictions by the guards."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from .conftest import Object, accepted

GPU_ON = {"enabled": True, "device": "gpu"}

# What the schema says: (values, part of the message)
UNKNOWN_OR_WRONG: dict[str, tuple[Object, str]] = {
    "a misspelt name at the top": ({"gatway": {}}, "additional properties 'gatway' not allowed"),
    "a misspelt name in the gateway": ({"gateway": {"replica": 2}}, "'/gateway': additional properties 'replica'"),
    "a misspelt name in a pool": ({"pools": {"cpu": {"modles": []}}}, "'/pools/cpu': additional properties 'modles'"),
    "a misspelt name in the defaults": ({"poolDefaults": {"shm": "1Mi"}}, "additional properties 'shm'"),
    "a misspelt name in a drain": ({"gateway": {"drain": {"prestop": 1}}}, "additional properties 'prestop'"),
    "a misspelt name in an image": ({"images": {"gateway": {"name": "x"}}}, "additional properties 'name'"),
    "a misspelt network peer": ({"networkPolicy": {"gatewayFrom": [{"pods": {}}]}}, "additional properties 'pods'"),
    "an unknown image": ({"images": {"tritonGpu": {}}}, "additional properties 'tritonGpu'"),
    "an unknown device": ({"pools": {"cpu": {"device": "tpu"}}}, "'/pools/cpu/device': value must be one of"),
    "an unknown server": ({"pools": {"cpu": {"server": "own"}}}, "'/pools/cpu/server': value must be one of"),
    "an unknown source of models": ({"modelRepository": {"source": "s3"}}, "value must be one of"),
    "a wildcard for models": ({"pools": {"cpu": {"models": ["*"]}}}, "'/pools/cpu/models/0'"),
    "a model twice": ({"pools": {"cpu": {"models": ["a", "a"]}}}, "'/pools/cpu/models'"),
    "a number as text": ({"gateway": {"replicas": "2"}}, "'/gateway/replicas': got string, want integer"),
    "no gateway at all": ({"gateway": {"replicas": 0}}, "'/gateway/replicas': minimum"),
    "a flag as text": ({"gateway": {"insecureNoAuth": "true"}}, "got string, want boolean"),
    "a GPU pool without a card": ({"pools": {"gpu": {"gpu": {"count": 0}}}}, "minimum"),
    "a drain of nothing": ({"poolDefaults": {"drain": {"preStopSeconds": 0}}}, "minimum"),
    "a size without sense": ({"pools": {"cpu": {"shmSize": "large"}}}, "'/pools/cpu/shmSize'"),
    "an unknown precision": ({"gateway": {"variants": {"digits": {"cpu": "fp8"}}}}, "value must be one of"),
    "a price of nothing": ({"pools": {"cpu": {"pricePerHour": 0}}}, "'/pools/cpu/pricePerHour'"),
    "a pool that cannot be": ({"pools": {"cpu": {"maxReplicas": 0}}}, "'/pools/cpu/maxReplicas'"),
    "an instance of nothing": ({"pools": {"cpu": {"instances": 0}}}, "'/pools/cpu/instances'"),
    "a misspelt objective": (
        {"gateway": {"objectives": {"digits": {"latency": 1}}}},
        "additional properties 'latency'",
    ),
    "an objective without one": ({"gateway": {"objectives": {"digits": {}}}}, "missing property 'latencyS'"),
    "an objective of nothing": ({"gateway": {"objectives": {"digits": {"latencyS": 0}}}}, "latencyS"),
    "a pool named like the gateway": ({"pools": {"gateway": {}}}, "invalid propertyName 'gateway'"),
    "a pool name that no object may have": ({"pools": {"GPU_0": {}}}, "invalid propertyName 'GPU_0'"),
    "a pool name that is too long": ({"pools": {"a" * 21: {}}}, "invalid propertyName"),
    "an image with its tag in the name": ({"images": {"gateway": {"repository": "tandem:1"}}}, "repository"),
    "a short digest": ({"images": {"gateway": {"digest": "sha256:12"}}}, "'/images/gateway/digest'"),
    "a registry with a scheme": ({"imageRegistry": "https://registry.example.com"}, "'/imageRegistry'"),
    "a variable without a name": ({"gateway": {"env": [{"value": "1"}]}}, "missing property 'name'"),
}

# What the guards say: (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "no word about missing keys": (
        {"gateway": {"insecureNoAuth": False}},
        "Tandem has no API keys yet: whoever reaches the gateway may use it. Set gateway.insecureNoAuth=true to install it "
        "all the same; networkPolicy.gatewayFrom says who reaches it.",
    ),
    "a tag that moves": (
        {"images": {"nvidia": {"tag": "latest"}}},
        "images.nvidia.tag is latest, which is another image tomorrow. Name a version or a digest.",
    ),
    "BF16 on NVIDIA's server": (
        {"pools": {"cpu": {"server": "nvidia", "models": ["minilm-fp32", "minilm-bf16"]}}},
        "pools.cpu.models names minilm-bf16, but NVIDIA's server cannot ask OpenVINO for BF16 and would compute in FP32 without "
        "a word. Leave it out, or set pools.cpu.server=tandem.",
    ),
    "a claim without a name": (
        {"modelRepository": {"source": "claim"}},
        "modelRepository.source is claim, but no claim is named. Set modelRepository.claimName to a PersistentVolumeClaim "
        "that holds the model repository.",
    ),
    "a claim that would be ignored": (
        {"modelRepository": {"claimName": "models"}},
        "modelRepository.claimName is set, but modelRepository.source is image, so the claim would be ignored. "
        "Set modelRepository.source=claim.",
    ),
    "a gateway that is killed while it drains": (
        {"gateway": {"terminationGracePeriodSeconds": 30}},
        "gateway.terminationGracePeriodSeconds is 30, but its drain takes 40 s (5 before SIGTERM, 30 to finish, 5 margin), "
        "so requests would be cut off. Raise it to 40, shorten the drain, or leave it unset.",
    ),
    "a pool that is killed while it drains": (
        {"pools": {"cpu": {"terminationGracePeriodSeconds": 60, "drain": {"exitTimeoutSeconds": 90}}}},
        "pools.cpu.terminationGracePeriodSeconds is 60, but its drain takes 100 s (5 before SIGTERM, 90 to finish, 5 margin), "
        "so requests would be cut off. Raise it to 100, shorten the drain, or leave it unset.",
    ),
    "a gateway without an account": (
        {"gateway": {"serviceAccount": {"create": False}}},
        "gateway.serviceAccount.create is false and no name is given. Set gateway.serviceAccount.name to an account that exists.",
    ),
    "pools without an account": (
        {"triton": {"serviceAccount": {"create": False}}},
        "triton.serviceAccount.create is false and no name is given. Set triton.serviceAccount.name to an account that exists.",
    ),
    "no pool": (
        {"pools": {"cpu": {"enabled": False}}},
        "no pool is on, so nothing would serve. Set pools.cpu.enabled=true or another pool's.",
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
    "a variant on a pool that is off": (
        {"gateway": {"variants": {"digits": {"gpu": "fp16"}}}},
        "gateway.variants.digits names pool gpu, which is not on. Pools that are on: cpu.",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN_OR_WRONG)
def test_the_schema_refuses(case: str, chart: helm_python.Chart) -> None:
    values, message = UNKNOWN_OR_WRONG[case]
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        chart.render(accepted(values), name="tandem")
    assert message in str(refusal.value)


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_guard_refuses_with_its_sentence(case: str, chart: helm_python.Chart) -> None:
    values, sentence = CONTRADICTIONS[case]
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        chart.render(accepted(values), name="tandem")
    assert str(refusal.value).endswith(sentence)


def test_the_defaults_alone_are_refused_for_want_of_keys(chart: helm_python.Chart) -> None:
    with pytest.raises(helm_python.HelmRenderError, match="Set gateway\\.insecureNoAuth=true"):
        chart.render({}, name="tandem")


def test_every_object_in_the_schema_refuses_unknown_names_or_says_what_its_members_are(
    chart: helm_python.Chart,
) -> None:
    assert chart.schema is not None
    foreign = {
        "global",
        "podAffinity",
        "podAntiAffinity",
        "nodeAffinity",
        "podSelector",
        "namespaceSelector",
        "ipBlock",
        "valueFrom",
    }
    loose: list[str] = []

    def walk(node: Any, name: str) -> None:
        if not isinstance(node, dict):
            return
        if node.get("type") == "object" and "additionalProperties" not in node and name not in foreign:
            loose.append(name)
        for key in ("properties", "definitions"):
            for member, of_member in node.get(key, {}).items():
                walk(of_member, member)
        walk(node.get("items"), f"{name}[]")
        walk(node.get("additionalProperties"), f"{name}.*")

    walk(chart.schema, "")
    assert loose == []
