"""Does a cluster allow an installation, and what is the fix where it does not? Pure: Facts and Requirements in, findings out.

Holds the server, the namespace, rights, nodes, images, storage and APIs against what is wanted; `gpus` and `quotas` do the same for
theirs, and `command` has the order. Rule: only what the wanted installation needs is required; an optional finding says what it is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from serving.cluster.metrics_api import METRICS, Api, MetricsApi
from serving.cluster.objects.fields import SHOWN, there_are
from serving.cluster.objects.namespace import Event
from serving.cluster.objects.nodes import Node
from serving.cluster.preflight.facts import (
    HTTP_ROUTE,
    NODE_POOL,
    SCALED_OBJECT,
    SERVICE_MONITOR,
    Facts,
    Secret,
)
from serving.cluster.preflight.requirements import Kind, Requirements
from serving.cluster.status.command import scaling_numbers
from serving.documents.findings import Finding, State, lacks_required


def unseen(name: str, what: str, command: str, is_required: bool = True) -> Finding:
    """What this user may not see, and the command by which an administrator does."""
    fix = f"have an administrator look: kubectl {command}"
    return Finding(name, State.UNKNOWN, f"this user may not see {what}", fix, is_required)


def exit_status(found: Iterable[Finding]) -> int:
    """0 all that is required is there; 1 something is missing; 3 nothing is known to be, but not all could be seen."""
    listed = tuple(found)
    if lacks_required(listed):
        return 1
    return 3 if any(it.state is State.UNKNOWN and it.is_required for it in listed) else 0


MIN_SERVER_VERSION = (1, 30)  # kubeVersion of helm/tandem/Chart.yaml, which says why; a test compares them
IN_EDIT = {
    "deployments", "services", "configmaps", "serviceaccounts", "horizontalpodautoscalers", "networkpolicies", "secrets",
    "poddisruptionbudgets", "ingresses", "daemonsets", "jobs", "pods", "persistentvolumeclaims",
}  # fmt: skip
# what Kubernetes' own role `edit` may create; definitions that others install bring roles of their own, or none


def server_version(text: str) -> Finding:
    needed = f"{MIN_SERVER_VERSION[0]}.{MIN_SERVER_VERSION[1]}"
    numbers = re.match(r"v?(\d+)\.(\d+)", text)
    if not numbers:
        fix = f"compare it with the {needed} that the chart needs"
        return Finding("server version", State.UNKNOWN, f"'{text}' cannot be read", fix)
    if (int(numbers[1]), int(numbers[2])) < MIN_SERVER_VERSION:
        return Finding("server version", State.MISSING, f"{text} is too old", f"upgrade to {needed} or newer")
    return Finding("server version", State.OK, f"{text} ({needed} or newer is needed)")


def namespace(facts: Facts) -> Finding:
    name = facts.namespace
    if facts.has_namespace is None:
        return unseen("namespace", f"'{name}'", f"get namespace {name}")
    if not facts.has_namespace:
        return Finding("namespace", State.MISSING, f"there is no '{name}'", f"kubectl create namespace {name}")
    return Finding("namespace", State.OK, f"'{name}' exists")


def rights(facts: Facts) -> tuple[Finding, ...]:
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


def pod_security(facts: Facts) -> tuple[Finding, ...]:
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


def nodes(nodes: tuple[Node, ...] | None) -> Finding:
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


METRICS_FOR = {
    "metrics.k8s.io": "install metrics-server if a pool is to scale by CPU use (autoscaling.enabled)",
    "external.metrics.k8s.io": "install KEDA or prometheus-adapter if a pool is to scale by the gateway's demand",
    "custom.metrics.k8s.io": "install prometheus-adapter if an autoscaler of yours reads metrics of pods",
}
# kind -> (whose it is, what it is for)
KNOWN = {
    NODE_POOL: ("Karpenter", "it buys GPU nodes on demand: https://karpenter.sh, then k8s/gpu-nodes/"),
    SCALED_OBJECT: ("KEDA", "it scales pools to zero and back: https://keda.sh"),
    SERVICE_MONITOR: (
        "Prometheus operator",
        "it scrapes and alerts by the chart's objects: https://prometheus-operator.dev",
    ),
    HTTP_ROUTE: ("Gateway API", "it is one way in from outside (httpRoute): https://gateway-api.sigs.k8s.io"),
}


def apis(facts: Facts, wanted: Requirements) -> Iterator[Finding]:
    for group in METRICS:
        yield _metrics(group, facts.metrics[group], is_required=group in wanted.metrics)
    for kind, (name, purpose) in KNOWN.items():
        found = _kind(name, kind, facts.kinds[kind], purpose, is_required=kind in wanted.kinds)
        if kind == SCALED_OBJECT and found.state is State.OK and (trouble := facts.keda_trouble):
            found = Finding(
                name, State.MISSING, f"{kind} is served, but {trouble.why}", trouble.way_out, found.is_required
            )
        yield found
    for kind in sorted(wanted.kinds - KNOWN.keys()):
        fix = "install what defines it, or turn off what needs it"
        yield _kind(kind.name, kind, facts.kinds[kind], fix, is_required=True)


def _metrics(group: str, api: MetricsApi, *, is_required: bool) -> Finding:
    by = f" by {api.server}" if api.server else ""
    if api.state is Api.SERVED:
        return Finding(group, State.OK, f"served{by}", is_required=is_required)
    if api.state is Api.BROKEN:
        says = f" ({api.trouble})" if api.trouble else ""
        fix = "is that server up? kubectl get apiservices"
        return Finding(group, State.MISSING, f"registered{by} but does not answer{says}", fix, is_required)
    return Finding(group, State.MISSING, "not served", METRICS_FOR[group], is_required)


def _kind(name: str, kind: Kind, api: Api, purpose: str, *, is_required: bool) -> Finding:
    if api is Api.SERVED:
        return Finding(name, State.OK, f"{kind} is served", is_required=is_required)
    is_not = "is not served" if api is Api.ABSENT else "is registered but does not answer"
    return Finding(name, State.MISSING, f"{kind} {is_not}", purpose, is_required)


def autoscaling(facts: Facts) -> Iterator[Finding]:
    """Of the pools that are installed already: who sets their numbers, and whether that works."""
    for release in facts.installed.releases if facts.installed else ():
        for part in release.parts:
            if not part.is_pool or part.scaling is None:
                continue
            title, numbers = f"autoscaling of {release.name}'s pool '{part.name}'", scaling_numbers(part.scaling)
            said = f"by {part.scaling.by}{f': {numbers}' if numbers else ''}"
            problem = next(iter(part.scaling.problems), None)
            if problem is None:
                yield Finding(title, State.OK, said, is_required=False)
            else:
                yield Finding(
                    title, State.MISSING, f"{problem.why} ({said})", problem.way_out or "wait", is_required=False
                )


def storage(facts: Facts, wanted: Requirements) -> Finding:
    """Optional unless a volume is made; a volume that is only used is told of instead."""
    name, is_required = "storage", bool(wanted.claims_made or wanted.claims_used)
    claims = facts.cluster.volume_claims
    for claim in sorted(wanted.claims_used):
        if claims is None:
            return unseen(name, f"volume claim '{claim}'", f"--namespace {facts.namespace} get pvc {claim}")
        if claim not in {it.name for it in claims}:
            fix = "make it, or name another: modelRepository.claimName"
            return Finding(name, State.MISSING, f"there is no volume claim '{claim}'", fix)
    classes = facts.cluster.storage_classes
    if classes is None:
        return unseen(name, "storage classes", "get storageclass", bool(wanted.claims_made))
    names = {it.name for it in classes}
    for made in wanted.claims_made:
        if made.storage_class and made.storage_class not in names:
            fix = f"name one of: {', '.join(sorted(names)) or 'there is none'}"
            return Finding(name, State.MISSING, f"there is no storage class '{made.storage_class}'", fix)
    default = next((it for it in classes if it.is_default), None)
    needs_default = any(it.storage_class is None for it in wanted.claims_made)
    if default is None:
        there = f"; {there_are(sorted(names))}" if names else ""
        fix = "a volume claim must name its class, or an administrator marks one as default"
        return Finding(name, State.MISSING, f"no default storage class{there}", fix, needs_default)
    return Finding(
        name, State.OK, f"default storage class {default.name} ({default.provisioner})", is_required=is_required
    )


def network_policies(wanted: Requirements) -> Finding:
    """Nothing in the API says whether a network plugin enforces policies: it is not even asked for."""
    name = "network policies"
    if not wanted.has_policies:
        return Finding(name, State.OK, "none is wanted", is_required=False)
    return Finding(
        name,
        State.UNKNOWN,
        "no API says whether the network plugin enforces them",
        "docs/cluster.md has a check to run after the installation",
        is_required=False,
    )


IMAGE = re.compile(r'"([^"\s]+)"')  # the kubelet quotes it: Failed to pull image "x", Back-off pulling image "x"
SAYS_MAX_CHARS = 200  # a registry's error page may be long


def images(facts: Facts) -> Iterator[Finding]:
    for name, secret in facts.pull_secrets.items():
        yield _pull_secret(name, secret, facts.namespace)
    for name, secret in facts.secrets.items():
        yield _secret(name, secret, facts.namespace)
    yield _pulls(facts.cluster.events, facts.namespace)


def _pull_secret(name: str, secret: Secret | None, namespace: str) -> Finding:
    title = f"pull secret '{name}'"
    make = f"kubectl --namespace {namespace} create secret docker-registry {name} --docker-server=... --docker-username=..."
    if secret is None:
        return unseen(title, "secrets", f"--namespace {namespace} get secret {name}")
    if secret is Secret.ABSENT:
        return Finding(title, State.MISSING, f"it is not in '{namespace}'", make)
    if secret is Secret.OTHER_TYPE:
        fix = f"delete it and make it again: {make}"
        return Finding(title, State.MISSING, "it is not of type kubernetes.io/dockerconfigjson", fix)
    return Finding(title, State.OK, "it is there and of the right type (whether the registry accepts it, a pull shows)")


def _secret(name: str, secret: Secret | None, namespace: str) -> Finding:
    title = f"secret '{name}'"
    if secret is None:
        return unseen(title, "secrets", f"--namespace {namespace} get secret {name}")
    if secret is Secret.ABSENT:
        return Finding(title, State.MISSING, f"pods name it and it is not in '{namespace}'", "make it first")
    return Finding(title, State.OK, "it is there")


def _pulls(events: tuple[Event, ...] | None, namespace: str) -> Finding:
    title = "image pulls"
    if events is None:
        return unseen(title, "events", f"--namespace {namespace} get events", is_required=False)
    failed = failed_pulls(events)
    if not failed:
        found = "no event of the namespace tells of one that failed"
        return Finding(title, State.OK, found, is_required=False)
    named = [f"{image} ({it.message[:SAYS_MAX_CHARS]}{_when(it)})" for image, it in list(failed.items())[:SHOWN]]
    fix = "is the name right, is it pushed, and do imagePullSecrets let the cluster in? Events stay for an hour or so"
    return Finding(title, State.MISSING, f"failed lately: {'; '.join(named)}", fix, is_required=False)


def failed_pulls(events: Iterable[Event]) -> dict[str, Event]:
    """The newest failure of each image that says why: "Back-off pulling", which comes again and again, does not."""
    found: dict[str, Event] = {}
    for it in events:
        image = IMAGE.search(it.message)
        if it.reason not in ("Failed", "BackOff") or not image or "image" not in it.message:
            continue
        before = found.get(image[1])
        if before is None or _weight(it) > _weight(before):
            found[image[1]] = it
    return found


def _weight(it: Event) -> tuple[bool, float]:
    return it.message.startswith("Failed"), it.at_s


def _when(it: Event) -> str:
    return f", {it.at:%H:%M:%S} UTC" if it.at else ""
