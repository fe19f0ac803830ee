"""Why does no node take this pod, and is one on its way? Pure: from the scheduler's words, nodes, volume claims and autoscalers' events."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from serving.cluster.objects.fields import age_s, condition
from serving.cluster.objects.gpus import listed
from serving.cluster.objects.namespace import Lease
from serving.cluster.objects.nodes import Node, NodeClaim, closed
from serving.cluster.objects.pods import GATE, Deployment, Pod
from serving.cluster.snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Reason:
    """`why` completes "waits: …". No way out: nothing is to be done but wait. `is_for_ever`: until somebody does something."""

    why: str
    way_out: str | None = None
    is_for_ever: bool = False


# Karpenter itself gives up a node that has not joined after as long (1.9). What takes longer is not on its way any more.
PATIENCE_S = 900.0
LOOK_S = (
    60.0  # in which an autoscaler that works has looked at a pod: Karpenter takes 10 s, Cluster Autoscaler too; a guess
)


def values_of(it: Pod | Deployment) -> str:
    """Where the chart's values set what a pod is."""
    return f"pools.{it.pool}" if it.pool else it.component


def unscheduled(pod: Pod, reason: str, message: str, snapshot: ClusterSnapshot, now: datetime) -> Reason:
    if reason == "SchedulingGated" and pod.spec.gates == (GATE,):
        return Reason(
            "the scaler has not asked for it yet, so no node is looked for",
            "nothing, if nobody needs it; if it stays so under load, read the scaler's log",
        )
    if reason == "SchedulingGated":
        return Reason(
            "it is held back by a scheduling gate", "whatever set the gate must lift it: a queue such as Kueue?"
        )
    if found := _claim(pod, message, snapshot):
        return found
    waited_s = age_s(pod.created_at, now)
    if coming := node_on_its_way(pod, snapshot, now):
        if waited_s <= PATIENCE_S:
            return Reason(coming)
        return Reason(coming, _way_to_what_does_not_come(pod, snapshot), is_for_ever=True)
    ways = _ways_to_a_node(pod, message, snapshot)
    if dead := _dead_buyer(snapshot, now):
        return Reason(f"{dead.why}, so no node is bought", dead.way_out, is_for_ever=True)
    if none_to_have := _no_capacity(pod, snapshot, now):
        return Reason(
            none_to_have,
            "; ".join(["allow another size, zone or spot, or raise the quota there", *ways]),
            waited_s > LOOK_S,
        )
    said = message.split(". ")[0].rstrip(".")  # what follows is about preemption
    why = f"no node takes it: {said}" if said else "no node has been found for it yet"
    buyer = _autoscaler_says(pod, snapshot)
    return Reason(why, "; ".join([*ways, *buyer]), is_for_ever=bool(buyer) or waited_s > LOOK_S)


def _way_to_what_does_not_come(pod: Pod, snapshot: ClusterSnapshot) -> str:
    claim = _claim_for(pod, snapshot)
    what = f"nodeclaim {claim.name}" if claim else f"--namespace {snapshot.namespace} pod {pod.name}"
    return f"it takes longer than {PATIENCE_S / 60:.0f} min: kubectl describe {what} says what its provider answers"


# Karpenter's words, about a claim that it then gives up and makes again: its provider has none, or its class cannot be used.
_NOT_TO_BE_HAD = ("InsufficientCapacityError", "NodeClassNotReady")


def _no_capacity(pod: Pod, snapshot: ClusterSnapshot, now: datetime) -> str | None:
    """What the cloud answered lately to who wanted to buy a node, of a pod that asks for a card or while nothing else is bought."""
    lately = [
        it for it in snapshot.claim_events or () if it.reason in _NOT_TO_BE_HAD and age_s(it.at, now) < PATIENCE_S
    ]
    said = [it for it in lately if it.at is None or pod.created_at is None or it.at >= pod.created_at]
    said += [it for it in snapshot.events or () if it.about == pod.name and it.reason == "FailedScaleUp"]
    newest = max(said, key=lambda it: it.at_s, default=None)
    if newest is None:
        return None
    words = re.sub(r"^NodeClaim \S+ event: ", "", newest.message)[:300]
    return f"the cloud has no node for it now ({newest.reason}: {words})"


