"""The real HorizontalPodAutoscaler over the chart's pools: it moves them, and no upgrade takes its number away."""

from __future__ import annotations

import pytest

from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed
from tests.cluster.conftest import Nodes
from tests.cluster.release import PROFILES, Release

pytestmark = pytest.mark.cluster
WANTED = "tandem_wanted_replicas"


SCALER: Object = {
    "scaler.enabled": True,
    "monitoring.serviceMonitor.enabled": True,
    "networkPolicy.metricsFrom": [{"podSelector": {}}],
}


def say(bed: Bed, namespace: str, wanted: int | None) -> None:
    """What prometheus-adapter would serve of the scaler; None: nothing, as while the scaler is away."""
    bed.set_external_metric(WANTED, wanted, pool="gpu", tandem="tandem")


def replicas(release: Release, name: str) -> int:
    number = release.deployments()[name]["spec"]["replicas"]
    assert isinstance(number, int)
    return number


def selector(release: Release, name: str) -> str:
    labels = release.deployments()[name]["spec"]["selector"]["matchLabels"]
    return ",".join(f"{key}={value}" for key, value in labels.items())


@pytest.mark.thorough
def test_a_cpu_pool_follows_its_use_and_an_upgrade_keeps_the_autoscalers_number(bed: Bed, namespace: str) -> None:
    scaling = {"pools.cpu.autoscaling": {"enabled": True, "maxReplicas": 3}}
    release = Release(bed, namespace, more=scaling)
    release.install()
    release.settle()
    bed.set_cpu_use(namespace, selector(release, "cpu"), 2.5)  # of a request, where 70 % is aimed at: more than allowed
    until(lambda: replicas(release, "cpu") == 3, "the most that the chart allows")
    release.settle()
    Release(bed, namespace, more={**scaling, "poolDefaults.podAnnotations": {"rolled": "out"}}).upgrade()
    assert replicas(release, "cpu") == 3
    (autoscaler,) = release.objects("horizontalpodautoscalers", "apis/autoscaling/v2")
    assert autoscaler["status"]["desiredReplicas"] == 3


def test_a_gpu_pool_follows_demand_from_zero_and_back_and_an_upgrade_leaves_it_there(
    bed: Bed, namespace: str, nodes: Nodes
) -> None:
    nodes.add("gpu-scaled", {"nvidia.com/gpu": "4"}, taint="nvidia.com/gpu")
    scaling: Object = {"enabled": True, "by": "wanted", "minReplicas": 0, "maxReplicas": 12}
    values = {"pools.gpu.enabled": True, "pools.gpu.autoscaling": scaling, **SCALER}
    release = Release(bed, namespace, more=values)
    say(bed, namespace, 0)
    release.install()
    until(lambda: replicas(release, "gpu") == 0, "no Triton while nobody asks")
    Release(bed, namespace, more={**values, "poolDefaults.podAnnotations": {"rolled": "out"}}).upgrade()
    assert replicas(release, "gpu") == 0
    for wanted in (3, 2, 12, 11, 12, 1):  # the number itself, up and down, without a pause
        say(bed, namespace, wanted)
        until(lambda: replicas(release, "gpu") == wanted, f"{wanted} Tritons, as wanted", 60)  # noqa: B023
    say(bed, namespace, None)
    until(lambda: is_blind(release), "an autoscaler that cannot read its metric")
    assert replicas(release, "gpu") == 1, "what is running stays while the metric is missing"
    say(bed, namespace, 0)
    until(lambda: replicas(release, "gpu") == 0, "none again")


def scale(release: Release, number: int) -> None:
    """As an autoscaler does it."""
    of_pool = f"/apis/apps/v1/namespaces/{release.namespace}/deployments/{release.name}-gpu/scale"
    release.bed.api.merge(of_pool, {"spec": {"replicas": number}})


@pytest.mark.thorough
def test_a_pool_that_begins_with_none_is_left_with_the_number_that_an_autoscaler_chose(
    bed: Bed, namespace: str, nodes: Nodes
) -> None:
    """By KEDA, which does not run here, so the number is set as it would set it."""
    nodes.add("gpu-begun", {"nvidia.com/gpu": "8"}, taint="nvidia.com/gpu")
    given = Release(bed, namespace, PROFILES["keda"])

    def upgraded(number: int, **more: object) -> int:
        scale(given, number)
        values = {f"pools.gpu.autoscaling.{name}": it for name, it in more.items()}
        Release(bed, namespace, PROFILES["keda"], values).upgrade()
        return replicas(given, "gpu")

    given.install()
    assert replicas(given, "gpu") == 0
    assert given.deployments()["gpu"]["metadata"]["generation"] == 1, "there never was another number"
    assert upgraded(3, maxReplicas=6) == 3
    assert upgraded(0, maxReplicas=5) == 0
    assert upgraded(2, beginsAtMinReplicas=False) == 2, "the manifest before had a number, and this one must have it"
    assert upgraded(4, beginsAtMinReplicas=False) == 4
    assert upgraded(0, minReplicas=1) == 1, "an autoscaler that may not have none lets none be"


@pytest.mark.thorough
def test_a_release_in_which_pools_began_with_one_may_turn_to_none(bed: Bed, namespace: str, nodes: Nodes) -> None:
    nodes.add("gpu-turned", {"nvidia.com/gpu": "8"}, taint="nvidia.com/gpu")
    turned = Release(bed, namespace, PROFILES["keda"])
    before = Release(bed, namespace, PROFILES["keda"], {"pools.gpu.autoscaling.beginsAtMinReplicas": False})
    before.install()
    assert replicas(before, "gpu") == 1
    scale(before, 3)
    turned.upgrade()
    assert replicas(turned, "gpu") == 3
    Release(bed, namespace, PROFILES["keda"], {"pools.gpu.enabled": False}).upgrade()
    turned.upgrade()
    assert replicas(turned, "gpu") == 0, "a pool that is new in an upgrade"


def is_blind(release: Release) -> bool:
    (autoscaler,) = [it for it in release.objects("horizontalpodautoscalers", "apis/autoscaling/v2") if it["metadata"]["name"].endswith("gpu")]  # fmt: skip
    conditions = autoscaler["status"].get("conditions", [])
    return any(it["reason"] == "FailedGetExternalMetric" for it in conditions)
