"""An API server that is away, refuses or is slow stops nobody; what it was asked for is known, or known not to come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.cluster.scaler import cluster_state
from serving.cluster.scaler.cluster_state import BY_METRICS, ClusterState, Unknowable, deployments_of_pools
from tests.cluster.objects import deployment, parsed, pod
from tests.cluster.servers import answering, nobody, silent
from tests.cluster.test_connection import kubeconfig
from tests.local.harness import wait_until

POOLS = ("cpu", "gpu")


class Look:
    """One that has begun, with what it has said."""

    def __init__(self, path: Path | str, monkeypatch: pytest.MonkeyPatch, release: str | None = None) -> None:
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.setenv("NO_PROXY", "*")
        self.said: list[str] = []
        self.it = ClusterState(POOLS, self.said.append, release=release)
        self.it.start()

    def settled(self) -> ClusterState:
        wait_until(self.it.is_settled, "it is known, or known not to come")
        return self.it


def listing(*objects: object) -> bytes:
    return json.dumps({"kind": "List", "metadata": {}, "items": objects}).encode()


def test_what_pools_were_told_to_run_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, listing(deployment("cpu", replicas=2), deployment("gpu", ready=0))) as address:
        look = Look(kubeconfig(tmp_path, f"http://{address}"), monkeypatch)
        assert look.settled().replicas == {"cpu": 2, "gpu": 1}
        wait_until(lambda: look.it.is_readable, "it says so")
        assert look.said == []  # by a server that is there: it goes on looking


def test_it_counts_the_nodes_that_each_pools_pods_are_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "EVERY_S", 0.01)
    monkeypatch.setattr(cluster_state, "NODES_S", 0.01)
    pods = [pod("gpu", name=f"g{i}", node=node) for i, node in enumerate(("a", "a", "b", None))]
    with answering(200, listing(deployment("cpu"), deployment("gpu")), pods=listing(*pods)) as address:
        look = Look(kubeconfig(tmp_path, f"http://{address}"), monkeypatch)
        wait_until(lambda: look.it.num_nodes == {"cpu": 0, "gpu": 2}, "the nodes are counted")
    wait_until(lambda: look.it.num_nodes is None, "without an answer nobody knows")
    with answering(200, b"{}", port=int(address.split(":")[1]), pods=listing(pods[0])):
        wait_until(lambda: look.it.num_nodes == {"cpu": 0, "gpu": 1}, "they are counted again")
    look.it.stop()


def test_a_pool_without_a_deployment_is_told_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, listing(deployment("cpu"))) as address:
        look = Look(kubeconfig(tmp_path, f"http://{address}"), monkeypatch)
        assert look.settled().replicas == {"cpu": 1}
        wait_until(lambda: look.said, "it is told")
        wait_until(lambda: look.it.is_readable, "it goes on looking")
        [problem] = look.said
    assert "namespace default" in problem
    assert "tandem-pool=gpu" in problem


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        pytest.param(403, b'{"kind": "Status"}', "this account may not see deployments of namespace default", id="no leave"),
        pytest.param(401, b"{}", "sign in again", id="unknown user"),
        pytest.param(
            200, listing(deployment("gpu", release="a"), deployment("gpu", release="b")), "name one with --release", id="two"
        ),
        pytest.param(200, listing({"metadata": {"labels": {"tandem-pool": "gpu"}}, "spec": {"replicas": "many"}}), "does not answer as Kubernetes", id="odd"),
    ],
)  # fmt: skip
def test_what_will_not_change_is_told_once_and_it_goes_on_by_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, says: str
) -> None:
    with answering(status, body) as address:
        look = Look(kubeconfig(tmp_path, f"http://{address}"), monkeypatch)
        assert look.settled().replicas is None
        wait_until(lambda: look.said, "it is told")
    (line,) = look.said
    assert says in line
    assert line.endswith(BY_METRICS)
    assert look.it.is_readable is False


@pytest.mark.parametrize("status", [401, 403])
def test_leave_that_comes_later_is_made_use_of_by_the_next_cold_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """A token that is renewed, or a role that an API server hears of a moment after the pod was started."""
    monkeypatch.setattr(cluster_state, "EVERY_S", 0.01)
    with answering(status, b'{"kind": "Status"}') as address:
        look = Look(kubeconfig(tmp_path, f"http://{address}"), monkeypatch)
        assert look.settled().replicas is None
        look.it.watch(["gpu"])
        wait_until(lambda: len(look.said) == 2, "pods are asked for, too, and that is said once")
        assert "pods" in look.said[1]
    with answering(200, listing(pod("gpu")), port=int(address.split(":")[1])):
        wait_until(lambda: look.it.servers.get("gpu"), "pods are seen")
        wait_until(lambda: look.it.is_readable, "it says so")
    look.it.stop()


def test_without_a_kubeconfig_it_goes_on_by_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Look(tmp_path / "none", monkeypatch)
    assert look.settled().replicas is None
    wait_until(lambda: look.said, "it is told")
    assert "no kubeconfig" in look.said[0]
    assert look.said[0].endswith(BY_METRICS)


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_in_trouble_is_asked_again_until_it_answers_or_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(cluster_state, "EVERY_S", 0.1)
    monkeypatch.setattr(cluster_state, "GIVE_UP_S", 2.0)
    with answering(status, b"{}") as address:
        look = Look(kubeconfig(tmp_path, f"http://{address}"), monkeypatch)
        assert look.settled().replicas is None
    assert len(look.said) == 1  # however often it was asked
    assert f"answers {status}" in look.said[0]


def test_one_that_comes_while_it_is_waited_for_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "EVERY_S", 0.01)
    with nobody() as address:
        path = kubeconfig(tmp_path, f"http://{address}")
        look = Look(path, monkeypatch)
        wait_until(lambda: look.said, "it is missed")
        assert not look.it.is_settled()
        assert look.it.is_readable is False
    with answering(200, listing(deployment("gpu"), deployment("cpu")), port=int(address.split(":")[1])):
        assert look.settled().replicas == {"cpu": 1, "gpu": 1}


def test_one_that_never_answers_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "GIVE_UP_S", 0.2)
    with silent() as address:
        look = Look(kubeconfig(tmp_path, f"http://{address}"), monkeypatch)
        assert look.settled().replicas is None


# -- purely -------------------------------------------------------------------------------------------------------------------


def replicas(*deployments: dict[str, Any]) -> dict[str, int]:
    found = deployments_of_pools(parsed("deployments", deployments), POOLS, "serve")
    return {pool: it.replicas for pool, it in found.items()}


def test_what_a_pool_was_last_told_to_run_counts_pods_that_are_not_there_yet() -> None:
    assert replicas(deployment(), deployment("cpu", replicas=2), deployment("gpu", replicas=3, ready=0)) == {
        "cpu": 2,
        "gpu": 3,
    }


def test_a_deployment_that_was_told_nothing_runs_one_and_none_is_none() -> None:
    unsaid, none = deployment("cpu"), deployment("gpu", replicas=0)
    del unsaid["spec"]["replicas"]
    assert replicas(unsaid, none) == {"cpu": 1, "gpu": 0}
    assert replicas() == {}
    assert replicas(deployment("another"), deployment("another", release="b")) == {}


def test_two_releases_with_one_pool_are_not_guessed_between() -> None:
    with pytest.raises(Unknowable, match=r"east-gpu.*west-gpu.*both.*'gpu'.*--release"):
        replicas(deployment("gpu", release="east"), deployment("gpu", release="west"))
