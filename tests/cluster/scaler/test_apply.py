"""Which numbers are set and which pods may look for a node: only what is wanted, and never more at once."""

from __future__ import annotations

from typing import Any

import pytest

from serving.cluster.objects.pods import GATE, SCALED_BY, Deployment, Pod
from serving.cluster.scaler.apply import Applier, ScaleChange, pods_to_open, scale_changes
from serving.cluster.scaler.cluster_state import asked_for
from serving.cluster.scaler.leader import Leader, LeaderSnapshot
from tests.cluster.scaler.test_leader import Store

Json = dict[str, Any]


def deployment(replicas: int = 1, strategy: Json | None = None, note: Json | None = None) -> Deployment:
    return Deployment.parse(
        {
            "metadata": {
                "name": "tandem-gpu",
                "labels": {"tandem-pool": "gpu"},
                "annotations": {SCALED_BY: "scaler", **(note or {})},
            },
            "spec": {
                "replicas": replicas,
                "strategy": strategy or {"type": "Recreate"},
                "template": {"spec": {"schedulingGates": [{"name": GATE}]}},
            },
        }
    )


def pods(closed: int, opened: int = 0, leaving: int = 0) -> list[Pod]:
    made = []
    for number in range(closed + opened + leaving):
        gates = [{"name": GATE}] if number < closed else []
        metadata: Json = {"name": f"pod-{number}", "labels": {"tandem-pool": "gpu"}}
        if number >= closed + opened:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        made.append(Pod.parse({"metadata": metadata, "spec": {"schedulingGates": gates}, "status": {}}))
    return made


@pytest.mark.parametrize(("wanted", "changes"), [(0, [(1, 0)]), (1, []), (4, [(1, 4)]), (None, [])])
def test_a_number_is_set_where_another_is_wanted_and_left_where_nobody_knows(
    wanted: int | None, changes: list[tuple[int, int]]
) -> None:
    expected = tuple(ScaleChange("tandem-gpu", before, after) for before, after in changes)
    assert scale_changes({"gpu": deployment()}, {"gpu": wanted}, {"gpu": 0}) == expected


@pytest.mark.parametrize(("replicas", "wanted", "after"), [(1, None, 2), (2, None, None), (3, None, None), (1, 3, 3)])
def test_a_pool_has_its_fewest_before_any_number_is_known(replicas: int, wanted: int | None, after: int | None) -> None:
    changes = scale_changes({"gpu": deployment(replicas)}, {"gpu": wanted}, {"gpu": 2})
    assert [it.after for it in changes] == ([] if after is None else [after])


@pytest.mark.parametrize(
    ("replicas", "wanted", "there", "opened"),
    [
        (1, 0, pods(1), 0),  # an install: nobody wants it
        (1, None, pods(1), 0),
        (1, 1, pods(1), 1),
        (3, 3, pods(3), 3),
        (3, 3, pods(1, opened=2), 1),
        (5, 1, pods(5), 0),  # somebody else's number, before it is set right
        (1, 1, pods(4, opened=1), 0),  # after it was, while pods that were too many are still there
        (1, 1, pods(1, leaving=1), 1),
    ],
)
def test_as_many_pods_look_for_a_node_as_are_wanted(
    replicas: int, wanted: int | None, there: list[Pod], opened: int
) -> None:
    assert len(pods_to_open({"gpu": deployment(replicas)}, there, {"gpu": wanted})) == opened


@pytest.mark.parametrize(("surge", "opened"), [(0, 0), (1, 1), ("25%", 1), ("0%", 0)])
def test_a_rollout_may_have_its_surge(surge: int | str, opened: int) -> None:
    rolling = deployment(2, {"rollingUpdate": {"maxSurge": surge}})
    assert len(pods_to_open({"gpu": rolling}, pods(2, opened=2), {"gpu": 2})) == opened


def test_a_lease_of_another_shape_is_told_and_ends_nothing() -> None:
    said: list[str] = []
    published: list[LeaderSnapshot] = []
    store = Store()
    store.lease = {"metadata": {"resourceVersion": "1"}, "spec": {"leaseTransitions": "many"}}
    leader = Leader("tandem-scaler", "a")
    it = Applier({"gpu": 0}, leader, lambda _: 1, lambda found, _: published.append(found), said.append)
    for _ in range(2):
        it._look(store)
    assert len(said) == 1
    assert published[-1] == LeaderSnapshot(problem=said[0])
    assert "replicas" in said[0]


def test_what_a_new_pool_begins_with_was_asked_for_by_nobody() -> None:
    assert asked_for(deployment(), []) == 0
    assert asked_for(deployment(), pods(1)) == 0


def test_what_a_scaler_before_this_one_asked_for_is_not_forgotten() -> None:
    assert asked_for(deployment(), pods(0, opened=1)) == 1
    assert asked_for(deployment(), pods(1, leaving=1)) == 1, "its node is drained, and the next pod is made already"
    assert asked_for(deployment(2), pods(2)) == 2
    assert asked_for(deployment(0), []) == 0
    assert asked_for(deployment(note={"tandem-replicas": "1"}), pods(1)) == 1, "the chart has said it"
