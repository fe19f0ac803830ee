"""The scaler of an installed release, by the token of its own service account on a real API server: it may see what it asks for, and nothing else.

Pods and nodes are simulated; KEDA is not here. The scaler's process runs in the test, with what a pod would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.cluster.client import ApiError, ServiceAccount
from serving.cluster.objects.fields import name_of
from serving.cluster.scaler import cluster_state
from serving.cluster.scaler.cluster_state import ClusterState
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.conftest import CHART, Nodes
from tests.cluster.release import PROFILES, Release
from tests.local.harness import wait_until

pytestmark = pytest.mark.cluster
CARD = "nvidia.com/gpu"


def helm(release: Release, verb: str, *words: str) -> None:
    given = (f"--values={release.values}", "--set=auth.insecureNoAuth=true", f"--namespace={release.namespace}")
    release.bed.helm(verb, release.name, str(CHART), *given, *words)


@pytest.fixture
def release(bed: Bed, namespace: str) -> Iterator[Release]:
    """Somebody wants a GPU, and there is no node for it yet, so Helm is not told to wait."""
    it = Release(bed, namespace, PROFILES["keda"])
    helm(it, "install")
    bed.kubectl("scale", "deployment", "tandem-gpu", "--replicas=1", "-n", namespace)  # as KEDA would
    yield it
    it.uninstall()


@pytest.fixture
def account(bed: Bed, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What its pod would find of its service account, and of its server's address."""
    deployment = release.deployments()["scaler"]["spec"]["template"]["spec"]
    name = deployment["serviceAccountName"]
    (tmp_path / "token").write_text(bed.kubectl("create", "token", name, "-n", release.namespace))
    (tmp_path / "ca.crt").write_bytes((bed.layout.certificates / "ca.crt").read_bytes())
    (tmp_path / "namespace").write_text(release.namespace)
    monkeypatch.setattr(cluster_state, "ACCOUNT", tmp_path)
    monkeypatch.setattr(cluster_state, "EVERY_S", 0.2)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(bed.layout.ports.api))
    return tmp_path


def test_it_sees_what_pools_were_told_and_how_far_a_gpus_pod_and_node_are(
    release: Release, nodes: Nodes, account: Path
) -> None:
    said: list[str] = []
    look = ClusterState(("cpu", "gpu"), said.append, release=release.name)
    look.start()
    wait_until(look.is_settled, "what runs is known")
    assert look.replicas == {"cpu": 2, "gpu": 1}
    look.watch({"gpu"})
    nodes.add(f"{release.namespace}-gpu", {CARD: "1"}, taint=CARD)
    (server,) = wait_until(lambda: [it for it in look.servers.get("gpu", ()) if it.ready_at], "its pod is ready")
    assert None not in (server.node_created_at, server.node_ready_at, server.scheduled_at, server.started_at)
    assert said == []
    look.watch(())


def test_its_account_may_see_nothing_more_and_change_nothing(bed: Bed, release: Release, account: Path) -> None:
    client = ServiceAccount.of_this_pod(None, account)
    home = f"/api/v1/namespaces/{release.namespace}"
    assert client.items(f"{home}/pods", "pods", name_of) is not None
    assert client.items("/apis/karpenter.sh/v1/nodeclaims", "nodeclaims", name_of) is not None
    for path in (f"{home}/secrets", f"{home}/configmaps", "/api/v1/namespaces/kube-system/pods", "/api/v1/nodes"):
        assert client.items(path, path, name_of) is None, path
    user = f"--as=system:serviceaccount:{release.namespace}:tandem-scaler"
    for words in (("delete", "pods"), ("patch", "deployments/scale"), ("create", "pods"), ("get", "secrets")):
        with pytest.raises(Failed, match="no"):
            bed.kubectl("auth", "can-i", *words, user, "-n", release.namespace)
    (account / "token").write_text("another")
    with pytest.raises(ApiError, match=r"pod's.*accepted"):
        client.items(f"{home}/pods", "pods", name_of)


@pytest.mark.thorough
def test_without_leave_to_see_nodes_it_has_the_rest(release: Release, nodes: Nodes, account: Path) -> None:
    helm(release, "upgrade", "--set=scaler.rbac.nodes=false")
    nodes.add(f"{release.namespace}-gpu", {CARD: "1"}, taint=CARD)
    said: list[str] = []
    look = ClusterState(("cpu", "gpu"), said.append, release=release.name)
    look.start()
    look.watch({"gpu"})
    (server,) = wait_until(lambda: [it for it in look.servers.get("gpu", ()) if it.ready_at], "its pod is ready")
    assert (server.node_created_at, server.node_ready_at) == (None, None)
    assert server.scheduled_at is not None
    assert said == []
    look.watch(())
