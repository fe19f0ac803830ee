"""Why does this pod not serve, in one sentence, and what is the way out? Pure: a Pod and what was Seen in, a Reason out.

Asked in the order in which a pod comes up: made (`refused`), scheduled (`nodeless`), its containers one by one (`containers`).
The first that fails is the reason.
"""

from __future__ import annotations

import re
from datetime import datetime

from serving.cluster.fields import condition
from serving.cluster.status.containers import of_container
from serving.cluster.status.nodeless import unscheduled
from serving.cluster.status.reason import Reason, values_of
from serving.cluster.status.seen import Pod, Seen, Workload


def reason(pod: Pod, seen: Seen, now: datetime) -> Reason | None:
    """None for a pod that is ready."""
    if pod.is_leaving:
        return Reason("it is leaving: requests in flight end")
    if pod.phase == "Failed":
        return Reason(
            f"it failed as a whole ({pod.reason or 'no reason given'}{': ' + pod.message if pod.message else ''})",
            f"its Deployment has made another; kubectl --namespace {seen.namespace} delete pod {pod.name} tidies up",
        )
    if pod.is_ready:
        return None
    scheduled = condition(pod.conditions, "PodScheduled")
    if scheduled and not scheduled.is_true:
        return unscheduled(pod, scheduled.reason, scheduled.message, seen, now)
    for container in pod.containers:
        if found := of_container(container, pod, seen):
            return found
    if pod.node is None:
        return Reason("the scheduler has not looked at it yet", _unless_soon("kube-scheduler"))
    if node := next((it for it in seen.nodes or () if it.name == pod.node and not it.is_ready), None):
        says = f" ({node.not_ready})" if node.not_ready else ""
        return Reason(f"its node {pod.node} is not ready{says}", f"kubectl describe node {pod.node} says why")
    return Reason(
        f"node {pod.node} has not started it yet", f"kubectl --namespace {seen.namespace} describe pod {pod.name}"
    )


def refused(workload: Workload, seen: Seen) -> Reason | None:
    """Why a Deployment has fewer pods than it wants, where the API server refuses to make them."""
    failure = condition(workload.conditions, "ReplicaFailure")
    if failure and failure.is_true:
        return _refusal(failure.message, workload, seen)
    if workload.is_paused:
        return Reason(
            "its rollout is paused",
            f"kubectl --namespace {seen.namespace} rollout resume deployment {workload.name}",
        )
    if not workload.is_noticed:
        return Reason("its newest change has not been looked at yet", _unless_soon("kube-controller-manager"))
    return None


def _refusal(message: str, workload: Workload, seen: Seen) -> Reason:
    said = re.sub(r'^pods "[^"]*" is forbidden: ', "", message)
    if "exceeded quota" in message:
        return Reason(
            f"no pod can be made: {said}",
            f"raise the quota (kubectl --namespace {seen.namespace} describe quota), or ask for less: {values_of(workload)}.resources",
        )
    if "failed quota" in message:  # a quota on something that the pod does not state
        return Reason(f"no pod can be made: {said}", f"state it under {values_of(workload)}.resources")
    if "violates PodSecurity" in message:
        return Reason(
            f"the namespace's pod security refuses its pods: {said}",
            "the chart's own pods satisfy `restricted`: what was added to them (extra containers, volumes, a webhook's sidecar)?",
        )
    return Reason(f"no pod can be made: {said}", f"kubectl --namespace {seen.namespace} describe replicasets says more")


def _unless_soon(who: str) -> str:
    return f"if it stays so, {who} of this cluster does not work"
