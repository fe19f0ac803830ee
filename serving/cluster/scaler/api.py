"""What the scaler asks an API server: what pools were told to run, and how far their pods are. One question each, nothing kept.

Who carries the question is `service_account` or `kubeconfig` (`reads`).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from serving.cluster.scaler import objects, service_account
from serving.cluster.scaler.reads import NotForUs, Reads
from serving.decisions.cold_start import Server


def reach(context: str | None, namespace: str | None, account: Path | None = None) -> Reads:
    """The API server of the pod that this runs in, else that of a kubeconfig's context. Raises TandemError, ModuleNotFoundError."""
    account = service_account.ACCOUNT if account is None else account
    if context is None and (account / "token").exists():
        return service_account.InPod.here(namespace, account)
    from serving.cluster.scaler.kubeconfig import OfKubeconfig

    return OfKubeconfig.of(context, namespace)


def replicas(reads: Reads, pools: Collection[str], release: str | None) -> dict[str, int]:
    """By pool; one that has no Deployment is missing. Raises TandemError, NotForUs where it will not change."""
    path = f"/apis/apps/v1/namespaces/{reads.namespace}/deployments"
    found = reads.items(path, "deployments", _query(objects.POOL, release))
    if found is None:
        raise NotForUs(f"this account may not see deployments of namespace {reads.namespace}")
    try:
        return objects.replicas(found, pools)
    except objects.SeveralReleases as error:
        raise NotForUs(str(error)) from None


def servers(reads: Reads, pool: str, release: str | None) -> tuple[Server, ...]:
    """Raises TandemError, NotForUs without leave to see pods."""
    path = f"/api/v1/namespaces/{reads.namespace}/pods"
    pods = reads.items(path, "pods", _query(f"{objects.POOL}={pool}", release))
    if pods is None:
        raise NotForUs(f"this account may not see pods of namespace {reads.namespace}")
    names = {name for pod in pods if (name := objects.node_of(pod)) is not None}
    # An ordinary account may not see nodes, and one may be gone by now.
    nodes = {name: reads.one(f"/api/v1/nodes/{name}", f"node {name}") for name in names}
    claims = reads.items("/apis/karpenter.sh/v1/nodeclaims", "nodeclaims") if nodes else ()
    return tuple(
        objects.server(pod, nodes.get(objects.node_of(pod) or ""), claims or ())
        for pod in pods
        if objects.is_there_to_stay(pod)
    )


def _query(selector: str, release: str | None) -> dict[str, str]:
    return {"labelSelector": selector + (f",{objects.RELEASE}={release}" if release else "")}
