"""Can GPU pools get cards in this cluster? Pure: the resources there are, whether the device plugin works, which taints to tolerate."""

from __future__ import annotations

from collections.abc import Mapping

from serving.cluster.objects.fields import shortened
from serving.cluster.objects.gpus import GPU, listed, total
from serving.cluster.objects.nodes import Node, NodePool, closed
from serving.cluster.preflight.facts import Facts
from serving.cluster.preflight.requirements import POOL_TOLERATIONS, Requirements
from serving.documents.findings import Finding, State


def gpu_findings(facts: Facts, wanted: Requirements) -> tuple[Finding, ...]:
    """Required where a wanted pod asks for a card; one finding about cards, and others only where something is to be said."""
    is_required = bool(wanted.gpus)
    if facts.cluster.nodes is None:
        fix = "have an administrator run this, too; only a GPU pool needs it"
        return (Finding("GPU nodes", State.UNKNOWN, "this user may not see nodes", fix, is_required),)
    found = _cards(facts.cluster.nodes, facts.cluster.node_pools, wanted)
    return (
        found,
        *_device_plugin(facts.cluster.nodes, is_required and found.state is not State.OK),
        *_taints(facts, wanted),
    )


def _cards(nodes: tuple[Node, ...], node_pools: tuple[NodePool, ...] | None, wanted: Requirements) -> Finding:
    name, is_required = "GPU nodes", bool(wanted.gpus)
    requested = wanted.gpus or {GPU: 1}
    all_there = total(it.allocatable for it in nodes if it.is_usable)
    lacking = {resource: count for resource, count in requested.items() if all_there.get(resource, 0) < count}
    carrying = [it for it in nodes if it.capacity and it.is_usable]
    if not wanted.gpus and any(all_there.values()):
        lacking = {}  # any card will do where none is named
    if not lacking:
        there = {key: count for key, count in all_there.items() if count}
        found = f"{len(carrying)} {'carries' if len(carrying) == 1 else 'carry'} cards, allocatable: {listed(there)}"
        return Finding(name, State.OK, found, is_required=is_required)
    if not carrying and (pool := _buyer(node_pools)):
        found = f"none now; Karpenter's NodePool '{pool.name}' buys them ({pool.sign_of_gpu})"
        return Finding(name, State.OK, found, is_required=is_required)
    found, fix = _lack(nodes, carrying, lacking, all_there, node_pools)
    return Finding(name, State.MISSING, found, fix, is_required)


def _buyer(node_pools: tuple[NodePool, ...] | None) -> NodePool | None:
    """A NodePool that buys cards on demand, so that a cluster may have no GPU node now."""
    return next((it for it in node_pools or () if it.sign_of_gpu and it.is_ready), None)


def _lack(
    nodes: tuple[Node, ...],
    carrying: list[Node],
    lacking: Mapping[str, int],
    all_there: Mapping[str, int],
    node_pools: tuple[NodePool, ...] | None,
) -> tuple[str, str]:
    """The finding and the fix, for cards that are requested and missing."""
    resource, count = next(iter(lacking.items()))
    others = {key: num for key, num in all_there.items() if num and key not in lacking}
    if 0 < all_there.get(resource, 0) < count:
        return (
            f"{count} {resource} are asked for, {all_there[resource]} are allocatable",
            "add GPU nodes, or ask for fewer (pools.gpu.replicas)",
        )
    if others:
        return (
            f"none has {resource} allocatable, but there are {listed(others)}",
            f"name one of those (pools.gpu.gpu.resource={next(iter(others))}), or have the device plugin announce it: k8s/gpu-sharing/",
        )
    if carrying:
        announced = ", ".join(sorted({key for it in carrying for key in it.capacity}))
        found = f"{len(carrying)} {'carries' if len(carrying) == 1 else 'carry'} {announced}, 0 allocatable"
        return found, "the device plugin has stopped or calls the cards unhealthy: read its log on these nodes"
    if waiting := [it for it in nodes if it.capacity and not it.is_usable]:
        down = next((it.name for it in waiting if not it.is_cordoned), None)
        fix = f"kubectl describe node {down} says why" if down else "add GPU nodes: all that are there are cordoned"
        return "none with a card is ready and not cordoned", fix
    if broken := next((it for it in node_pools or () if it.sign_of_gpu), None):
        return (
            f"none, and Karpenter's NodePool '{broken.name}', which would buy them, is not ready ({broken.trouble or 'no word why'})",
            f"kubectl describe nodepool {broken.name}",
        )
    return (
        f"none carries {resource}",
        "for a GPU pool, add nodes with NVIDIA's driver and device plugin: k8s/gpu-nodes/ "
        "(an autoscaler's group that stands at zero is not seen here, Karpenter's aside)",
    )


def _device_plugin(nodes: tuple[Node, ...], is_required: bool) -> tuple[Finding, ...]:
    silent = [it for it in nodes if it.sign_of_gpu and not it.capacity and it.is_usable]
    if not silent:
        return ()
    names = shortened([it.name for it in silent])
    found = f"{names} should have a card ({silent[0].sign_of_gpu}) and announce{'s' if len(silent) == 1 else ''} none"
    fix = (
        "NVIDIA's driver or device plugin is missing there or still starting (minutes on a new node): "
        "kubectl get pods --all-namespaces | grep nvidia"
    )
    return (Finding("GPU device plugin", State.MISSING, found, fix, is_required),)


def _taints(facts: Facts, wanted: Requirements) -> tuple[Finding, ...]:
    """Taints of GPU nodes that the pools do not tolerate; nothing to say where no such node takes pods."""
    nodes = [it for it in facts.cluster.nodes or () if (it.capacity or it.sign_of_gpu) and not it.is_cordoned]
    pods = [it.spec for it in wanted.pods if it.spec.gpus]
    tolerations = [it.tolerations for it in pods] or [POOL_TOLERATIONS]
    barred = {it.name: [taint for each in tolerations for taint in closed(it.taints, each)] for it in nodes}
    if not nodes or any(not taints for taints in barred.values()):
        tolerated = sorted({str(taint) for it in nodes for taint in it.taints if taint.counts})
        if not tolerated:
            return ()
        return (Finding("GPU taints", State.OK, f"{', '.join(tolerated)}: tolerated", is_required=bool(pods)),)
    name, taints = next(iter(barred.items()))
    found = f"no GPU node lets the pool in: {name} has {', '.join(map(str, taints))}"
    fix = f"add to pools.gpu.tolerations: {taints[0].toleration}"
    return (Finding("GPU taints", State.MISSING, found, fix, is_required=bool(pods)),)
