"""The chart's profiles ask for the names under which k8s/ hands things out."""

from __future__ import annotations

import pytest
import yaml

from .conftest import K8S, ROOT, Object, Render
from .test_gpu_sharing import configs, handed_out

PROFILES = {"time-slicing": "values-time-slicing.yaml", "mps": "values-time-slicing.yaml", "mig": "values-mig.yaml"}


def profile(name: str) -> Object:
    values: Object = yaml.safe_load((ROOT / "helm" / "tandem" / name).read_text())
    return values


@pytest.mark.parametrize(("way", "name"), PROFILES.items())
def test_a_profile_asks_for_what_its_way_of_sharing_hands_out(way: str, name: str) -> None:
    asked = {pool["gpu"]["resource"] for pool in profile(name)["pools"].values() if "gpu" in pool}
    assert asked == {handed_out(configs()[way])}


def test_the_charts_profile_that_scales_to_zero_follows_the_adapters_metric(render: Render) -> None:
    adapter = yaml.safe_load((K8S / "scaling" / "prometheus-adapter-values.yaml").read_text())
    (rule,) = adapter["rules"]["external"]
    (autoscaler,) = render(profile("values-prometheus-adapter.yaml")).all("HorizontalPodAutoscaler")
    (metric,) = (one["external"]["metric"] for one in autoscaler["spec"]["metrics"])
    assert f'__name__="{metric["name"]}"' in rule["seriesQuery"]
    assert metric["selector"]["matchLabels"]["pool"] == "gpu"
