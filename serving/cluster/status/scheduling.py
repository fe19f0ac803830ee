"""Why does no node take this pod, and is one on its way? Pure: from the scheduler's words, nodes, volume claims and autoscalers' events."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from serving.cluster.fields import condition
from serving.cluster.gpus import told
from serving.cluster.status.snapshot import Event, Node, NodeClaim, Pod, Seen, Workload
from serving.cluster.taints import closed


@dataclass(frozen=True, slots=True)
class Reason:
    """`why` completes "waits: …". No way out: nothing is to be done but wait."""

    why: str
    way_out: str | None = None


def values_of(it: Pod | Workload) -> str:
    """Where the chart's values set what a pod is."""
    return f"pools.{it.pool}" if it.pool else it.component


def when(it: Event) -> float:
    return it.at.timestamp() if it.at else 0.0


def unscheduled(pod: Pod, reason: str, message: str, seen: Seen, now: datetime) -> Reason:
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
    values = values_of(pod)
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
        return f"it asks for {asked} and no node has more than {most}: {values_of(pod)}.gpu.count"
    others = sorted({resource for it in seen.nodes for resource in it.gpus if it.gpus[resource]})
    if others:
        name = f"{values_of(pod)}.gpu.resource"
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
    newest = max(said, key=when, default=None)
    return [f"{newest.source} buys none: {newest.message[:300]}"] if newest else []


# The life of a NodeClaim in order: condition, what stands when it is not yet true.
PHASES = (
    ("Launched", "is asked of the cloud"),
    ("Registered", "is bought and boots"),
    ("Initialized", "has joined and gets ready (driver, device plugin)"),
)


def node_on_its_way(pod: Pod, seen: Seen, now: datetime) -> str | None:
    """What completes "waits: …"; None if no node is known to come for it."""
    if coming := _claim_for(pod, seen):
        return f"node {coming.node or coming.name} is on its way: it {step(coming, now)}"
    triggered = [it for it in seen.events or () if it.pod == pod.name and it.reason == "TriggeredScaleUp"]
    if triggered:
        return f"a node is on its way: {triggered[-1].message[:300]}"
    return None


def is_on_its_way(it: NodeClaim) -> bool:
    done = condition(it.conditions, "Initialized")
    return not it.is_leaving and not (done and done.is_true)


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


def _claim_for(pod: Pod, seen: Seen) -> NodeClaim | None:
    """The NodeClaim that Karpenter named for it; failing that, for a GPU pod, one with such a card."""
    coming = [it for it in seen.node_claims or () if is_on_its_way(it)]
    said = [
        it.message
        for it in seen.events or ()
        if it.pod == pod.name and it.reason == "Nominated" and "nodeclaim/" in it.message
    ]
    named = {name for message in said for name in re.findall(r"nodeclaim/([^\s,]+)", message)}
    for it in coming:
        if it.name in named:
            return it
    return next((it for it in coming if any(it.gpus.get(resource) for resource in pod.gpus)), None)
