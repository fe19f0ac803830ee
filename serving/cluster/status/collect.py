"""Asks an API server for all that `tandem cluster status` tells, and nothing that changes anything.

Seven lists of the namespace, and two of the cluster (nodes, Karpenter's NodeClaims) that an ordinary user may not see: those are None then.
What a scaler knows beyond that, `scalers` asks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from serving.cluster.api import Object, items
from serving.cluster.connection import Connection, Refused
from serving.cluster.fields import at
from serving.cluster.status import cold_starts, reading
from serving.cluster.status.autoscalers import autoscaler
from serving.cluster.status.scalers import scalers
from serving.cluster.status.snapshot import Seen

OURS = "app.kubernetes.io/part-of=tandem"  # on every object of the chart

Value = TypeVar("Value")


def collect(connection: Connection) -> Seen:
    """Raises Refused or Unreachable where not even Deployments can be listed: then nothing can be told."""
    namespace = connection.namespace
    inside = f"/namespaces/{namespace}"
    found = items(connection, f"/apis/apps/v1{inside}/deployments", "its deployments", {"labelSelector": OURS})
    if found is None:
        raise Refused(connection.server, 403, f"the deployments of namespace '{namespace}'")
    if not found:
        return Seen(namespace, elsewhere=_elsewhere(connection))

    def made(answer: tuple[Object, ...] | None, what: str, read: Callable[[Object], Value]) -> tuple[Value, ...] | None:
        with connection.asking(what):
            return None if answer is None else tuple(map(read, answer))

    def listed(path: str, what: str, read: Callable[[Object], Value], **query: str) -> tuple[Value, ...] | None:
        return made(items(connection, path, what, query), what, read)

    with connection.asking("its deployments"):
        workloads = tuple(map(reading.workload, found))
    slices = items(connection, f"/apis/discovery.k8s.io/v1{inside}/endpointslices", "its endpoint slices")
    pods = items(connection, f"/api/v1{inside}/pods", "its pods", {"labelSelector": OURS})
    nodes = items(connection, "/api/v1/nodes", "its nodes")
    claims = items(connection, "/apis/karpenter.sh/v1/nodeclaims", "its node claims")
    with connection.asking("its pods"):
        servers = cold_starts.servers(pods or (), nodes or (), claims or ())
    return Seen(
        namespace=namespace,
        workloads=workloads,
        pods=made(pods, "its pods", reading.pod),
        answering=None if slices is None else reading.answering(slices),
        autoscalers=listed(f"/apis/autoscaling/v2{inside}/horizontalpodautoscalers", "its autoscalers", autoscaler),
        scaled=listed(f"/apis/keda.sh/v1alpha1{inside}/scaledobjects", "its scaled objects", reading.scaled),
        claims=listed(f"/api/v1{inside}/persistentvolumeclaims", "its volume claims", reading.claim),
        events=listed(f"/api/v1{inside}/events", "its events", reading.event, fieldSelector="involvedObject.kind=Pod"),
        nodes=made(nodes, "its nodes", reading.node),
        node_claims=made(claims, "its node claims", reading.node_claim),
        servers=servers,
        cold_starts=dict(scalers(connection, workloads)),
    )


def _elsewhere(connection: Connection) -> tuple[str, ...]:
    """The namespaces that hold a Tandem, as far as this user may see them."""
    found = items(connection, "/apis/apps/v1/deployments", "its deployments", {"labelSelector": OURS})
    return tuple(sorted({at(it, "metadata", "namespace", default="") for it in found or ()}))
