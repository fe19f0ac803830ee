"""How far is a Job's pod, and is it over? Pure: the Job, its pods and what was said of them in, Standing out.

Why a pod waits is `status.why`'s; here is only what is different of a Job. Rule: what may pass by itself is told and waited for; what
will not (an image that is not there, a secret that lacks) ends the campaign after a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from serving.cluster.api import Object
from serving.cluster.campaign.manifests import CONTAINER
from serving.cluster.fields import at, condition, conditions, name_of, one_line
from serving.cluster.status import reading
from serving.cluster.status.pod_problems import PULL, reason
from serving.cluster.status.snapshot import Container, Pod, Seen


class Phase(StrEnum):
    COMING = "coming"  # waits for something that may come: a node, its image on the way
    STUCK = "stuck"  # waits for something that nobody will bring unless somebody acts
    RUNS = "runs"  # its log can be read
    OVER = "over"  # it has ended; its log can be read while the pod is there


@dataclass(frozen=True, slots=True)
class Standing:
    phase: Phase
    pod: str | None = None
    says: str = ""  # one sentence, or nothing new
    code: int | None = None  # of the container, once it has ended
    is_timeout: bool = False
    is_gone: bool = False  # no pod is left, so there is no log
    is_deleted: bool = False  # nor is the Job


def standing(
    job: Object | None, pods: Sequence[Object], events: Sequence[Object], nodes: Sequence[Object], now: datetime
) -> Standing:
    """`events` of the pod or, without one, of the Job."""
    found = sorted(pods, key=lambda it: str(at(it, "metadata", "creationTimestamp", default="")))
    ended = _end_of_job(job)
    if not found:
        return _without_pod(job, ended, events)
    it = found[-1]
    pod, name = reading.pod(it), name_of(it)
    main = next((each for each in pod.containers if each.name == CONTAINER), None)
    if pod.phase in ("Succeeded", "Failed"):
        return Standing(Phase.OVER, name, _how_it_ended(pod, main), main.exit_code if main else None, _is_late(ended))
    if main is not None and main.is_running:
        return Standing(Phase.RUNS, name, is_timeout=_is_late(ended))
    if main is not None and main.exit_code is not None and not main.waits:  # ended; its pod's phase lags behind
        return Standing(Phase.OVER, name, code=main.exit_code, is_timeout=_is_late(ended))
    if pod.is_leaving:
        return Standing(Phase.COMING, name, "its pod is leaving")
    seen = Seen(
        str(at(it, "metadata", "namespace", default="")),
        events=tuple(map(reading.event, events)),
        nodes=tuple(map(reading.node, nodes)),
    )
    why = reason(pod, seen, now)
    is_stuck = main is not None and (main.waits in PULL or main.waits.endswith("Error"))
    return Standing(Phase.STUCK if is_stuck else Phase.COMING, name, _waits(pod, main, why.why if why else ""))


def _waits(pod: Pod, main: Container | None, why: str) -> str:
    if main is not None and main.waits in PULL:
        says = f": {main.message}" if main.message else ""
        return f"image {main.image} cannot be pulled ({main.waits}{says}); is it pushed, and is its name right? Give --image"
    return f"pod {pod.name} waits: {why}" if why else f"pod {pod.name} is about to start"


def _how_it_ended(pod: Pod, main: Container | None) -> str:
    if pod.reason in (
        "Evicted",
        "NodeShutdown",
        "Terminated",
        "Preempting",
        "NodeAffinity",
        "UnexpectedAdmissionError",
    ):
        return f"pod {pod.name} was ended by its node ({pod.reason}{': ' + pod.message if pod.message else ''})"
    if condition(pod.conditions, "DisruptionTarget") is not None:
        return f"pod {pod.name} was taken off its node ({_words(pod)})"
    if main is not None and main.ended == "OOMKilled":
        return f"pod {pod.name} was killed for memory: fewer requests a second, or fewer processes"
    return ""


def _words(pod: Pod) -> str:
    found = condition(pod.conditions, "DisruptionTarget")
    return "" if found is None else ": ".join(filter(None, (found.reason, found.message)))


def _end_of_job(job: Object | None) -> tuple[str, str] | None:
    """Reason and message of a Job that has failed."""
    failed = None if job is None else condition(conditions(job), "Failed")
    if failed is None and job is not None:
        failed = condition(conditions(job), "FailureTarget")  # before its pods are gone
    return (failed.reason, failed.message) if failed is not None and failed.is_true else None


def _is_late(ended: tuple[str, str] | None) -> bool:
    return ended is not None and ended[0] == "DeadlineExceeded"


def _without_pod(job: Object | None, ended: tuple[str, str] | None, events: Sequence[Object]) -> Standing:
    if job is None:
        why = "the Job is gone: somebody deleted it, perhaps who followed it as well and has its results"
        return Standing(Phase.OVER, says=why, is_gone=True, is_deleted=True)
    if ended is not None or _is_complete(job):
        why = "no pod is left of it: its node went, or somebody deleted it"
        late = _is_late(ended)
        return Standing(Phase.OVER, says="" if late else why, is_timeout=late, is_gone=True)
    refused = [one_line(it.get("message")) for it in events if it.get("reason") == "FailedCreate"]
    if refused:
        return Standing(Phase.STUCK, says=_refused(refused[-1]))
    return Standing(Phase.COMING)


def _is_complete(job: Object) -> bool:
    found = condition(conditions(job), "Complete")
    return found is not None and found.is_true


def _refused(said: str) -> str:
    """Why no pod is made, in the server's words, and the way out."""
    why = said.partition("is forbidden: ")[2] or said
    if "quota" in why:
        return f"no pod can be made: {why}; have the quota raised, or let the campaign have fewer `processes`"
    return f"no pod can be made: {why}"
