"""How far is a Job's pod, and is the Job over? Pure: the Job and a snapshot of its pods, their events and nodes in, JobStatus out.

`status.pod_problems` says why a pod waits; here is only what differs for a Job. Rule: what may pass by itself is reported and waited for;
what will not (a missing image or secret) ends the campaign after a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from serving.cluster.campaign.manifests import CONTAINER
from serving.cluster.objects.fields import Condition, condition, is_true
from serving.cluster.objects.namespace import Event
from serving.cluster.objects.pods import Container, Job, Pod
from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.pod_problems import PULL, reason

BY_ITS_NODE = ("Evicted", "NodeShutdown", "Terminated", "Preempting", "NodeAffinity", "UnexpectedAdmissionError")
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Phase(StrEnum):
    COMING = "coming"  # waits for something that may come: a node, its image on the way
    STUCK = "stuck"  # waits for something that nobody will bring unless somebody acts
    RUNS = "runs"  # its log can be read
    OVER = "over"  # it has ended; its log can be read while the pod is there


@dataclass(frozen=True, slots=True)
class JobStatus:
    phase: Phase
    pod: str | None = None
    says: str = ""  # one sentence, or nothing new
    code: int | None = None  # of the container, once it has ended
    is_timeout: bool = False
    is_gone: bool = False  # no pod is left, so there is no log
    is_deleted: bool = False  # nor is the Job


def job_status(job: Job | None, snapshot: ClusterSnapshot, now: datetime) -> JobStatus:
    """The snapshot's events are of the pod or, without one, of the Job."""
    failure = _failure(job)
    pod = max(reversed(snapshot.pods or ()), key=lambda it: it.created_at or LONG_AGO, default=None)
    if pod is None:
        return _without_pod(job, failure, snapshot.events or ())
    main, is_late = pod.container(CONTAINER), _is_late(failure)
    if pod.has_ended:
        return JobStatus(Phase.OVER, pod.name, _how_it_ended(pod, main), main.exit_code if main else None, is_late)
    if main is not None and main.is_running:
        return JobStatus(Phase.RUNS, pod.name, is_timeout=is_late)
    if main is not None and main.exit_code is not None and not main.waits:  # ended; its pod's phase lags behind
        return JobStatus(Phase.OVER, pod.name, code=main.exit_code, is_timeout=is_late)
    if pod.is_leaving:
        return JobStatus(Phase.COMING, pod.name, "its pod is leaving")
    why = reason(pod, snapshot, now)
    is_stuck = main is not None and (main.waits in PULL or main.waits.endswith("Error"))
    return JobStatus(Phase.STUCK if is_stuck else Phase.COMING, pod.name, _waits(pod, main, why.why if why else ""))


def _waits(pod: Pod, main: Container | None, why: str) -> str:
    if main is not None and main.waits in PULL:
        says = f": {main.message}" if main.message else ""
        return f"image {main.image} cannot be pulled ({main.waits}{says}); is it pushed, and is its name right? Give --image"
    return f"pod {pod.name} waits: {why}" if why else f"pod {pod.name} is about to start"


def _how_it_ended(pod: Pod, main: Container | None) -> str:
    if pod.reason in BY_ITS_NODE:
        return f"pod {pod.name} was ended by its node ({pod.reason}{': ' + pod.message if pod.message else ''})"
    if disruption := condition(pod.conditions, "DisruptionTarget"):
        words = ": ".join(filter(None, (disruption.reason, disruption.message)))
        return f"pod {pod.name} was taken off its node ({words})"
    if main is not None and main.ended == "OOMKilled":
        return f"pod {pod.name} was killed for memory: fewer requests a second, or fewer processes"
    return ""


def _failure(job: Job | None) -> Condition | None:
    """The Failed condition of a Job, or what is set before its pods are gone."""
    if job is None:
        return None
    failed = condition(job.conditions, "Failed") or condition(job.conditions, "FailureTarget")
    return failed if failed is not None and failed.is_true else None


def _is_late(failure: Condition | None) -> bool:
    return failure is not None and failure.reason == "DeadlineExceeded"


def _without_pod(job: Job | None, failure: Condition | None, events: Sequence[Event]) -> JobStatus:
    if job is None:
        why = "the Job is gone: somebody deleted it, perhaps who followed it as well and has its results"
        return JobStatus(Phase.OVER, says=why, is_gone=True, is_deleted=True)
    if failure is not None or is_true(job.conditions, "Complete"):
        is_late = _is_late(failure)
        why = "" if is_late else "no pod is left of it: its node went, or somebody deleted it"
        return JobStatus(Phase.OVER, says=why, is_timeout=is_late, is_gone=True)
    refusals = [it.message for it in events if it.reason == "FailedCreate"]
    return JobStatus(Phase.STUCK, says=_refusal(refusals[-1])) if refusals else JobStatus(Phase.COMING)


def _refusal(message: str) -> str:
    """Why no pod is made, in the server's words, and the way out."""
    why = message.partition("is forbidden: ")[2] or message
    more = "; have the quota raised, or let the campaign have fewer `processes`" if "quota" in why else ""
    return f"no pod can be made: {why}{more}"