# Who holds this Lease buys nodes.
BUYERS = {"karpenter-leader-election": "Karpenter", "cluster-autoscaler": "Cluster Autoscaler"}


def _dead_buyer(snapshot: ClusterSnapshot, now: datetime) -> Reason | None:
    """A node autoscaler that once worked here and does no more; None where another one does, or nobody knows."""
    held = [it for it in snapshot.leases or () if it.name in BUYERS]
    if not held or any(is_alive(it, now) for it in held):
        return None
    return dead(held[0], BUYERS[held[0].name], now)


def is_alive(it: Lease, now: datetime) -> bool:
    """Whether it was renewed lately; clocks of a node and of this machine may differ by some seconds."""
    return age_s(it.renewed_at, now) < LOOK_S


def dead(it: Lease, who: str, now: datetime) -> Reason:
    since = f"has not renewed its Lease {it.name} for {duration(age_s(it.renewed_at, now))}"
    return Reason(
        f"{who} does not work: it {since}", f"why? kubectl --namespace {it.namespace} get pods", is_for_ever=True
    )


def _claim(pod: Pod, message: str, snapshot: ClusterSnapshot) -> Reason | None:
    there = {it.name: it for it in snapshot.volume_claims or ()}
    for name in pod.spec.volume_claims:
        if snapshot.volume_claims is not None and name not in there:
            way_out = "make it, or name another: modelRepository.claimName"
            return Reason(f"there is no PersistentVolumeClaim '{name}'", way_out, is_for_ever=True)
        if (found := there.get(name)) and found.phase != "Bound" and "PersistentVolumeClaim" in message:
            named = f"storage class '{found.storage_class}'" if found.storage_class else "no storage class"
            return Reason(
                f"its PersistentVolumeClaim '{name}' is {found.phase or 'not bound'} ({named})",
                f"kubectl --namespace {snapshot.namespace} describe pvc {name} says why",
                is_for_ever=True,
            )
    return None


def _ways_to_a_node(pod: Pod, message: str, snapshot: ClusterSnapshot) -> list[str]:
    ways = []
    values = values_of(pod)
    if "untolerated taint" in message or "taints that the pod didn't tolerate" in message:
        ways += [f"add to {values}.tolerations, if those nodes are meant: {it}" for it in _barring(pod, snapshot)]
    if "node affinity/selector" in message:
        ways.append(f"no node fits {values}.nodeSelector or affinity")
    if pod.spec.gpus and not ways:
        ways.append(_way_to_a_card(pod, snapshot))
    if short := re.findall(r"Insufficient (cpu|memory|ephemeral-storage)|Too many (pods)", message):
        names = ", ".join(sorted({resource or pods for resource, pods in short}))
        ways.append(f"add a node, or ask for less ({names}): {values}.resources")
    return ways or [f"kubectl --namespace {snapshot.namespace} describe pod {pod.name} says more"]


def _barring(pod: Pod, snapshot: ClusterSnapshot) -> list[str]:
    """Tolerations that would let it onto nodes with what it asks for; the scheduler of newer servers names no taint."""
    usable = [it for it in snapshot.nodes or () if it.is_usable]
    meant = [it for it in usable if not pod.spec.gpus or _can_hold(it, pod)]
    barring = [taint for it in meant for taint in closed(it.taints, pod.spec.tolerations)]
    return list(dict.fromkeys(it.toleration for it in barring))


def _can_hold(node: Node, pod: Pod) -> bool:
    return all(node.allocatable.get(resource, 0) >= count for resource, count in pod.spec.gpus.items())


