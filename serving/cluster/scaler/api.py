"""What the scaler asks an API server: what pools were told to run, and how far their pods are. One question each, nothing kept.

Only this file and `objects` need the package `kubernetes`, which a scaler can do without (`cluster_look`).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from kubernetes import client
from kubernetes.config import ConfigException, load_incluster_config

from serving.cluster import asking
from serving.cluster.connection import Connection, Refused, connect
from serving.cluster.scaler import objects
from serving.errors import EnvironmentFault
from serving.planning.cold_start import Server

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where every pod finds its token


class NotForUs(EnvironmentFault):
    """Asking again will not help."""


def reach(context: str | None, namespace: str | None) -> Connection:
    """The API server of the pod that this runs in, else that of a kubeconfig's context. Raises TandemError."""
    if context is not None or not (ACCOUNT / "token").exists():
        return connect(context, namespace)
    configuration = client.Configuration(host="")
    configuration.retries = 0
    try:
        load_incluster_config(client_configuration=configuration)
        given = namespace or (ACCOUNT / "namespace").read_text().strip()
    except (ConfigException, OSError) as error:
        raise NotForUs(f"this pod's service account cannot be used ({error})") from None
    return Connection("", configuration.host, given, client.ApiClient(configuration))


def replicas(connection: Connection, pools: Collection[str], release: str | None) -> dict[str, int]:
    """By pool; one that has no Deployment is missing. Raises TandemError, NotForUs where it will not change."""
    path = f"/apis/apps/v1/namespaces/{connection.namespace}/deployments"
    try:
        found = asking.items(connection, path, "deployments", _query(objects.POOL, release))
        if found is None:
            raise NotForUs(f"this account may not see deployments of namespace {connection.namespace}")
        return objects.replicas(found, pools)
    except Refused as error:
        raise NotForUs(str(error)) if error.status == 401 else error from None
    except objects.SeveralReleases as error:
        raise NotForUs(str(error)) from None


def servers(connection: Connection, pool: str, release: str | None) -> tuple[Server, ...]:
    """Raises TandemError."""
    path = f"/api/v1/namespaces/{connection.namespace}/pods"
    pods = asking.items(connection, path, "pods", _query(f"{objects.POOL}={pool}", release)) or ()
    nodes = {name: _node(connection, name) for pod in pods if (name := objects.node_of(pod)) is not None}
    claims = asking.items(connection, "/apis/karpenter.sh/v1/nodeclaims", "nodeclaims") if nodes else ()
    return tuple(
        objects.server(pod, nodes.get(objects.node_of(pod) or ""), claims or ())
        for pod in pods
        if objects.is_there_to_stay(pod)
    )


def _node(connection: Connection, name: str) -> asking.Object | None:
    with suppress(Refused):  # an ordinary account may not see nodes, and one may be gone by now
        return asking.ask(connection, f"/api/v1/nodes/{name}", f"node {name}")
    return None


def _query(selector: str, release: str | None) -> dict[str, str]:
    return {"labelSelector": selector + (f",{objects.RELEASE}={release}" if release else "")}
