"""Why does this pod not serve, in one sentence, and what is the way out? Pure: a Pod and its ClusterSnapshot in, a Reason out.

Judged in the order in which a pod comes up: made (`refused`), scheduled (`scheduling`), then its containers one by one. The first that
fails is the reason.
"""

from __future__ import annotations

import re
from datetime import datetime

from serving.cluster.objects.fields import GATEWAY, TRITON, condition
from serving.cluster.objects.pods import Container, Deployment, Pod
from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.scheduling import Reason, unscheduled, values_of


def reason(pod: Pod, snapshot: ClusterSnapshot, now: datetime) -> Reason | None:
    """None for a pod that is ready."""
    if pod.is_leaving:
        return Reason("it is leaving: requests in flight end")
    if pod.phase == "Failed":
        return Reason(
            f"it failed as a whole ({pod.reason or 'no reason given'}{': ' + pod.message if pod.message else ''})",
            f"its Deployment has made another; kubectl --namespace {snapshot.namespace} delete pod {pod.name} tidies up",
        )
    if pod.is_ready:
        return None
    scheduled = condition(pod.conditions, "PodScheduled")
    if scheduled and not scheduled.is_true:
        return unscheduled(pod, scheduled.reason, scheduled.message, snapshot, now)
    for container in pod.containers:
        if found := of_container(container, pod, snapshot):
            return found
    if pod.node is None:
        return Reason("the scheduler has not looked at it yet", _unless_soon("kube-scheduler"))
    if (node := snapshot.node(pod.node)) and not node.is_ready:
        says = f" ({node.not_ready})" if node.not_ready else ""
        return Reason(f"its node {pod.node} is not ready{says}", f"kubectl describe node {pod.node} says why")
    return Reason(
        f"node {pod.node} has not started it yet", f"kubectl --namespace {snapshot.namespace} describe pod {pod.name}"
    )


def refused(deployment: Deployment, snapshot: ClusterSnapshot) -> Reason | None:
    """Why a Deployment has fewer pods than it wants, where the API server refuses to make them."""
    failure = condition(deployment.conditions, "ReplicaFailure")
    if failure and failure.is_true:
        return _refusal(failure.message, deployment, snapshot)
    if deployment.is_paused:
        return Reason(
            "its rollout is paused",
            f"kubectl --namespace {snapshot.namespace} rollout resume deployment {deployment.name}",
        )
    if not deployment.is_observed:
        return Reason("its newest change has not been looked at yet", _unless_soon("kube-controller-manager"))
    return None


def _refusal(message: str, deployment: Deployment, snapshot: ClusterSnapshot) -> Reason:
    said = re.sub(r'^pods "[^"]*" is forbidden: ', "", message)
    if "exceeded quota" in message:
        return Reason(
            f"no pod can be made: {said}",
            f"raise the quota (kubectl --namespace {snapshot.namespace} describe quota), or ask for less: "
            f"{values_of(deployment)}.resources",
        )
    if "failed quota" in message:  # a quota on something that the pod does not state
        return Reason(f"no pod can be made: {said}", f"state it under {values_of(deployment)}.resources")
    if "violates PodSecurity" in message:
        return Reason(
            f"the namespace's pod security refuses its pods: {said}",
            "the chart's own pods satisfy `restricted`: what was added to them (extra containers, volumes, a webhook's sidecar)?",
        )
    return Reason(
        f"no pod can be made: {said}", f"kubectl --namespace {snapshot.namespace} describe replicasets says more"
    )


def _unless_soon(who: str) -> str:
    return f"if it stays so, {who} of this cluster does not work"


PULL = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable")
VERIFY = "verify-models"  # the chart's init container that checks digests
NOT_ALLOWED = 126  # a shell's, and the runtime's, exit code for a program that may not be run
KILLED = 137  # 128 + SIGKILL: out of memory, or longer in stopping than its grace period


