"""What is read of Deployments, pods and nodes: what was last told to run, and the moments of a cold start."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from serving.cluster.scaler.objects import SeveralReleases, is_there_to_stay, node_of, replicas, server
from serving.decisions.cold_start import Server
from tests.cluster.objects import deployment

POOLS = ("cpu", "gpu")


def at(second: int) -> str:
    return f"2026-11-20T12:00:{second:02}Z"


def seconds(second: int) -> float:
    return datetime.fromisoformat(at(second)).timestamp()


def conditions(**since: int) -> list[dict[str, Any]]:
    return [{"type": kind, "status": "True", "lastTransitionTime": at(second)} for kind, second in since.items()]


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "gpu-a", "creationTimestamp": at(1)},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", **status},
    }


RUNNING = [{"name": "triton", "state": {"running": {"startedAt": at(30)}}}]
NODE = {"metadata": {"name": "node-1", "creationTimestamp": at(8)}, "status": {"conditions": conditions(Ready=12)}}
CLAIMS = [
    {"metadata": {"name": "other", "creationTimestamp": at(0)}, "status": {"nodeName": "node-0"}},
    {"metadata": {"name": "mine", "creationTimestamp": at(2)}, "status": {"nodeName": "node-1"}},
    {"metadata": {"name": "new", "creationTimestamp": at(3)}},
]


def test_what_a_pool_was_last_told_to_run_counts_pods_that_are_not_there_yet() -> None:
    found = [deployment(), deployment("cpu", replicas=2), deployment("gpu", replicas=3, ready=0)]
    assert replicas(found, POOLS) == {"cpu": 2, "gpu": 3}


def test_a_deployment_that_was_told_nothing_runs_one_and_none_is_none() -> None:
    unsaid, none = deployment("cpu"), deployment("gpu", replicas=0)
    del unsaid["spec"]["replicas"]
    assert replicas([unsaid, none], POOLS) == {"cpu": 1, "gpu": 0}
    assert replicas([], POOLS) == {}
    assert replicas([deployment("another")], POOLS) == {}


def test_two_releases_with_one_pool_are_not_guessed_between() -> None:
    with pytest.raises(SeveralReleases, match="east-gpu and west-gpu are both of pool 'gpu'; name one with --release"):
        replicas([deployment("gpu", release="east"), deployment("gpu", release="west")], POOLS)


def test_a_ready_pod_tells_its_moments_and_its_node_too() -> None:
    it = pod(conditions=conditions(PodScheduled=14, Ready=40), containerStatuses=RUNNING)
    assert server(it, NODE, CLAIMS) == Server(
        "gpu-a", seconds(1), seconds(2), seconds(12), seconds(14), seconds(30), seconds(40)
    )
    assert node_of(it) == "node-1"


def test_where_nodes_may_not_be_seen_the_rest_is_told() -> None:
    it = pod(conditions=conditions(PodScheduled=14, Ready=40), containerStatuses=RUNNING)
    found = server(it, None, ())
    assert (found.node_created_at, found.node_ready_at, found.ready_at) == (None, None, seconds(40))
    assert server(it, NODE, ()).node_created_at == seconds(8)


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"conditions": None, "containerStatuses": None}, id="nulls"),
        pytest.param(
            {"conditions": [{"type": "PodScheduled", "status": "False", "lastTransitionTime": at(5)}]}, id="unscheduled"
        ),
        pytest.param({"conditions": [{"type": "Ready", "status": "True"}]}, id="no time"),
        pytest.param({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, id="creating"),
        pytest.param({"containerStatuses": [{"state": {"terminated": {"startedAt": at(3)}}}]}, id="it has ended"),
    ],
)
def test_what_has_not_happened_has_no_moment(status: dict[str, Any]) -> None:
    found = server({**pod(**status), "spec": {}}, None, CLAIMS)
    assert found == Server("gpu-a", created_at=seconds(1))


def test_pods_that_leave_or_have_ended_are_left_out() -> None:
    leaving = pod()
    leaving["metadata"]["deletionTimestamp"] = at(50)
    assert [is_there_to_stay(it) for it in (pod(), leaving, pod(phase="Failed"), pod(phase="Succeeded"))] == [
        True, False, False, False,
    ]  # fmt: skip
