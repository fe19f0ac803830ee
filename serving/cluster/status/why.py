"""Why does this pod not serve, in one sentence, and what is the way out? Pure: a Pod and what was Seen in, a Reason out.

Asked in the order in which a pod comes up: made, scheduled (a node), its init containers, its image, its start, its readiness. The first
that fails is the reason. Reasons to make no pod at all are in `refused`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from serving.cluster.fields import condition
from serving.cluster.gpus import told
from serving.cluster.status.seen import GATEWAY, TRITON, Container, Event, Node, Pod, Seen, Workload
from serving.cluster.status.waiting_for_nodes import node_on_its_way
from serving.cluster.taints import closed

PULL = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable")
VERIFY = "verify-models"  # the chart's init container that checks digests
NOT_ALLOWED = 126  # a shell's, and the runtime's, exit code for a program that may not be run
KILLED = 137  # 128 + SIGKILL: out of memory, or longer in stopping than its grace period


@dataclass(frozen=True, slots=True)
class Reason:
    """`why` completes "waits: …". No way out: nothing is to be done but wait."""

    why: str
    way_out: str | None = None


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
        return _unscheduled(pod, scheduled.reason, scheduled.message, seen, now)
    for container in pod.containers:
        if found := _container(container, pod, seen):
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
            f"raise the quota (kubectl --namespace {seen.namespace} describe quota), or ask for less: {_values(workload)}.resources",
        )
    if "failed quota" in message:  # a quota on something that the pod does not state
        return Reason(f"no pod can be made: {said}", f"state it under {_values(workload)}.resources")
    if "violates PodSecurity" in message:
        return Reason(
            f"the namespace's pod security refuses its pods: {said}",
            "the chart's own pods satisfy `restricted`: what was added to them (extra containers, volumes, a webhook's sidecar)?",
        )
    return Reason(f"no pod can be made: {said}", f"kubectl --namespace {seen.namespace} describe replicasets says more")


def _values(it: Pod | Workload) -> str:
    """Where the chart's values set what a pod is."""
    return f"pools.{it.pool}" if it.pool else it.component


def _unless_soon(who: str) -> str:
    return f"if it stays so, {who} of this cluster does not work"


# -- no node yet ------------------------------------------------------------------------------------------------------


def _unscheduled(pod: Pod, reason: str, message: str, seen: Seen, now: datetime) -> Reason:
    if reason == "SchedulingGated":
        return Reason(
            "it is held back by a scheduling gate", "whatever set the gate must lift it: a queue such as Kueue?"
        )
    if found := _claim(pod, message, seen):
        return found
    if coming := node_on_its_way(pod, seen, now):
        return Reason(coming)
    said = message.split(". ")[0].rstrip(".")  # what follows is about preemption
    why = f"no node takes it: {said}" if said else "no node has been found for it yet"
    return Reason(why, "; ".join([*_ways_to_a_node(pod, message, seen), *_autoscaler_says(pod, seen)]))


def _claim(pod: Pod, message: str, seen: Seen) -> Reason | None:
    there = {it.name: it for it in seen.claims or ()}
    for name in pod.claims:
        if seen.claims is not None and name not in there:
            return Reason(
                f"there is no PersistentVolumeClaim '{name}'", "make it, or name another: modelRepository.claimName"
            )
        if (found := there.get(name)) and found.phase != "Bound" and "PersistentVolumeClaim" in message:
            named = f"storage class '{found.storage_class}'" if found.storage_class else "no storage class"
            return Reason(
                f"its PersistentVolumeClaim '{name}' is {found.phase or 'not bound'} ({named})",
                f"kubectl --namespace {seen.namespace} describe pvc {name} says why",
            )
    return None