def of_container(it: Container, pod: Pod, snapshot: ClusterSnapshot) -> Reason | None:
    logs = f"kubectl --namespace {snapshot.namespace} logs {pod.name} -c {it.name}"
    has_failed = it.exit_code not in (None, 0)
    if it.waits in PULL:
        says = f": {it.message}" if it.message else ""
        return Reason(
            f"its image {it.image} cannot be pulled ({it.waits}{says})",
            "is the name right (imageRegistry, images.*), is it pushed, and do imagePullSecrets let the cluster in?",
        )
    if it.is_init and has_failed and not it.is_running and not it.is_ready:
        if it.name == VERIFY:
            why = f"{VERIFY} refuses the model repository (exit code {it.exit_code}{_words(it)}): a file changed after its gate"
            return Reason(f"{why}, or this server would compute a variant otherwise", f"read which: {logs}")
        return Reason(f"its init container {it.name} fails{_end(it)}", logs)
    if it.waits == "CrashLoopBackOff" or (has_failed and not it.is_running and not it.is_init):
        return _crash(it, pod, f"{logs} --previous")
    if it.is_init and it.is_running and not it.is_ready:  # a sidecar that runs is ready, and no reason
        return Reason(f"its init container {it.name} is at work", f"if it lasts: {logs}")
    if it.waits in ("ContainerCreating", "PodInitializing"):
        return _creating(pod, snapshot)
    if it.waits:  # CreateContainerConfigError, RunContainerError ...
        return Reason(
            f"{it.name} cannot be started ({it.waits}{': ' + it.message if it.message else ''})",
            f"kubectl --namespace {snapshot.namespace} describe pod {pod.name} says more",
        )
    if not it.is_init and it.is_running and not it.is_ready:
        return _not_ready(it, pod, logs)
    return None


def _creating(pod: Pod, snapshot: ClusterSnapshot) -> Reason:
    mounts = [it for it in snapshot.events or () if it.about == pod.name and it.reason == "FailedMount"]
    if mounts:
        newest = max(mounts, key=lambda it: it.at_s)
        return Reason(f"node {pod.node} cannot mount its volumes: {newest.message[:300]}", "does what it names exist?")
    return Reason(f"node {pod.node} pulls its image or mounts its volumes")


def _crash(it: Container, pod: Pod, logs: str) -> Reason:
    if it.ended == "OOMKilled":
        return Reason(f"{it.name} was killed for memory{_times(it)}", f"raise {values_of(pod)}.resources.limits.memory")
    way_out = f"read why: {logs}"
    if it.exit_code == KILLED:
        way_out += "; 137 is a kill: its startup or liveness probe, or memory"
    if it.exit_code == NOT_ALLOWED:
        way_out += "; 126: the image's program may not be run by this user"
    return Reason(f"{it.name} ends again and again{_end(it)}{_times(it)}", way_out)


def _not_ready(it: Container, pod: Pod, logs: str) -> Reason:
    before = f"; it ended before{_end(it)}{_times(it)}" if it.num_restarts else ""
    if not it.is_started:
        doing = "loads its models" if pod.component == TRITON else "starts"
        return Reason(f"{it.name} {doing} on node {pod.node}{before}", f"if it lasts: {logs}")
    if pod.component == TRITON:
        return Reason(f"{it.name} has started, but its first model is not ready{before}", f"read why: {logs}")
    if pod.component == GATEWAY:
        why = f"the gateway waits until every model that it must serve has answered{before}"
        return Reason(why, f"are the pools ready? {logs}")
    return Reason(f"{it.name} runs, but is not ready{before}", f"read why: {logs}")


def _end(it: Container) -> str:
    if it.exit_code is None:
        return ""
    named = f"{it.ended}, " if it.ended and it.ended != "Error" else ""
    return f" ({named}exit code {it.exit_code}{_words(it)})"


def _words(it: Container) -> str:
    return f": {it.last_words[-300:]}" if it.last_words else ""


def _times(it: Container) -> str:
    return f", started again {it.num_restarts} times" if it.num_restarts > 1 else ""
