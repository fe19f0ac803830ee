"""What one look at a cluster found: the value that preflight, status, scaler and campaign judge, each purely.

`look` reads each list that it is asked for once. What this user may not see is None, never an empty list; of an API that the server does
not serve there are no objects. Rule: what a new verb needs of Kubernetes becomes a line of `LISTINGS`, and no request of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from serving.cluster.client import Client, Query
from serving.cluster.objects.fields import OURS, Object, condition
from serving.cluster.objects.namespace import (
    Autoscaler,
    Certificate,
    DisruptionBudget,
    EndpointSlice,
    Event,
    Lease,
    LimitRange,
    NetworkPolicy,
    Quota,
    ScaledObject,
    Service,
    StorageClass,
    VolumeClaim,
)
from serving.cluster.objects.nodes import Node, NodeClaim, NodePool
from serving.cluster.objects.pods import Deployment, Job, Pod
from serving.decisions.cold_start import Server

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Lists that were not asked for are empty."""

    namespace: str
    deployments: tuple[Deployment, ...] | None = ()
    pods: tuple[Pod, ...] | None = ()
    jobs: tuple[Job, ...] | None = ()
    services: tuple[Service, ...] | None = ()
    endpoint_slices: tuple[EndpointSlice, ...] | None = ()
    network_policies: tuple[NetworkPolicy, ...] | None = ()
    autoscalers: tuple[Autoscaler, ...] | None = ()
    scaled_objects: tuple[ScaledObject, ...] | None = ()
    volume_claims: tuple[VolumeClaim, ...] | None = ()
    quotas: tuple[Quota, ...] | None = ()
    limit_ranges: tuple[LimitRange, ...] | None = ()
    events: tuple[Event, ...] | None = ()
    nodes: tuple[Node, ...] | None = ()
    node_pools: tuple[NodePool, ...] | None = ()
    node_claims: tuple[NodeClaim, ...] | None = ()
    storage_classes: tuple[StorageClass, ...] | None = ()
    budgets: tuple[DisruptionBudget, ...] | None = ()
    certificates: tuple[Certificate, ...] | None = ()
    leases: tuple[Lease, ...] | None = ()  # of the whole cluster, by the names that were asked for
    claim_events: tuple[Event, ...] | None = ()  # about Karpenter's node claims

    @property
    def forbidden(self) -> tuple[str, ...]:
        """What this user may not see."""
        return tuple(it.title for name, it in LISTINGS.items() if getattr(self, name) is None)

    @property
    def answering(self) -> frozenset[str] | None:
        """Names of the pods that a Service sends to."""
        if self.endpoint_slices is None:
            return None
        return frozenset(name for it in self.endpoint_slices for name in it.pods)

    def node(self, name: str | None) -> Node | None:
        return next((it for it in self.nodes or () if it.name == name), None)

    def server(self, pod: Pod) -> Server:
        """The moments of its start, with those of its node if they may be seen; when a bought node was asked for its claim knows."""
        node = self.node(pod.node)
        claim = next((it for it in self.node_claims or () if pod.node and it.node == pod.node), None)
        running = [it.running_since for it in pod.containers if not it.is_init and it.running_since is not None]
        return Server(
            name=pod.name,
            created_at=_seconds(pod.created_at),
            node_created_at=_seconds(claim.created_at if claim else None)
            or _seconds(node.created_at if node else None),
            node_ready_at=_seconds(node.ready_since if node else None),
            scheduled_at=_since(pod, "PodScheduled"),
            started_at=_seconds(max(running, default=None)),
            ready_at=_since(pod, "Ready"),
        )


def _since(pod: Pod, kind: str) -> float | None:
    found = condition(pod.conditions, kind)
    return _seconds(found.since) if found is not None and found.is_true else None


def _seconds(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()


@dataclass(frozen=True, slots=True)
class Listing:
    """`path` has a place for the namespace."""

    title: str
    path: str
    parse: Callable[[Object], Any]
    query: Query = field(default_factory=dict)


_OURS: Query = {"labelSelector": OURS}
LISTINGS = {
    "deployments": Listing("deployments", "/apis/apps/v1/namespaces/{}/deployments", Deployment.parse, _OURS),
    "pods": Listing("pods", "/api/v1/namespaces/{}/pods", Pod.parse, _OURS),
    "jobs": Listing("jobs", "/apis/batch/v1/namespaces/{}/jobs", Job.parse, _OURS),
    "services": Listing("services", "/api/v1/namespaces/{}/services", Service.parse, _OURS),
    "endpoint_slices": Listing(
        "endpoint slices", "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", EndpointSlice.parse
    ),
    "network_policies": Listing(
        "network policies", "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", NetworkPolicy.parse, _OURS
    ),
    "autoscalers": Listing(
        "autoscalers", "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers", Autoscaler.parse
    ),
    "scaled_objects": Listing(
        "KEDA's scaled objects", "/apis/keda.sh/v1alpha1/namespaces/{}/scaledobjects", ScaledObject.parse
    ),
    "volume_claims": Listing("volume claims", "/api/v1/namespaces/{}/persistentvolumeclaims", VolumeClaim.parse),
    "quotas": Listing("quotas", "/api/v1/namespaces/{}/resourcequotas", Quota.parse),
    "limit_ranges": Listing("limit ranges", "/api/v1/namespaces/{}/limitranges", LimitRange.parse),
    "events": Listing(
        "events", "/api/v1/namespaces/{}/events", Event.parse, {"fieldSelector": "involvedObject.kind=Pod"}
    ),
    "nodes": Listing("nodes", "/api/v1/nodes", Node.parse),
    "node_pools": Listing("Karpenter's node pools", "/apis/karpenter.sh/v1/nodepools", NodePool.parse),
    "node_claims": Listing("Karpenter's node claims", "/apis/karpenter.sh/v1/nodeclaims", NodeClaim.parse),
    "budgets": Listing(
        "disruption budgets", "/apis/policy/v1/namespaces/{}/poddisruptionbudgets", DisruptionBudget.parse
    ),
    "certificates": Listing(
        "cert-manager's certificates", "/apis/cert-manager.io/v1/namespaces/{}/certificates", Certificate.parse
    ),
    "leases": Listing("leases of other namespaces", "/apis/coordination.k8s.io/v1/leases", Lease.parse),
    # What has no namespace has its events in this one.
    "claim_events": Listing(
        "events of node claims",
        "/api/v1/namespaces/default/events",
        Event.parse,
        {"fieldSelector": "involvedObject.kind=NodeClaim"},
    ),
    "storage_classes": Listing("storage classes", "/apis/storage.k8s.io/v1/storageclasses", StorageClass.parse),
}


def look(client: Client, *fields: str, **queries: Query) -> ClusterSnapshot:
    """The lists that `fields` names; `queries` by field, in place of the usual one. Raises ApiError, Unreachable."""
    lists: dict[str, Any] = {}
    for name in (*fields, *queries):
        it = LISTINGS[name]
        lists[name] = client.items(it.path.format(client.namespace), it.title, it.parse, queries.get(name, it.query))
    return ClusterSnapshot(client.namespace, **lists)


def with_nodes_of(client: Client, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """And the nodes of its pods, one by one: an account may get nodes and not list them, and one may be gone by now."""
    names: Collection[str] = dict.fromkeys(it.node for it in snapshot.pods or () if it.node)
    nodes = (client.find(f"/api/v1/nodes/{name}", f"node {name}", Node.parse, (403, 404)) for name in names)
    claims = look(client, "node_claims").node_claims if names else ()
    return replace(snapshot, nodes=tuple(it for it in nodes if it is not None), node_claims=claims)
