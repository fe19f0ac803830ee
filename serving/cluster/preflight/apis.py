"""Which APIs that somebody may have installed are served, and what lacks without them? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from serving.cluster.preflight.facts import (
    HTTP_ROUTE,
    METRICS,
    NODE_POOL,
    SCALED_OBJECT,
    SERVICE_MONITOR,
    Api,
    Facts,
    MetricsApi,
)
from serving.cluster.preflight.finding import Finding, State, unseen
from serving.cluster.preflight.requirements import Kind, Requirements

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
        yield _kind(name, kind, facts.kinds[kind], purpose, is_required=kind in wanted.kinds)
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
        there = f"; there {'is' if len(names) == 1 else 'are'} {', '.join(sorted(names))}" if names else ""
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
