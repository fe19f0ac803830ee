"""Why does this pod not serve, in one sentence, and what is the way out? Pure: a Pod and its ClusterSnapshot in, a Reason out.

Judged in the order in which a pod comes up: made (`refused`), scheduled (`scheduling`), then its containers one by one. The first that
fails is the reason.
"""

from __future__ import annotations

import re
from datetime import datetime

from serving.cluster.objects.fields import GATEWAY, TRITON, age_s, condition
from serving.cluster.objects.nodes import Node
from serving.cluster.objects.pods import Container, Deployment, Pod
from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.scheduling import LOOK_S, Reason, duration, unscheduled, values_of


def reason(pod: Pod, snapshot: ClusterSnapshot, now: datetime) -> Reason | None:
    """None for a pod that is ready."""
    if pod.leaves_by is not None:
        return _leaving(pod, snapshot, age_s(pod.leaves_by, now))
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
    if found := lost_node(snapshot.node(pod.node), now):
        return found
    return Reason(
        f"node {pod.node} has not started it yet", f"kubectl --namespace {snapshot.namespace} describe pod {pod.name}"
    )


GONE_S = 60.0  # after the time by which it had to be gone, until nobody is there who would end it; a guess


def _leaving(pod: Pod, snapshot: ClusterSnapshot, late_s: float) -> Reason:
    node = snapshot.node(pod.node)
    if late_s <= GONE_S:
        return Reason("it is leaving: requests in flight end")
    if pod.node is not None and snapshot.nodes is not None and node is None:
        where = f"its node {pod.node} is no more"
    elif node is not None and not node.is_ready:
        where = f"its node {pod.node} is not ready"
    else:
        where = f"node {pod.node} does not end it"
    force = f"kubectl --namespace {snapshot.namespace} delete pod {pod.name} --force, once the machine is surely off"
    return Reason(f"it had to be gone {duration(late_s)} ago, and {where}", force, is_for_ever=True)


def lost_node(node: Node | None, now: datetime) -> Reason | None:
    """None for one that is ready, or that nobody may see."""
    if node is None or node.is_ready:
        return None
    says = f" ({node.not_ready})" if node.not_ready else ""
    way_out = f"is the machine up, and its kubelet? kubectl describe node {node.name}"
    since_s = age_s(node.not_ready_since, now)
    return Reason(f"its node {node.name} is not ready{says}", way_out, is_for_ever=since_s > LOOK_S)


def refused(deployment: Deployment, snapshot: ClusterSnapshot) -> Reason | None:
    """Why a Deployment has fewer pods than it wants, where the API server refuses to make them."""
    failure = condition(deployment.conditions, "ReplicaFailure")
    if failure and failure.is_true:
        return _refusal(failure.message, deployment, snapshot)
    if deployment.is_paused:
        return Reason(
            "its rollout is paused",
            f"kubectl --namespace {snapshot.namespace} rollout resume deployment {deployment.name}",
            is_for_ever=True,
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
            is_for_ever=True,
        )
    if "failed quota" in message:  # a quota on something that the pod does not state
        return Reason(
            f"no pod can be made: {said}", f"state it under {values_of(deployment)}.resources", is_for_ever=True
        )
    if "violates PodSecurity" in message:
        return Reason(
            f"the namespace's pod security refuses its pods: {said}",
            "the chart's own pods satisfy `restricted`: what was added to them (extra containers, volumes, a webhook's sidecar)?",
            is_for_ever=True,
        )
    if "certificate has expired" in message:
        webhook = re.search(r'failed calling webhook "([^"]+)"', message)
        named = f" of webhook {webhook[1]}" if webhook else ""
        way_out = (
            "renew it, or take that away: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
        )
        return Reason(f"no pod can be made: the certificate{named} has expired ({said})", way_out, is_for_ever=True)
    way_out = f"kubectl --namespace {snapshot.namespace} describe replicasets says more"
    return Reason(f"no pod can be made: {said}", way_out, is_for_ever=True)


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
            is_for_ever=True,
        )
    if it.is_init and has_failed and not it.is_running and not it.is_ready:
        if it.name == VERIFY:
            why = f"{VERIFY} refuses the model repository (exit code {it.exit_code}{_words(it)}): a file changed after its gate"
            return Reason(
                f"{why}, or this server would compute a variant otherwise", f"read which: {logs}", is_for_ever=True
            )
        return Reason(f"its init container {it.name} fails{_end(it)}", logs, is_for_ever=True)
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
            is_for_ever=True,
        )
    if not it.is_init and it.is_running and not it.is_ready:
        return _not_ready(it, pod, logs)
    return None


def _creating(pod: Pod, snapshot: ClusterSnapshot) -> Reason:
    mounts = [it for it in snapshot.events or () if it.about == pod.name and it.reason == "FailedMount"]
    if mounts:
        newest = max(mounts, key=lambda it: it.at_s)
        return Reason(
            f"node {pod.node} cannot mount its volumes: {newest.message[:300]}",
            "does what it names exist?",
            is_for_ever=True,
        )
    return Reason(f"node {pod.node} pulls its image or mounts its volumes")


def _crash(it: Container, pod: Pod, logs: str) -> Reason:
    lasts = it.waits == "CrashLoopBackOff" or it.num_restarts > 1  # once is an accident
    if it.ended == "OOMKilled":
        return Reason(
            f"{it.name} was killed for memory{_times(it)}",
            f"raise {values_of(pod)}.resources.limits.memory",
            is_for_ever=lasts,
        )
    way_out = f"read why: {logs}"
    if it.exit_code == KILLED:
        way_out += "; 137 is a kill: its startup or liveness probe, or memory"
    if it.exit_code == NOT_ALLOWED:
        way_out += "; 126: the image's program may not be run by this user"
    return Reason(f"{it.name} ends again and again{_end(it)}{_times(it)}", way_out, is_for_ever=lasts)


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
