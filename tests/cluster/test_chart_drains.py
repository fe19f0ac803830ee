"""Nodes can always be emptied: real `kubectl drain` over the chart's disruption budgets, with pods that come back on another node.

Not here: whether requests survive a drain. tests/cluster/test_stored_objects.py times real processes against the stored grace periods.
"""

from __future__ import annotations

import pytest

from tests.cluster.bed.api import Answered, Object, until
from tests.cluster.bed.cluster import Bed
from tests.cluster.release import Release

pytestmark = pytest.mark.cluster
ORDINARY = ("cpu-0", "cpu-1", "cpu-2")
DRAIN_S = 120  # a pod of the bed leaves within 2 s; kubectl tries a refused eviction again every 5 s


def drained(bed: Bed, node: str) -> None:
    words = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_S}s")
    try:
        bed.kubectl("drain", node, *words)
    finally:
        bed.kubectl("uncordon", node)


def on(release: Release, node: str) -> list[str]:
    return [it["metadata"]["name"] for it in release.pods() if it["spec"].get("nodeName") == node]


@pytest.mark.thorough
def test_every_node_can_be_drained_one_after_the_other(bed: Bed, namespace: str) -> None:
    release = Release(bed, namespace, more={"pools.cpu.replicas": 2})
    release.install()
    assert release.objects("poddisruptionbudgets", "apis/policy/v1")
    for node in ORDINARY:
        release.settle()
        drained(bed, node)
        assert on(release, node) == []
    release.settle()


@pytest.mark.thorough
def test_pods_that_never_got_ready_and_pools_of_one_do_not_hold_a_node(bed: Bed, namespace: str) -> None:
    release = Release(
        bed,
        namespace,
        more={"gateway.podAnnotations": {"bed/unready": "true"}, "pools.cpu.replicas": 1},
    )
    release.install("--wait=false")
    until(lambda: [it["status"].get("phase") for it in release.pods()] == ["Running"] * 3, "all pods running")
    for node in ORDINARY:
        drained(bed, node)


def test_a_budget_keeps_the_second_gateway_until_the_first_is_back(bed: Bed, namespace: str) -> None:
    release = Release(bed, namespace, more={"gateway.podAnnotations": {"bed/load": "8"}})
    release.install()
    first, second = (it["metadata"]["name"] for it in release.pods("gateway"))
    evict(release, first)
    with pytest.raises(Answered, match="disruption budget") as refused:
        evict(release, second)
    assert refused.value.status == 429
    release.settle()
    until(lambda: evicted(release, second), "the second may go once the first is back", 20)


def evict(release: Release, pod: str) -> None:
    body: Object = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": release.namespace},
    }
    release.bed.api.create(f"/api/v1/namespaces/{release.namespace}/pods/{pod}/eviction", body)


def evicted(release: Release, pod: str) -> bool:
    try:
        evict(release, pod)
    except Answered as error:
        if error.status == 429:
            return False
        raise
    return True
