"""Do these facts about a cluster allow an installation, and what is the fix where they do not? Pure: Facts in, findings out.

How the facts are had is in `facts`. Required is what the chart's default needs; the rest is optional and says what it is for.
Rule: what could not be seen is `unknown`, never `ok`, and every finding that is not `ok` has a fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from serving.cluster.facts import GPU, INSTALLED, Api, Facts, Node

MIN_SERVER_VERSION = (1, 30)  # kubeVersion of helm/tandem/Chart.yaml, which says why; a test compares them


class State(StrEnum):
    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: State
    found: str
    fix: str | None = None  # None exactly where the state is ok
    is_required: bool = True

    def __post_init__(self) -> None:
        assert (self.fix is None) == (self.state is State.OK), self


def findings(facts: Facts) -> tuple[Finding, ...]:
    """In the order in which somebody would mend them."""
    return (
        _server_version(facts.server_version),
        _namespace(facts),
        _rights(facts),
        _nodes(facts.nodes),
        _gpus(facts.nodes),
        _metrics(facts.metrics),
        _optional_kind(
            "Karpenter",
            "NodePool",
            facts.node_pools,
            "buys GPU nodes on demand: https://karpenter.sh, then k8s/gpu-nodes/",
        ),
        _optional_kind("KEDA", "ScaledObject", facts.scaled_objects, "scales pools to zero and back: https://keda.sh"),
    )


def exit_status(found: Iterable[Finding]) -> int:
    """0 all that is required is there; 1 something is missing; 3 nothing is known to be, but not all could be seen."""
    states = {it.state for it in found if it.is_required}
    if State.MISSING in states:
        return 1
    return 3 if State.UNKNOWN in states else 0


def _server_version(text: str) -> Finding:
    needed = f"{MIN_SERVER_VERSION[0]}.{MIN_SERVER_VERSION[1]}"
    numbers = re.match(r"v?(\d+)\.(\d+)", text)
    if not numbers:
        fix = f"compare it with the {needed} that the chart needs"
        return Finding("server version", State.UNKNOWN, f"'{text}' cannot be read", fix)
    if (int(numbers[1]), int(numbers[2])) < MIN_SERVER_VERSION:
        return Finding("server version", State.MISSING, f"{text} is too old", f"upgrade to {needed} or newer")
    return Finding("server version", State.OK, f"{text} ({needed} or newer is needed)")


def _namespace(facts: Facts) -> Finding:
    name = facts.namespace
    if facts.has_namespace is None:
        fix = f"have an administrator look: kubectl get namespace {name}"
        return Finding("namespace", State.UNKNOWN, f"this user may not see '{name}'", fix)
    if not facts.has_namespace:
        return Finding("namespace", State.MISSING, f"there is no '{name}'", f"kubectl create namespace {name}")
    return Finding("namespace", State.OK, f"'{name}' exists")


def _rights(facts: Facts) -> Finding:
    if facts.denied:
        # `edit` is a role that every cluster has; it holds all of INSTALLED.
        fix = (
            "an administrator: kubectl create rolebinding tandem-installer --clusterrole=edit "
            f"--namespace={facts.namespace} --user=YOU"
        )
        return Finding("rights", State.MISSING, f"may not create {', '.join(facts.denied)} in '{facts.namespace}'", fix)
    created = ", ".join(resource for _, resource in INSTALLED)
    return Finding("rights", State.OK, f"may create {created} in '{facts.namespace}'")


def _nodes(nodes: tuple[Node, ...] | None) -> Finding:
    if nodes is None:
        return Finding("nodes", State.UNKNOWN, "this user may not see nodes", "have an administrator run this, too")
    if not nodes:
        return Finding("nodes", State.MISSING, "there is none", "add one; an autoscaler's group may stand at zero")
    num_ready, num_cordoned = sum(it.is_ready for it in nodes), sum(it.is_cordoned for it in nodes)
    found = f"{num_ready} of {len(nodes)} ready" + (f", {num_cordoned} cordoned" if num_cordoned else "")
    if any(map(_is_usable, nodes)):
        return Finding("nodes", State.OK, found)
    fix = "kubectl uncordon NAME" if num_ready else "kubectl describe nodes says why"
    return Finding("nodes", State.MISSING, found, fix)


def _gpus(nodes: tuple[Node, ...] | None) -> Finding:
    name = "GPU nodes"
    if nodes is None:
        fix = "have an administrator run this, too; only a GPU pool needs it"
        return Finding(name, State.UNKNOWN, "this user may not see nodes", fix, is_required=False)
    carrying = [it for it in nodes if it.num_gpus and _is_usable(it)]
    waiting = [it.name for it in nodes if it.num_gpus and not _is_usable(it)]
    if not carrying and waiting:
        found = f"none that carries {GPU} is ready and not cordoned"
        fix = f"kubectl describe node {waiting[0]} says why"
        return Finding(name, State.MISSING, found, fix, is_required=False)
    if not carrying:
        fix = "for a GPU pool, add nodes with NVIDIA's driver and device plugin: k8s/README.md"
        return Finding(name, State.MISSING, f"none carries {GPU}", fix, is_required=False)
    num_allocatable = sum(it.num_allocatable_gpus for it in carrying)
    found = f"{len(carrying)} {'carries' if len(carrying) == 1 else 'carry'} {GPU}, {num_allocatable} allocatable"
    if not num_allocatable:
        fix = "the device plugin has stopped or calls the cards unhealthy: read its log on these nodes"
        return Finding(name, State.MISSING, found, fix, is_required=False)
    return Finding(name, State.OK, found, is_required=False)


def _is_usable(node: Node) -> bool:
    return node.is_ready and not node.is_cordoned


def _metrics(api: Api) -> Finding:
    name = "metrics API"
    if api is Api.SERVED:
        return Finding(name, State.OK, "metrics.k8s.io is served", is_required=False)
    if api is Api.BROKEN:
        fix = "kubectl describe apiservice v1beta1.metrics.k8s.io says why"
        return Finding(name, State.MISSING, "metrics.k8s.io is registered but does not answer", fix, is_required=False)
    fix = "install metrics-server if a pool is to scale by CPU use (autoscaling.enabled)"
    return Finding(name, State.MISSING, "metrics.k8s.io is not served", fix, is_required=False)


def _optional_kind(name: str, kind: str, api: Api, purpose: str) -> Finding:
    if api is Api.SERVED:
        return Finding(name, State.OK, f"{kind} is served", is_required=False)
    return Finding(name, State.MISSING, f"{kind} is not served", f"it {purpose}", is_required=False)
