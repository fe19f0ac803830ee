"""How far a Job's pod is, from objects as the server writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from serving.cluster.campaign.follow import stamped
from serving.cluster.campaign.job_status import JobStatus, Phase, job_status
from serving.cluster.objects.fields import Object
from serving.cluster.objects.pods import Job
from serving.cluster.snapshot import ClusterSnapshot
from tests.cluster.objects import parsed

NOW = datetime(2026, 11, 22, tzinfo=UTC)
JOB: Object = {"metadata": {"name": "j"}, "status": {}}


def failed(reason: str) -> Object:
    return {
        "metadata": {"name": "j"},
        "status": {"conditions": [{"type": "Failed", "status": "True", "reason": reason}]},
    }


COMPLETE: Object = {"metadata": {"name": "j"}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}


def pod(phase: str = "Pending", state: Object | None = None, **status: Any) -> Object:
    container = {"name": "campaign", "image": "x/load:1", "restartCount": 0, "state": state or {}}
    statuses = {"containerStatuses": [container]} if state else {}
    spec = {"nodeName": "n", "containers": [{"name": "campaign"}]}
    if phase == "Pending" and not state:
        spec.pop("nodeName")
    return {
        "metadata": {"name": "j-1", "namespace": "serve"},
        "spec": spec,
        "status": {"phase": phase, **statuses, **status},
    }


def waiting(reason: str, message: str = "") -> Object:
    return pod(state={"waiting": {"reason": reason, "message": message}})


def ended(code: int, reason: str = "Error", **status: Any) -> Object:
    return pod("Failed" if code else "Succeeded", {"terminated": {"exitCode": code, "reason": reason}}, **status)


UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
}


def look(*pods: Object, job: Object | None = JOB, events: list[Object] | None = None) -> JobStatus:
    found = ClusterSnapshot("serve", pods=parsed("pods", pods), events=parsed("events", events or []))
    return job_status(job and Job.parse(job), found, NOW)


@pytest.mark.parametrize(
    ("it", "phase", "says"),
    [
        (
            pod(conditions=[UNSCHEDULED]),
            Phase.COMING,
            "waits: no node takes it: 0/3 nodes are available: 3 Insufficient cpu",
        ),
        (waiting("ContainerCreating"), Phase.COMING, "pulls its image"),
        (waiting("ErrImagePull", "not found"), Phase.STUCK, "x/load:1 cannot be pulled (ErrImagePull: not found)"),
        (waiting("ImagePullBackOff"), Phase.STUCK, "Give --image"),
        (waiting("CreateContainerConfigError", 'secret "client" not found'), Phase.STUCK, 'secret "client" not found'),
        (pod("Running", {"running": {}}), Phase.RUNS, ""),
        (ended(0, "Completed"), Phase.OVER, ""),
        (ended(1), Phase.OVER, ""),
        (ended(137, "OOMKilled"), Phase.OVER, "killed for memory"),
        (
            pod("Failed", reason="Evicted", message="low on memory"),
            Phase.OVER,
            "ended by its node (Evicted: low on memory)",
        ),
        (
            ended(143, conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]),
            Phase.OVER,
            "taken off its node (PreemptionByScheduler)",
        ),
    ],
)
def test_a_pod_stands_where_its_status_says(it: Object, phase: Phase, says: str) -> None:
    found = look(it)
    assert found.phase is phase
    assert (says in found.says) if says else (found.says == "")


def test_how_the_container_ended_is_kept() -> None:
    assert look(ended(2)).code == 2


def test_a_container_that_ended_is_over_before_its_pod_says_so() -> None:
    assert look(pod("Running", {"terminated": {"exitCode": 1}})).phase is Phase.OVER


@pytest.mark.parametrize(
    ("job", "phase", "says"),
    [
        (None, Phase.OVER, "somebody deleted it"),
        (JOB, Phase.COMING, ""),
        (failed("BackoffLimitExceeded"), Phase.OVER, "no pod is left of it"),
        (COMPLETE, Phase.OVER, "no pod is left of it"),
    ],
)
def test_without_a_pod_the_job_tells(job: Object | None, phase: Phase, says: str) -> None:
    found = look(job=job)
    assert found.phase is phase
    assert says in found.says
    assert found.is_gone == (phase is Phase.OVER)
    assert found.is_deleted == (job is None)


def test_time_that_is_over_is_told_as_such_with_and_without_its_pod() -> None:
    assert look(job=failed("DeadlineExceeded")).is_timeout
    assert look(ended(130), job=failed("DeadlineExceeded")).is_timeout
    assert not look(ended(130)).is_timeout


def test_a_pod_that_cannot_be_made_is_told_in_the_servers_words() -> None:
    said = 'Error creating: pods "j-x" is forbidden: exceeded quota: team, requested: cpu=1'
    found = look(events=[{"reason": "FailedCreate", "message": said}])
    assert found.phase is Phase.STUCK
    assert "exceeded quota: team, requested: cpu=1" in found.says


def test_of_several_pods_the_newest_counts() -> None:
    old = {**ended(1), "metadata": {"name": "old", "creationTimestamp": "2026-11-22T00:00:00Z"}}
    new = {**pod("Running", {"running": {}}), "metadata": {"name": "new", "creationTimestamp": "2026-11-22T00:00:09Z"}}
    assert look(new, old).pod == "new"


@pytest.mark.parametrize(
    ("line", "at", "text"),
    [
        ("1970-01-01T00:00:02.5Z said", (2, "500000000"), "said"),
        ("1970-01-01T01:00:02.000000001+01:00 a  b", (2, "000000001"), "a  b"),
        ("1970-01-01T00:00:02Z ", (2, "000000000"), ""),
        ("no stamp at all", None, "no stamp at all"),
    ],
)
def test_stamps_are_read_in_any_zone_and_compare_in_order(line: str, at: tuple[int, str] | None, text: str) -> None:
    assert stamped(line) == (at, text)