def _ways_to_a_node(pod: Pod, message: str, seen: Seen) -> list[str]:
    ways = []
    values = _values(pod)
    if "untolerated taint" in message or "taints that the pod didn't tolerate" in message:
        ways += [f"add to {values}.tolerations, if those nodes are meant: {it}" for it in _barring(pod, seen)]
    if "node affinity/selector" in message:
        ways.append(f"no node fits {values}.nodeSelector or affinity")
    if pod.gpus and not ways:
        ways.append(_way_to_a_card(pod, seen))
    if short := re.findall(r"Insufficient (cpu|memory|ephemeral-storage)|Too many (pods)", message):
        names = ", ".join(sorted({resource or pods for resource, pods in short}))
        ways.append(f"add a node, or ask for less ({names}): {values}.resources")
    return ways or [f"kubectl --namespace {seen.namespace} describe pod {pod.name} says more"]


def _barring(pod: Pod, seen: Seen) -> list[str]:
    """Tolerations that would let it onto nodes with what it asks for; the scheduler of newer servers names no taint."""
    meant = [it for it in seen.nodes or () if not pod.gpus or _can_hold(it, pod)]
    barring = [taint for it in meant for taint in closed(it.taints, pod.tolerations)]
    return list(dict.fromkeys(it.toleration for it in barring))


def _can_hold(node: Node, pod: Pod) -> bool:
    return all(node.gpus.get(resource, 0) >= count for resource, count in pod.gpus.items())


def _way_to_a_card(pod: Pod, seen: Seen) -> str:
    asked = told(pod.gpus)
    if seen.nodes is None:
        return f"it asks for {asked}; this user may not see nodes"
    if holding := [it.name for it in seen.nodes if _can_hold(it, pod)]:
        return f"it asks for {asked}: free that on {', '.join(holding[:3])}, or add a node"
    if most := max((it.gpus.get(resource, 0) for it in seen.nodes for resource in pod.gpus), default=0):
        return f"it asks for {asked} and no node has more than {most}: {_values(pod)}.gpu.count"
    others = sorted({resource for it in seen.nodes for resource in it.gpus if it.gpus[resource]})
    if others:
        name = f"{_values(pod)}.gpu.resource"
        return f"it asks for {asked} and no node carries that, but some carry {', '.join(others)}: {name}"
    return f"it asks for {asked} and no node carries that: `tandem cluster preflight --gpu` says what lacks"


def _autoscaler_says(pod: Pod, seen: Seen) -> list[str]:
    """What Karpenter or Cluster Autoscaler last said about it; the scheduler's own FailedScheduling is known already."""
    said = [
        it
        for it in seen.events or ()
        if it.pod == pod.name
        and ((it.reason == "FailedScheduling" and it.source == "karpenter") or it.reason == "NotTriggerScaleUp")
    ]
    newest = max(said, key=_when, default=None)
    return [f"{newest.source} buys none: {newest.message[:300]}"] if newest else []


def _when(it: Event) -> float:
    return it.at.timestamp() if it.at else 0.0


# -- on a node --------------------------------------------------------------------------------------------------------


def _container(it: Container, pod: Pod, seen: Seen) -> Reason | None:
    logs = f"kubectl --namespace {seen.namespace} logs {pod.name} -c {it.name}"
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
        return _creating(pod, seen)
    if it.waits:  # CreateContainerConfigError, RunContainerError ...
        return Reason(
            f"{it.name} cannot be started ({it.waits}{': ' + it.message if it.message else ''})",
            f"kubectl --namespace {seen.namespace} describe pod {pod.name} says more",
        )
    if not it.is_init and it.is_running and not it.is_ready:
        return _not_ready(it, pod, logs)
    return None


def _creating(pod: Pod, seen: Seen) -> Reason:
    mounts = [it for it in seen.events or () if it.pod == pod.name and it.reason == "FailedMount"]
    if mounts:
        newest = max(mounts, key=_when)
        return Reason(f"node {pod.node} cannot mount its volumes: {newest.message[:300]}", "does what it names exist?")
    return Reason(f"node {pod.node} pulls its image or mounts its volumes")


def _crash(it: Container, pod: Pod, logs: str) -> Reason:
    if it.ended == "OOMKilled":
        return Reason(f"{it.name} was killed for memory{_times(it)}", f"raise {_values(pod)}.resources.limits.memory")
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
