"""The chart's GPU pool and the real Karpenter with the NodePool of k8s/gpu-nodes: one card is bought for one Triton, no update buys a
second, none is kept for a pool that is off, and none is bought at the install of a pool that may have none.

The NodePool is ours but for its machines, which are the bed's, and its patience, which is shorter. No cloud is asked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from serving.cluster.client import STRATEGIC_MERGE_PATCH
from serving.cluster.objects.pods import GATE
from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed, is_true
from tests.cluster.conftest import CHART
from tests.cluster.release import PROFILES, Release
from tests.cluster.test_chart_scales import replicas, say

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]
FILE = Path(__file__).resolve().parents[2] / "k8s" / "gpu-nodes" / "karpenter-aws.yaml"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"


@pytest.fixture
def node_pool(bed: Bed) -> Iterator[None]:
    (pool,) = [it for it in yaml.safe_load_all(FILE.read_text()) if it["kind"] == "NodePool"]
    spec = pool["spec"]["template"]["spec"]
    spec["nodeClassRef"] = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "bought"}
    (machines,) = [it for it in spec["requirements"] if it["key"] == "node.kubernetes.io/instance-type"]
    machines["values"] = ["gpu-1"]
    pool["spec"]["disruption"]["consolidateAfter"] = "5s"
    pool["metadata"]["name"] = "bought"
    machine_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "bought"}, "spec": {"nodeRegistrationDelay": "2s"}}  # fmt: skip
    for it in (machine_class, pool):
        bed.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(it))
    yield
    bed.kubectl("delete", "nodepool/bought", "kwoknodeclass/bought", "--timeout=60s")


def claims(bed: Bed) -> set[str]:
    """What was bought and is kept."""
    return {it["metadata"]["name"] for it in bed.api.items(CLAIMS) if "deletionTimestamp" not in it["metadata"]}


def gpu_pod(release: Release) -> Object | None:
    found = [it for it in release.pods("triton") if it["metadata"]["labels"]["tandem-pool"] == "gpu"]
    return found[0] if found else None


def test_one_card_for_one_triton_no_second_for_an_update_and_none_for_a_pool_that_is_off(
    bed: Bed, namespace: str, node_pool: None
) -> None:
    stopping = {
        "poolDefaults.podAnnotations": {"bed/stop": "4"}
    }  # longer than Karpenter's second of gathering pending pods
    release = Release(bed, namespace, more={**stopping, "pools.gpu.enabled": True})
    release.install()
    release.settle()
    bought = claims(bed)
    assert len(bought) == 1
    first = gpu_pod(release)
    assert first is not None
    assert (
        bed.api.get(f"/api/v1/nodes/{first['spec']['nodeName']}")["metadata"]["labels"]["karpenter.sh/nodepool"]
        == "bought"
    )

    changed = Release(
        bed,
        namespace,
        more={"poolDefaults.podAnnotations": {"bed/stop": "4", "rolled": "out"}, "pools.gpu.enabled": True},
    )
    changed.upgrade()
    changed.settle()
    second = gpu_pod(changed)
    assert second is not None
    assert second["metadata"]["annotations"]["rolled"] == "out"
    assert second["spec"]["nodeName"] == first["spec"]["nodeName"]
    assert ever_bought(bed) == bought

    rolling = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}
    template = {"template": {"metadata": {"annotations": {"rolled": "again"}}}}
    bed.api.merge(f"/apis/apps/v1/namespaces/{namespace}/deployments/tandem-gpu", {"spec": {**rolling, **template}})
    until(lambda: len(ever_bought(bed)) == 2, "a rolling update, which the chart avoids, buys a second machine", 30)

    Release(bed, namespace, more={**stopping, "pools.gpu.enabled": False}).upgrade()
    until(lambda: not claims(bed), "all machines gone", 90)


def test_a_pool_that_may_have_none_buys_nothing_at_the_install_and_one_card_when_one_is_wanted(
    bed: Bed, namespace: str, node_pool: None
) -> None:
    release = Release(bed, namespace, PROFILES["prometheus-adapter"])
    before = ever_bought(bed)
    say(bed, namespace, 0)
    release.install()
    time.sleep(5)  # Karpenter gathers pending pods for a second, and the autoscaler looks every two
    assert release.deployments()["gpu"]["metadata"]["generation"] == 1, "there never was another number than none"
    assert gpu_pod(release) is None
    assert ever_bought(bed) == before

    say(bed, namespace, 1)
    until(lambda: (pod := gpu_pod(release)) is not None and is_true(pod, "Ready"), "a Triton on a bought node", 60)
    first = gpu_pod(release)
    assert first is not None
    assert len(ever_bought(bed) - before) == 1
    Release(bed, namespace, PROFILES["prometheus-adapter"], {"gateway.podAnnotations": {"rolled": "out"}}).upgrade()
    second = gpu_pod(release)
    assert replicas(release, "gpu") == 1
    assert second is not None
    assert second["metadata"]["uid"] == first["metadata"]["uid"]

    # To a manifest that has none: the docs say so, and that the autoscaler takes it back at its next look.
    release.rollback(1)
    until(lambda: replicas(release, "gpu") == 1, "what is wanted, again", 30)
    until(lambda: (pod := gpu_pod(release)) is not None and is_true(pod, "Ready"), "a Triton again", 60)
    third = gpu_pod(release)
    assert third is not None
    assert third["metadata"]["uid"] != first["metadata"]["uid"]
    release.uninstall()  # while the pool of nodes is there: the next test looks at what is bought
    until(lambda: not claims(bed), "all machines gone", 90)


def test_a_pool_that_the_scaler_scales_buys_nothing_until_the_scaler_opens_its_pods_gate(
    bed: Bed, namespace: str, node_pool: None
) -> None:
    """The scaler's part is done here; tests/cluster/scaler/test_scales_itself.py has the real one."""
    release = Release(bed, namespace, PROFILES["scale-to-zero"])
    before = ever_bought(bed)
    bed.helm("install", release.name, str(CHART), f"--values={release.values}", "--set=auth.insecureNoAuth=true", f"--namespace={namespace}")  # fmt: skip
    until(lambda: gpu_pod(release), "the pod that Kubernetes makes for a missing number")
    time.sleep(5)  # as above
    assert ever_bought(bed) == before
    pod = gpu_pod(release)
    assert pod is not None
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
    gate = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
    bed.api.call("PATCH", path, gate, STRATEGIC_MERGE_PATCH)
    until(lambda: (found := gpu_pod(release)) is not None and is_true(found, "Ready"), "a Triton on a bought node", 60)
    assert len(ever_bought(bed) - before) == 1
    release.uninstall()
    until(lambda: not claims(bed), "all machines gone", 90)


def ever_bought(bed: Bed) -> set[str]:
    """By Karpenter's events, so that a machine that came and went between two looks counts."""
    log = bed.log("karpenter")
    found = {
        json.loads(line)["NodeClaim"]["name"] for line in log.splitlines() if '"message":"created nodeclaim"' in line
    }
    return {it for it in found if it.startswith("bought-")}
