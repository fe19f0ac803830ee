"""Why does no node take this pod, and is one on its way? Pure: from the scheduler's words, nodes, volume claims and autoscalers' events."""

from __future__ import annotations

import re
from datetime import datetime

from serving.cluster.gpus import told
from serving.cluster.status.reason import Reason, values_of, when
from serving.cluster.status.seen import Node, Pod, Seen
from serving.cluster.status.waiting_for_nodes import node_on_its_way
from serving.cluster.taints import closed


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
