"""Does an installation fit into the namespace's quotas and limits? Pure.

A quota is compared with the sum of all pods, less what an installed Tandem uses already, because an upgrade replaces it; a LimitRange
with every container. Not counted: the extra pod of a rolling update, and more pods than one of a DaemonSet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from serving.cluster.objects.fields import shortened
from serving.cluster.objects.gpus import total
from serving.cluster.objects.namespace import Limit, Quota
from serving.cluster.objects.pods import ContainerSpec, Pod
from serving.cluster.preflight.checks import unseen
from serving.cluster.preflight.facts import Facts
from serving.cluster.preflight.requirements import Requirements
from serving.documents.findings import Finding, State

# The same under two names: a quota may say `cpu` for requests.cpu and count/pods for pods.
ALIASES = {
    "cpu": "requests.cpu",
    "memory": "requests.memory",
    "ephemeral-storage": "requests.ephemeral-storage",
    "count/pods": "pods",
    "count/persistentvolumeclaims": "persistentvolumeclaims",
}
COMPUTE = ("cpu", "memory")  # of which a quota makes every container state what it asks for


def quotas(facts: Facts, wanted: Requirements) -> Finding:
    name = "quotas"
    if facts.cluster.quotas is None:
        return unseen(name, "them", f"--namespace {facts.namespace} describe quota")
    if not facts.cluster.quotas:
        return Finding(name, State.OK, "the namespace has none")
    troubles = [trouble for it in facts.cluster.quotas if not it.is_scoped for trouble in _troubles(it, facts, wanted)]
    scoped = [it.name for it in facts.cluster.quotas if it.is_scoped]
    if troubles:
        fix = (
            f"raise it (kubectl --namespace {facts.namespace} edit quota), or ask for less: "
            "gateway.resources, pools.NAME.resources and replicas"
        )
        return Finding(name, State.MISSING, f"{wanted.source} does not fit: {shortened(troubles, '; ')}", fix)
    names = ", ".join(it.name for it in facts.cluster.quotas)
    found = f"{wanted.source} fits into {names}"
    if scoped:
        found += f" ({', '.join(scoped)} counts only some pods, and was not held against it)"
    return Finding(name, State.OK, found)


def own_use(pods: Iterable[Pod]) -> dict[str, Decimal]:
    """What an installed Tandem takes of a quota already."""
    return total({"pods": Decimal(1), **it.spec.sums()} for it in pods if not it.has_ended)


def _troubles(quota: Quota, facts: Facts, wanted: Requirements) -> Iterator[str]:
    sums, own = wanted.sums(), own_use(facts.cluster.pods or ())
    for key, hard in sorted(quota.hard.items()):
        counted = ALIASES.get(key, key)
        if unstated := _unstated(counted, facts, wanted):
            yield f"{quota.name} limits {key}, and {unstated} does not state it"
            continue
        requested = sums.get(counted, Decimal(0))
        left = hard - max(Decimal(0), quota.used.get(key, Decimal(0)) - own.get(counted, Decimal(0)))
        if requested > left:
            yield f"{quota.name} leaves {_amount(max(Decimal(0), left), key)} of {key}, {_amount(requested, key)} is asked for"


def _unstated(counted: str, facts: Facts, wanted: Requirements) -> str | None:
    """A container without this request or limit, nor a default from a LimitRange, whose pod the server refuses."""
    side, _, resource = counted.partition(".")
    if side not in ("requests", "limits") or resource not in COMPUTE:
        return None
    if any(it.kind == "Container" and resource in it.default for it in _limits(facts)):
        return None
    for owner, it in _containers(wanted):
        if resource not in (it.limits if side == "limits" else it.effective_requests):
            return f"{owner}, container {it.name}"
    return None


def limit_ranges(facts: Facts, wanted: Requirements) -> Finding:
    name = "limit ranges"
    if facts.cluster.limit_ranges is None:
        return unseen(name, "them", f"--namespace {facts.namespace} describe limitrange")
    if not facts.cluster.limit_ranges:
        return Finding(name, State.OK, "the namespace has none")
    troubles = [trouble for it in _limits(facts) for trouble in _outside(it, wanted)]
    if troubles:
        fix = "ask for what is allowed (gateway.resources, pools.NAME.resources), or have the LimitRange changed"
        return Finding(name, State.MISSING, f"{wanted.source} is outside: {shortened(troubles, '; ')}", fix)
    return Finding(
        name, State.OK, f"{wanted.source} is inside {', '.join(it.name for it in facts.cluster.limit_ranges)}"
    )


def _outside(limit: Limit, wanted: Requirements) -> Iterator[str]:
    if limit.kind == "Container":
        for owner, it in _containers(wanted):
            yield from _held(limit, f"{owner}, container {it.name}", it.effective_requests, it.limits)
    if limit.kind == "Pod":
        for pods in wanted.pods:
            sums = pods.spec.sums() if pods.count else {}
            requests = {
                key.removeprefix("requests."): value for key, value in sums.items() if key.startswith("requests.")
            }
            limits = {key.removeprefix("limits."): value for key, value in sums.items() if key.startswith("limits.")}
            yield from _held(limit, pods.owner, requests, limits)
    if limit.kind == "PersistentVolumeClaim":
        for claim in wanted.claims_made:
            yield from _held(limit, f"volume claim {claim.name}", {"storage": claim.storage_bytes}, {})


def _held(limit: Limit, where: str, requests: Mapping[str, Decimal], limits: Mapping[str, Decimal]) -> Iterator[str]:
    for key, most in limit.max.items():
        highest = max(limits.get(key, Decimal(0)), requests.get(key, Decimal(0)))
        if highest > most:
            yield f"{where} may have {_amount(highest, key)} of {key}, {limit.name} allows {_amount(most, key)}"
    for key, least in limit.min.items():
        if key in requests and requests[key] < least:
            yield f"{where} asks for {_amount(requests[key], key)} of {key}, {limit.name} wants {_amount(least, key)}"
    for key, ratio in limit.max_ratio.items():
        if limits.get(key) and requests.get(key) and limits[key] / requests[key] > ratio:
            yield f"{where} has a limit of {key} over {ratio.normalize():f} times its request ({limit.name})"


def _containers(wanted: Requirements) -> Iterator[tuple[str, ContainerSpec]]:
    return ((it.owner, container) for it in wanted.pods for container in it.spec.containers)


def _limits(facts: Facts) -> Iterator[Limit]:
    return (limit for it in facts.cluster.limit_ranges or () for limit in it.limits)


def _amount(value: Decimal, key: str) -> str:
    """As people write it: 1.5, 768Mi, 1.5Gi."""
    if not key.endswith(("memory", "storage")):
        return f"{value.normalize():f}"
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if value >= size:
            return f"{round(float(value / size), 2):g}{unit}"
    return f"{value:f}"
