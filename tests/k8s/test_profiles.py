"""The chart's profiles ask for the names under which k8s/ hands things out."""

from __future__ import annotations

import pytest
import yaml

from .conftest import K8S, ROOT, Object, Render, one
from .test_gpu_sharing import configs, handed_out

PROFILES = {"time-slicing": "values-time-slicing.yaml", "mps": "values-time-slicing.yaml", "mig": "values-mig.yaml"}


def profile(name: str) -> Object:
    values: Object = yaml.safe_load((ROOT / "helm" / "tandem" / name).read_text())
    return values


@pytest.mark.parametrize(("way", "name"), PROFILES.items())
def test_a_profile_asks_for_what_its_way_of_sharing_hands_out(way: str, name: str) -> None:
    asked = {pool["gpu"]["resource"] for pool in profile(name)["pools"].values() if "gpu" in pool}
    assert asked == {handed_out(configs()[way])}


def test_the_charts_profile_that_scales_to_zero_follows_the_adapters_metric() -> None:
    adapter = yaml.safe_load((K8S / "scaling" / "prometheus-adapter-values.yaml").read_text())
    (rule,) = adapter["rules"]["external"]
    values = profile("values-scale-to-zero.yaml")
    metrics = [metric for pool in values["pools"].values() for metric in pool.get("autoscaling", {}).get("metrics", [])]
    followed = [metric["external"]["metric"] for metric in metrics if metric["type"] == "External"]
    assert followed
    for metric in followed:
        assert f'__name__="{metric["name"]}"' in rule["seriesQuery"]
        assert metric["selector"]["matchLabels"].keys() == {"pool"}
        assert metric["selector"]["matchLabels"]["pool"] in values["pools"]


def test_the_values_for_keda_leave_the_pools_size_to_it_and_know_its_bounds(render: Render) -> None:
    values = yaml.safe_load((K8S / "scaling" / "keda-chart-values.yaml").read_text())
    objects = render(values)
    scaled = one("scaling/keda.yaml", "ScaledObject")["spec"]
    assert "replicas" not in objects.one("Deployment", scaled["scaleTargetRef"]["name"])["spec"]
    assert [it["metadata"]["name"] for it in objects.all("HorizontalPodAutoscaler")] == []
    pool = yaml.safe_load(objects.one("ConfigMap", "tandem-gateway")["data"]["tandem.yaml"])["pools"]["gpu"]
    assert (pool["min_replicas"], pool["max_replicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
