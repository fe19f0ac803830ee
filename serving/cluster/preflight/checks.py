"""Do these facts allow this installation, and what is the fix where they do not? Pure: Facts and Requirements in, findings out.

Required is what the installation needs as it is wanted; the rest is optional and says what it is for. What is about one subject stands in
`gpus`, `quotas`, `apis` and `images`; here are the order and what every cluster is asked first.
"""

from __future__ import annotations

import re

from serving.cluster.objects.nodes import Node
from serving.cluster.preflight.apis import apis, network_policies, storage
from serving.cluster.preflight.facts import Facts
from serving.cluster.preflight.finding import Finding, State, unseen
from serving.cluster.preflight.gpus import gpu_findings, gpu_sizes
from serving.cluster.preflight.images import images
from serving.cluster.preflight.quotas import limit_ranges, quotas
from serving.cluster.preflight.requirements import Requirements

MIN_SERVER_VERSION = (1, 30)  # kubeVersion of helm/tandem/Chart.yaml, which says why; a test compares them
IN_EDIT = {
    "deployments", "services", "configmaps", "serviceaccounts", "horizontalpodautoscalers", "networkpolicies", "secrets",
    "poddisruptionbudgets", "ingresses", "daemonsets", "jobs", "pods", "persistentvolumeclaims",
}  # fmt: skip
# what Kubernetes' own role `edit` may create; definitions that others install bring roles of their own, or none


def findings(facts: Facts, wanted: Requirements) -> tuple[Finding, ...]:
    """In the order in which somebody would mend them."""
    return (
        _server_version(facts.server_version),
        _namespace(facts),
        *_rights(facts),
        *_pod_security(facts),
        _nodes(facts.cluster.nodes),
        *gpu_findings(facts, wanted),
        *gpu_sizes(wanted),
        quotas(facts, wanted),
        limit_ranges(facts, wanted),
        storage(facts, wanted),
        *images(facts),
        *apis(facts, wanted),
        network_policies(wanted),
    )


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
        return unseen("namespace", f"'{name}'", f"get namespace {name}")
    if not facts.has_namespace:
        return Finding("namespace", State.MISSING, f"there is no '{name}'", f"kubectl create namespace {name}")
    return Finding("namespace", State.OK, f"'{name}' exists")


def _rights(facts: Facts) -> tuple[Finding, ...]:
    others = _more_rights(facts)
    if facts.denied:
        # `edit` is a role that every cluster has; with it, nothing has to be written.
        beyond = [it for it in facts.denied if it not in IN_EDIT]
        fix = (
            "an administrator: kubectl create rolebinding tandem-installer --clusterrole=edit "
            f"--namespace={facts.namespace} --user=YOU"
        )
        if beyond:
            fix += f"; {', '.join(beyond)} may need a role besides"
        found = f"may not create {', '.join(facts.denied)} in '{facts.namespace}'"
        return (Finding("rights", State.MISSING, found, fix), *others)
    return (Finding("rights", State.OK, f"may create all that is installed in '{facts.namespace}'"), *others)


def _more_rights(facts: Facts) -> tuple[Finding, ...]:
    if not facts.denied_optional:
        return ()
    fix = "nothing, unless you turn on what stands in brackets"
    found = f"may not create {', '.join(facts.denied_optional)}"
    return (Finding("more rights", State.MISSING, found, fix, is_required=False),)


def _pod_security(facts: Facts) -> tuple[Finding, ...]:
    """Nothing to say of a namespace that is not there yet."""
    return () if facts.has_namespace is False else (_enforced(facts),)


def _enforced(facts: Facts) -> Finding:
    name = "pod security"
    if facts.enforced is None:
        command = f"get namespace {facts.namespace} --show-labels"
        return unseen(name, "what the namespace enforces", command, is_required=False)
    if not facts.enforced:
        found = "the namespace's labels enforce nothing (a default of the whole cluster cannot be seen)"
        fix = f"the chart satisfies `restricted`: kubectl label namespace {facts.namespace} pod-security.kubernetes.io/enforce=restricted"
        return Finding(name, State.MISSING, found, fix, is_required=False)
    if facts.enforced not in ("privileged", "baseline", "restricted"):
        found = f"'{facts.enforced}' is no level, so the server takes the strictest"
        fix = f"kubectl label --overwrite namespace {facts.namespace} pod-security.kubernetes.io/enforce=restricted"
        return Finding(name, State.MISSING, found, fix, is_required=False)
    found = f"'{facts.enforced}' is enforced; the chart satisfies `restricted`"
    return Finding(name, State.OK, found, is_required=False)


def _nodes(nodes: tuple[Node, ...] | None) -> Finding:
    if nodes is None:
        return Finding("nodes", State.UNKNOWN, "this user may not see nodes", "have an administrator run this, too")
    if not nodes:
        return Finding("nodes", State.MISSING, "there is none", "add one; an autoscaler's group may stand at zero")
    num_ready, num_cordoned = sum(it.is_ready for it in nodes), sum(it.is_cordoned for it in nodes)
    found = f"{num_ready} of {len(nodes)} ready" + (f", {num_cordoned} cordoned" if num_cordoned else "")
    if any(it.is_usable for it in nodes):
        return Finding("nodes", State.OK, found)
    fix = "kubectl uncordon NAME" if num_ready else "kubectl describe nodes says why"
    return Finding("nodes", State.MISSING, found, fix)
