"""What the scaler reads of a real API server: a pod that waits counts, its moments come in order, and neither a lack of leave nor a server
that is away stops anything. Nodes and kubelets are simulated here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.cluster.scaler import cluster_state
from serving.cluster.scaler.cluster_state import ClusterState
from serving.decisions.cold_start import Server
from tests.cluster.bed.api import Object
from tests.cluster.bed.cluster import Bed
from tests.cluster.conftest import Nodes, SignIn
from tests.local.harness import wait_until

pytestmark = pytest.mark.cluster
CARD = "nvidia.com/gpu"


def deployment(**annotations: str) -> Object:
    """A pool as the chart labels it, whose pod wants a card."""
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "triton",
        "image": "example/triton:1",
        "resources": {"limits": {CARD: "1"}},
        "securityContext": secure,
    }
    labels = {"app.kubernetes.io/instance": "tandem", "tandem-pool": "gpu"}
    spec = {
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    return {
        "metadata": {"name": "tandem-gpu", "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
        },
    }


class Look:
    def __init__(self, namespace: str) -> None:
        self.said: list[str] = []
        self.it = ClusterState(("gpu",), self.said.append, namespace=namespace)
        self.it.start()
        wait_until(self.it.is_settled, "what runs is known")

    def server(self) -> Server | None:
        found = self.it.servers.get("gpu", ())
        return found[0] if found else None


Looking = Callable[[Path], Look]


@pytest.fixture
def looking(namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looking]:
    """Looks at the test's namespace as whoever a kubeconfig says."""
    made: list[Look] = []

    def look(kubeconfig: Path) -> Look:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        made.append(Look(namespace))
        return made[-1]

    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(cluster_state, "EVERY_S", 0.2)
    yield look
    for it in made:
        it.it.stop(wait_s=60)


@pytest.fixture
def pool(bed: Bed, namespace: str) -> Iterator[None]:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    bed.api.create(path, deployment(**{"bed/pull": "2", "bed/load": "2"}))
    wait_until(lambda: bed.api.items(f"/api/v1/namespaces/{namespace}/pods"), "its pod is made")
    yield
    bed.api.delete(f"{path}/tandem-gpu")


def test_a_pod_that_waits_for_its_node_counts_and_its_moments_come_in_order(
    bed: Bed, namespace: str, nodes: Nodes, pool: None, looking: Looking
) -> None:
    look = looking(bed.layout.kubeconfig)
    assert look.it.replicas == {"gpu": 1}
    look.it.watch({"gpu"})
    waiting = wait_until(look.server, "its pod is seen")
    assert waiting == Server(waiting.name, created_at=waiting.created_at)
    nodes.add(f"{namespace}-gpu", {CARD: "1"}, taint="nvidia.com/gpu")
    wait_until(lambda: (look.server() or waiting).ready_at, "it is ready")
    it = look.server()
    assert it is not None
    moments = [it.created_at, it.node_created_at, it.node_ready_at, it.scheduled_at, it.started_at, it.ready_at]
    assert all(moment is not None for moment in moments)
    assert moments[:2] == sorted(moments[:2])
    assert moments[3:] == sorted(moments[3:])
    assert (
        it.ready_at - it.scheduled_at >= 3.0
    )  # of the two that its image and the two that its model takes, in whole seconds
    assert look.said == []


@pytest.mark.thorough
def test_who_may_see_pods_and_no_nodes_has_the_rest(
    bed: Bed, namespace: str, nodes: Nodes, pool: None, sign_in: SignIn, looking: Looking
) -> None:
    nodes.add(f"{namespace}-gpu", {CARD: "1"}, taint="nvidia.com/gpu")
    look = looking(sign_in.role("view"))
    look.it.watch({"gpu"})
    it = wait_until(lambda: (found := look.server()) and found.ready_at and found, "it is ready")
    assert (it.node_created_at, it.node_ready_at) == (None, None)
    assert it.scheduled_at is not None
    assert look.said == []


def test_who_may_see_nothing_is_told_so_and_goes_on_by_metrics(
    namespace: str, sign_in: SignIn, looking: Looking
) -> None:
    look = looking(sign_in.role(None))
    assert look.it.replicas is None
    wait_until(lambda: look.said, "it is told")
    assert f"deployments of namespace {namespace}" in look.said[0]


@pytest.mark.thorough
def test_an_api_server_that_goes_away_is_told_once_and_heard_when_it_is_back(
    bed: Bed, namespace: str, pool: None, looking: Looking
) -> None:
    look = looking(bed.layout.kubeconfig)
    look.it.watch({"gpu"})
    wait_until(look.server, "its pod is seen")
    bed.stop("kube-apiserver")
    try:
        wait_until(lambda: look.it.is_readable is False, "it is missed")
        assert look.server() is not None  # what was seen stays
    finally:
        bed.start("kube-apiserver")
    wait_until(lambda: look.it.is_readable, "it is heard again")
    assert look.it.replicas == {"gpu": 1}
    assert all("cold starts" in line for line in look.said)
