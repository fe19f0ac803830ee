"""A pod that holds a node for several pools buys none by itself, and a real scheduler gives its place to a Triton at once."""

from __future__ import annotations

import json

import pytest

from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed
from tests.cluster.conftest import CHART, Nodes

pytestmark = pytest.mark.cluster
CARD = "nvidia.com/gpu"
SLEEPS: Object = {"autoscaling": {"enabled": True, "by": "scaler", "minReplicas": 0}}
VALUES: Object = {
    "auth.insecureNoAuth": True,
    "scaler.enabled": True,
    "scaler.warmNodes": {"cards": {"pools": ["gpu", "chat"], "maxNodes": 1}},
    "pools.gpu": {"enabled": True, **SLEEPS},
    "pools.chat": {"device": "gpu", "models": ["digits-fp16"], **SLEEPS},
}


def test_a_triton_takes_the_place_of_a_pod_that_holds_a_node(bed: Bed, namespace: str, nodes: Nodes) -> None:
    given = [f"--set-json={name}={json.dumps(value)}" for name, value in VALUES.items()]
    bed.helm("install", "tandem", str(CHART), *given, f"--namespace={namespace}")
    path = f"/api/v1/namespaces/{namespace}/pods"

    def pods(pool: str) -> list[Object]:
        found: list[Object] = bed.api.items(f"{path}?labelSelector=tandem-pool%3D{pool}")
        return [it for it in found if "deletionTimestamp" not in it["metadata"]]

    def open_gate(pool: str) -> Object:
        (pod,) = until(lambda: pods(pool), f"the pod of {pool}")
        assert pod["spec"]["schedulingGates"] == [{"name": "tandem-wanted"}]
        name = pod["metadata"]["name"]
        patch = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
        bed.kubectl("patch", "pod", name, "-n", namespace, "--type=json", f"--patch={patch}")
        return pod

    def node_of(pod: Object) -> str:
        found = [
            it
            for it in pods(pod["metadata"]["labels"]["tandem-pool"])
            if it["metadata"]["uid"] == pod["metadata"]["uid"]
        ]
        return str(found[0]["spec"].get("nodeName", "")) if found else ""

    nodes.add(f"{namespace}-card", {CARD: "1"}, taint=CARD)
    holds = open_gate("warm-cards")
    until(lambda: node_of(holds), "it has the node with the only card")
    serves = open_gate("chat")
    until(lambda: node_of(serves), "a Triton has it instead")
    assert node_of(serves) == f"{namespace}-card"
    assert node_of(holds) == ""
    (waits,) = pods("warm-cards")
    assert (waits["spec"].get("nodeName"), waits["spec"]["schedulingGates"]) == (None, [{"name": "tandem-wanted"}])
    bed.helm("uninstall", "tandem", f"--namespace={namespace}")