def _way_to_a_card(pod: Pod, snapshot: ClusterSnapshot) -> str:
    asked = listed(pod.spec.gpus)
    if snapshot.nodes is None:
        return f"it asks for {asked}; this user may not see nodes"
    if holding := [it for it in snapshot.nodes if _can_hold(it, pod)]:
        if usable := [it.name for it in holding if it.is_usable]:
            return f"it asks for {asked}: free that on {', '.join(usable[:3])}, or add a node"
        return f"it asks for {asked}, and nodes that carry it ({len(holding)}) are cordoned or not ready: add a node"
    if most := max((it.allocatable.get(resource, 0) for it in snapshot.nodes for resource in pod.spec.gpus), default=0):
        return f"it asks for {asked} and no node has more than {most}: {values_of(pod)}.gpu.count"
    others = sorted({resource for it in snapshot.nodes for resource in it.allocatable if it.allocatable[resource]})
    if others:
        name = f"{values_of(pod)}.gpu.resource"
        return f"it asks for {asked} and no node carries that, but some carry {', '.join(others)}: {name}"
    return f"it asks for {asked} and no node carries that: `tandem cluster preflight --gpu` says what lacks"


def _autoscaler_says(pod: Pod, snapshot: ClusterSnapshot) -> list[str]:
    """What Karpenter or Cluster Autoscaler last said about it; the scheduler's own FailedScheduling is known already."""
    said = [
        it
        for it in snapshot.events or ()
        if it.about == pod.name
        and ((it.reason == "FailedScheduling" and it.source == "karpenter") or it.reason == "NotTriggerScaleUp")
    ]
    newest = max(said, key=lambda it: it.at_s, default=None)
    return [f"{newest.source} buys none: {newest.message[:300]}"] if newest else []


# The life of a NodeClaim in order: condition, what stands when it is not yet true.
PHASES = (
    ("Launched", "is asked of the cloud"),
    ("Registered", "is bought and boots"),
    ("Initialized", "has joined and gets ready (driver, device plugin)"),
)


def node_on_its_way(pod: Pod, snapshot: ClusterSnapshot, now: datetime) -> str | None:
    """What completes "waits: …"; None if no node is known to come for it."""
    if coming := _claim_for(pod, snapshot):
        return f"node {coming.node or coming.name} is on its way: it {step(coming, now)}"
    said = [
        it
        for it in snapshot.events or ()
        if it.about == pod.name and it.reason in ("TriggeredScaleUp", "FailedScaleUp")
    ]
    newest = max(said, key=lambda it: it.at_s, default=None)
    if newest is not None and newest.reason == "TriggeredScaleUp":
        return f"a node is on its way: {newest.message[:300]}"
    return None


def step(it: NodeClaim, now: datetime) -> str:
    """How far it is, since when, and what its provider says if that fails."""
    for kind, doing in PHASES:
        found = condition(it.conditions, kind)
        if found and found.is_true:
            continue
        # A condition keeps its reason while it is open: AwaitingReconciliation, NodeNotFound; a message where something fails.
        says = f" ({found.reason}: {found.message})" if found and found.message and found.reason != found.kind else ""
        return f"{doing}{says}{_for(it, now)}"
    return f"is ready{_for(it, now)}"


def _for(it: NodeClaim, now: datetime) -> str:
    return f", asked for {duration((now - it.created_at).total_seconds())} ago" if it.created_at else ""


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"


def _claim_for(pod: Pod, snapshot: ClusterSnapshot) -> NodeClaim | None:
    """The NodeClaim that Karpenter named for it; failing that, for a GPU pod, one with such a card."""
    coming = [it for it in snapshot.node_claims or () if it.is_coming]
    said = [
        it.message
        for it in snapshot.events or ()
        if it.about == pod.name and it.reason == "Nominated" and "nodeclaim/" in it.message
    ]
    named = {name for message in said for name in re.findall(r"nodeclaim/([^\s,]+)", message)}
    for it in coming:
        if it.name in named:
            return it
    return next((it for it in coming if any(it.gpus.get(resource) for resource in pod.spec.gpus)), None)
