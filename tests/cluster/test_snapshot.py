"""What a snapshot tells of a pod's start: the moments of the pod, of its node and of the claim that the node was bought by."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from serving.cluster.snapshot import ClusterSnapshot
from serving.decisions.cold_start import Server
from tests.cluster.objects import parsed


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


def server(it: Any, node: Any | None, claims: Any) -> Server:
    lists = {"pods": [it], "nodes": [node] if node else [], "node_claims": claims}
    found = ClusterSnapshot("serve", **{name: parsed(name, each) for name, each in lists.items()})
    assert found.pods is not None
    return found.server(found.pods[0])


def test_a_ready_pod_tells_its_moments_and_its_node_too() -> None:
    it = pod(conditions=conditions(PodScheduled=14, Ready=40), containerStatuses=RUNNING)
    assert server(it, NODE, CLAIMS) == Server(
        "gpu-a", seconds(1), seconds(2), seconds(12), seconds(14), seconds(30), seconds(40)
    )


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
