"""The profiles, values-*.yaml: each lints, renders what it promises with keys and without, is valid, and says nothing in vain."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml

from tests import api_server

from . import checks
from .conftest import ROOT, Object, Render, accepted

CHART = ROOT / "helm" / "tandem"
PROFILES: dict[str, Object] = {
    path.stem.removeprefix("values-"): yaml.safe_load(path.read_text()) for path in sorted(CHART.glob("values-*.yaml"))
}
KEYS: Object = {"auth": {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "client"}}}
# Kinds of others: what their definitions say is asked of a real API server in tests/cluster.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}
SHORTEST_NOTICE_S = 30  # of a spot machine: Google and Azure; AWS gives two minutes


def test_the_profiles_are_those_that_the_documentation_names() -> None:
    assert [*PROFILES] == [
        "cpu-only",
        "gpu-bridge",
        "keda",
        "mig",
        "openshift",
        "prometheus-adapter",
        "scale-to-zero",
        "slim-images",
        "spot",
        "time-slicing",
    ]
    readme = (CHART / "README.md").read_text()
    for name in PROFILES:
        assert f"`values-{name}.yaml`" in readme, name


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_begins_with_what_it_is_for(profile: str) -> None:
    first = (CHART / f"values-{profile}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")


@pytest.mark.parametrize("profile", checks.linted(PROFILES, "gpu-bridge", "keda"))
def test_helm_lint_finds_nothing_in_a_profile(profile: str) -> None:
    for values in (accepted(PROFILES[profile]), {**PROFILES[profile], **KEYS}):
        report = helm_python.lint(CHART, values, strict=True, kube_version="v1.30.0")
        assert (report["errors"], [it for it in report["messages"] if it["severity"] > 1]) == ([], [])


@pytest.mark.slow
def test_what_the_profiles_make_is_valid_for_the_api_server(render: Render) -> None:
    seen = {json.dumps(it) for it in render(KEYS).objects}  # the default's are validated elsewhere
    for profile, values in PROFILES.items():
        for it in render({**values, **KEYS}).objects:
            if it["kind"] not in FOREIGN and (text := json.dumps(it)) not in seen:
                seen.add(text)
                try:
                    api_server.validate(it, "1.37")
                except api_server.ValidationError as error:
                    pytest.fail(f"{profile}: {it['kind']} {it['metadata']['name']}: {error}")


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(values, dict):
        for key, value in values.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


def without(values: Object, path: tuple[str, ...]) -> Object:
    rest = copy.deepcopy(values)
    node = rest
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return rest


@pytest.mark.thorough
@pytest.mark.parametrize("profile", PROFILES)
def test_every_value_of_a_profile_changes_something(profile: str, render: Render) -> None:
    whole = render(PROFILES[profile]).objects
    for path in leaves(PROFILES[profile]):
        try:
            less = render(without(PROFILES[profile], path)).objects
        except helm_python.HelmRenderError:  # contradictory without it, so it does something
            continue
        assert less != whole, ".".join(path)


# -- what each promises ------------------------------------------------------------------------------------------------------


def test_cpu_only_has_no_gpu_and_scales_by_cpu(render: Render) -> None:
    it = render(PROFILES["cpu-only"])
    assert "nvidia.com" not in str(it.objects)
    (scaler,) = it.all("HorizontalPodAutoscaler")
    assert (scaler["spec"]["scaleTargetRef"]["name"], scaler["spec"]["minReplicas"]) == ("tandem-cpu", 2)


def test_the_bridge_has_both_pools_and_the_gpu_first(render: Render) -> None:
    it = render(PROFILES["gpu-bridge"])
    config = yaml.safe_load(it.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    assert [*config["pools"]] == ["gpu", "cpu"]
    assert it.one("Deployment", "tandem-cpu")["spec"]["replicas"] == 2
    assert config["pools"]["gpu"]["min_replicas"] == 1


@pytest.mark.parametrize("profile", ["gpu-bridge", "mig", "scale-to-zero", "spot", "time-slicing"])
def test_a_gpu_profile_is_scaled_by_the_scaler_itself_with_nothing_else_installed(profile: str, render: Render) -> None:
    it = render(PROFILES[profile])
    gpu = it.one("Deployment", "tandem-gpu")
    assert "--apply=gpu" in it.container("tandem-scaler")["command"]
    assert ("replicas" in gpu["spec"], gpu["metadata"]["annotations"]) == (False, {"tandem-scaled-by": "scaler"})
    assert not {"HorizontalPodAutoscaler", "ScaledObject", "ServiceMonitor"} & {one["kind"] for one in it.objects}


def test_the_adapters_profile_follows_the_metric_that_prometheus_adapter_serves(render: Render) -> None:
    it = render(PROFILES["prometheus-adapter"])
    assert it.one("Deployment", "tandem-gpu")["spec"]["replicas"] == 0
    scaler = it.one("HorizontalPodAutoscaler", "tandem-gpu")["spec"]
    assert scaler["minReplicas"] == 0
    (metric,) = scaler["metrics"]
    (rule,) = yaml.safe_load((ROOT / "k8s/scaling/prometheus-adapter-values.yaml").read_text())["rules"]["external"]
    assert f'__name__="{metric["external"]["metric"]["name"]}"' in rule["seriesQuery"]
    assert metric["external"]["metric"]["selector"]["matchLabels"].keys() == {"pool", "tandem"}
    assert "by (pool)" in rule["metricsQuery"]
    config = yaml.safe_load(it.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])
    assert config["pools"]["gpu"]["min_replicas"] == 0
    assert it.all("ServiceMonitor")


def test_slim_images_are_tandems_own_in_every_pool(render: Render) -> None:
    it = render({**PROFILES["slim-images"], "pools": {"gpu": {"enabled": True}}})
    images = [it.container(f"tandem-{pool}")["image"] for pool in ("cpu", "gpu")]
    assert images == ["tandem-triton-cpu:0.1.0", "tandem-triton-gpu:0.1.0"]


@pytest.mark.parametrize(("profile", "key"), [("mig", "nvidia.com/mig-"), ("time-slicing", "nvidia.com/gpu.shared")])
def test_shares_of_a_card_are_asked_for_by_their_name(profile: str, key: str, render: Render) -> None:
    limits = render(PROFILES[profile]).container("tandem-gpu")["resources"]["limits"]
    (share,) = (name for name in limits if "/" in name)
    assert share.startswith(key)
    assert "nvidia.com/gpu" not in limits


def test_on_spot_a_triton_leaves_within_the_shortest_notice_and_gateways_stay_off_it(render: Render) -> None:
    it = render(PROFILES["spot"])
    tolerated = {"cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"}
    for pool in ("cpu", "gpu"):
        spec = it.one("Deployment", f"tandem-{pool}")["spec"]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] <= SHORTEST_NOTICE_S
        assert tolerated <= {toleration["key"] for toleration in it.tolerations(f"tandem-{pool}")}
        assert "karpenter.sh/capacity-type" in str(spec["affinity"])
    card = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert card in it.tolerations("tandem-gpu")
    gateway = it.one("Deployment", "tandem-gateway")["spec"]["template"]["spec"]
    assert it.tolerations("tandem-gateway") == []
    assert "'NotIn', 'values': ['spot']" in str(gateway["affinity"])
    assert "tandem-cpu" in {one["metadata"]["name"] for one in it.all("PodDisruptionBudget")}
