"""Pools that are otherwise than usual: other makers' cards, cards by resource claims, Tritons of others, KEDA's triggers; and what each refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from serving.settings import GatewaySettings
from tests.helm import checks
from tests.helm.conftest import Names, Object, Render, Rendering, accepted
from tests.helm.pools.test_models import on_kubernetes

IMAGE: Object = {"repository": "registry.example.com/rocm/tritonserver", "tag": "26.08"}
PEERS = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
CLAIM: Object = {"name": "card", "resourceClaimTemplateName": "half-a-card"}
CRON: Object = {
    "type": "cron",
    "metadata": {"timezone": "UTC", "start": "0 8 * * *", "end": "0 18 * * *", "desiredReplicas": "1"},
}
MODELS = ["digits-fp32"]


def gpu(**said: Any) -> Object:
    return {"pools": {"gpu": {"enabled": True, **said}}}


def other(**said: Any) -> Object:
    return {"pools": {"card": {"device": "gpu", "models": MODELS, **said}}}


def outside(**said: Any) -> Object:
    return {
        "pools": {"far": {"device": "gpu", "urls": ["http://triton.ml:8000", "http://10.1.2.3:8000"], **said}},
        "networkPolicy": {"tritonsTo": PEERS},
    }


def pod(it: Rendering, name: str) -> Object:
    spec = it.one("Deployment", f"tandem-{name}")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def config(it: Rendering) -> Object:
    read = yaml.safe_load(it.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    GatewaySettings.model_validate(read)
    assert isinstance(read, dict)
    return read


# -- cards of others -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["amd.com/gpu", "gpu.intel.com/xe"])
def test_another_makers_card_has_its_resource_its_taint_and_its_image(resource: str, render: Render) -> None:
    it = render(other(gpu={"resource": resource}, ownImage=IMAGE, podSecurityContext={"supplementalGroups": [44]}))
    container = it.container("tandem-card")
    assert container["resources"]["limits"][resource] == 1
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert container["image"] == "registry.example.com/rocm/tritonserver:26.08"
    assert container["args"][0] == "tritonserver"
    assert it.tolerations("tandem-card") == [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    checks.valid(it.objects, "1.37", set())


def test_the_charts_own_gpu_pool_tolerates_the_taint_of_the_card_that_it_is_given(render: Render) -> None:
    it = render(gpu(gpu={"resource": "amd.com/gpu"}, ownImage=IMAGE))
    assert it.tolerations("tandem-gpu") == [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_an_image_of_ones_own_is_pulled_as_it_says_and_before_the_pool_where_that_is_asked(render: Render) -> None:
    image = {**IMAGE, "digest": "sha256:" + "a" * 64, "pullPolicy": "Always"}
    it = render(gpu(ownImage=image, prePull={"enabled": True}, nodeSelector={"gpu": "yes"}))
    name = f"{IMAGE['repository']}@sha256:{'a' * 64}"
    assert (it.container("tandem-gpu")["image"], it.container("tandem-gpu")["imagePullPolicy"]) == (name, "Always")
    assert it.container("tandem-cpu")["image"].startswith("nvcr.io/")
    pulled = it.one("DaemonSet", "tandem-gpu-prepull")["spec"]["template"]["spec"]["initContainers"][0]
    assert (pulled["image"], pulled["imagePullPolicy"]) == (name, "Always")


def test_a_second_pool_of_nvidias_tolerates_their_taint_unless_it_says_otherwise(render: Render) -> None:
    assert render(other()).tolerations("tandem-card") == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    said = [{"operator": "Exists"}]
    assert render(other(tolerations=said)).tolerations("tandem-card") == said
    assert render().tolerations("tandem-cpu") == []


# -- cards by claims -------------------------------------------------------------------------------------------------------------


def test_a_resource_claim_is_the_pods_and_tritons_and_no_card_is_asked_for_beside_it(render: Render) -> None:
    whole = {"name": "link", "resourceClaimName": "shared-link"}
    it = render(gpu(resourceClaims=[CLAIM, whole]))
    spec = pod(it, "gpu")
    assert spec["resourceClaims"] == [CLAIM, whole]
    (triton,) = spec["containers"]
    assert triton["resources"]["claims"] == [{"name": "card"}, {"name": "link"}]
    assert not [name for name in triton["resources"]["limits"] if "/" in name]
    assert all("claims" not in each["resources"] for each in spec["initContainers"])
    assert "resource claims" in it.notes
    checks.valid(it.objects, "1.37", set())


# -- Tritons of others -----------------------------------------------------------------------------------------------------------


def test_tritons_of_others_are_asked_and_nothing_is_made_for_them(render: Render) -> None:
    it = render(outside(models=["digits-fp16"], maxReplicas=2, coldStartS=90))
    assert config(it)["pools"]["far"] == {
        "urls": ["http://triton.ml:8000", "http://10.1.2.3:8000"],
        "device": "gpu",
        "models": ["digits-fp16"],
        "max_replicas": 2,
        "cold_start_s": 90,
    }
    assert not [made["metadata"]["name"] for made in it.objects if "far" in made["metadata"]["name"]]
    rules = it.one("NetworkPolicy", "tandem-gateway")["spec"]["egress"]
    assert {"to": PEERS, "ports": [{"protocol": "TCP"}]} in rules
    assert "  pool far: http://triton.ml:8000, http://10.1.2.3:8000" in it.notes.splitlines()


def test_a_gateway_may_stand_before_nothing_but_tritons_of_others(render: Render) -> None:
    values = outside()
    it = render({**values, "pools": {**values["pools"], "cpu": {"enabled": False}}})
    assert [made["metadata"]["name"] for made in it.all("Deployment")] == ["tandem-gateway"]
    assert list(config(it)["pools"]) == ["far"]


def test_what_scales_the_others_leaves_them_alone(render: Render) -> None:
    values = outside()
    scaled = {"autoscaling": {"enabled": True, "by": "scaler", "minReplicas": 1}}
    it = render({**values, "poolDefaults": scaled, "scaler": {"enabled": True}})
    command = it.container("tandem-scaler")["command"]
    assert [word for word in command if word.startswith("--apply")] == ["--apply=cpu"]
    assert "min_replicas" not in config(it)["pools"]["far"]


# -- who scales ------------------------------------------------------------------------------------------------------------------


def test_a_gpu_pool_is_scaled_by_the_scaler_unless_something_else_is_said(render: Render) -> None:
    on: Object = {"scaler": {"enabled": True}}
    it = render({**on, **gpu(autoscaling={"enabled": True, "minReplicas": 0})})
    assert "--apply=gpu" in it.container("tandem-scaler")["command"]
    assert it.all("HorizontalPodAutoscaler") == []
    external = {
        "type": "External",
        "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "1"}},
    }
    for said in ({"metrics": [external]}, {"metrics": [external], "by": "metrics"}):
        it = render({**on, **gpu(autoscaling={"enabled": True, **said})})
        assert [made["metadata"]["name"] for made in it.all("HorizontalPodAutoscaler")] == ["tandem-gpu"]
    cpu = {"pools": {"cpu": {"autoscaling": {"enabled": True}}}}
    assert [made["metadata"]["name"] for made in render(cpu).all("HorizontalPodAutoscaler")] == ["tandem-cpu"]


def keda(scaler: bool = True, **said: Any) -> Object:
    values = gpu(autoscaling={"enabled": True, "by": "keda", **said})
    return {**values, "scaler": {"enabled": scaler}, "networkPolicy": {"kedaFrom": PEERS} if scaler else {}}


def test_kedas_triggers_stand_beside_the_scalers_or_alone_without_it(render: Render) -> None:
    spec = render(keda(triggers=[CRON])).one("ScaledObject", "tandem-gpu")["spec"]
    assert [it["type"] for it in spec["triggers"]] == ["cron", "external-push"]
    assert spec["triggers"][0] == CRON
    assert "cooldownPeriod" not in spec
    spec = render(keda(scaler=False, triggers=[CRON])).one("ScaledObject", "tandem-gpu")["spec"]
    assert spec["triggers"] == [CRON]
    spec = render(keda()).one("ScaledObject", "tandem-gpu")["spec"]
    assert ([it["type"] for it in spec["triggers"]], spec["cooldownPeriod"]) == (["external-push"], 0)


# -- what is refused -------------------------------------------------------------------------------------------------------------

CARD = "pools.card.gpu.resource is {0}, a card that neither NVIDIA's image nor Tandem's computes on. Name an image of Triton that does in pools.card.ownImage, with pools.card.server=nvidia."  # fmt: skip
REFUSED: dict[str, tuple[Object, Names]] = {
    "an AMD card and NVIDIA's image": (other(gpu={"resource": "amd.com/gpu"}), CARD.format("amd.com/gpu")),
    "an Intel card and Tandem's image": (
        other(gpu={"resource": "gpu.intel.com/i915"}, server="tandem"),
        CARD.format("gpu.intel.com/i915"),
    ),
    "an image of one's own for the slim server": (
        gpu(server="tandem", ownImage=IMAGE),
        ("pools.gpu.ownImage", "pools.gpu.server", "pools.gpu.server=nvidia"),
    ),
    "an image without a version": (
        gpu(ownImage={"repository": "mine/triton"}),
        ("pools.gpu.ownImage.repository", "mine/triton", "pools.gpu.ownImage.tag"),
    ),
    "an image that moves": (
        gpu(ownImage={"repository": "mine/triton", "tag": "latest"}),
        ("pools.gpu.ownImage.tag",),
    ),
    "a version of no image": (
        gpu(ownImage={"tag": "26.09-py3"}),
        ("pools.gpu.ownImage", "images.nvidia", "pools.gpu.ownImage.repository"),
    ),
    "claims for a processor": (
        {"pools": {"cpu": {"resourceClaims": [CLAIM]}}},
        ("pools.cpu.resourceClaims", "pools.cpu.device", "pools.cpu.device=gpu"),
    ),
    "a card beside the claims": (
        gpu(resourceClaims=[CLAIM], gpu={"count": 2}),
        ("pools.gpu.gpu", "pools.gpu.resourceClaims"),
    ),
    "a claim of nothing": (
        gpu(resourceClaims=[{"name": "card"}]),
        ("pools.gpu.resourceClaims.card", "resourceClaimName", "resourceClaimTemplateName"),
    ),
    "a claim of two": (
        gpu(resourceClaims=[{**CLAIM, "resourceClaimName": "mine"}]),
        ("pools.gpu.resourceClaims.card", "resourceClaimName", "resourceClaimTemplateName"),
    ),
    "memory for Tritons of others": (
        outside(resources={"limits": {"memory": "1Gi"}}),
        ("pools.far.resources", "pools.far.urls"),
    ),
    "Tritons of others that the policy keeps away": (
        {"pools": outside()["pools"]},
        ("pools.far.urls", "NetworkPolicy", "networkPolicy.tritonsTo", "{ipBlock", "10.0.0.0/8}}"),
    ),
    "bounds of others upside down": (
        outside(minReplicas=3, maxReplicas=2),
        ("pools.far.minReplicas", "3", "maxReplicas", "2"),
    ),
    "triggers that are not KEDA's": (
        {**gpu(autoscaling={"enabled": True, "triggers": [CRON]}), "scaler": {"enabled": True}},
        ("pools.gpu.autoscaling.triggers", "pools.gpu.autoscaling.by", "pools.gpu.autoscaling.enabled=true", "pools.gpu.autoscaling.by=keda"),
    ),
    "triggers of nobody": (
        gpu(autoscaling={"triggers": [CRON]}),
        ("pools.gpu.autoscaling.triggers", "pools.gpu.autoscaling.enabled", "pools.gpu.autoscaling.enabled=true", "pools.gpu.autoscaling.by=keda"),
    ),
    "a GPU pool that is scaled by nobody": (
        gpu(autoscaling={"enabled": True}),
        ("pools.gpu.autoscaling.by", "scaler.enabled=true", "pools.gpu.autoscaling.by=metrics"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str, chart: helm_python.Chart) -> None:
    values, names = REFUSED[case]
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        chart.render(accepted(values), name="tandem")
    assert checks.lacks(str(refusal.value), names) == []


@pytest.mark.parametrize(("version", "is_refused"), [("v1.33.4", True), ("v1.34.0", False), ("v1.35.0-gke.1", False)])
def test_claims_are_refused_where_kubernetes_would_drop_them(version: str, is_refused: bool, tmp_path: Path) -> None:
    values = accepted(gpu(resourceClaims=[CLAIM]))
    with on_kubernetes(version, tmp_path, "pools/_guards.tpl", ".root") as chart:
        if is_refused:
            with pytest.raises(helm_python.HelmRenderError, match=r"1\.34\b.* v1\.33\.4"):
                chart.render(values, name="tandem")
        else:
            assert chart.render(values, name="tandem")


@pytest.mark.parametrize(
    "values",
    [
        gpu(ownImage={"repository": "a:1"}),
        gpu(ownImage={"image": "a"}),
        gpu(resourceClaims=[{"resourceClaimName": "x"}]),
        gpu(resourceClaims=[{"name": "x", "template": "y"}]),
        gpu(urls=["triton:8000"]),
        gpu(urls=["https://triton:8000"]),
        gpu(urls=["http://triton"]),
        gpu(autoscaling={"triggers": [{"metadata": {}}]}),
        {"networkPolicy": {"tritonsTo": [{"cidr": "10.0.0.0/8"}]}},
    ],
    ids=str,
)
def test_a_misspelt_or_wrong_value_is_refused_by_the_schema(values: Object, chart: helm_python.Chart) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        chart.render(accepted(values), name="tandem")
