"""Reads from a cluster what an installation depends on: its objects, this user's rights, the APIs that are served.

It only reads, and only what an ordinary user may read; of a secret only its existence and type. None means "this user may not see it",
never "there is none".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from serving.cluster.api import METADATA_ONLY, Connection, Right
from serving.cluster.client import ApiError
from serving.cluster.metrics_api import METRICS, Api, MetricsApi, discovered, metrics_api
from serving.cluster.objects.fields import label, name_of
from serving.cluster.preflight.requirements import OPTIONAL, Kind, Requirements, Resource
from serving.cluster.snapshot import ClusterSnapshot, look
from serving.cluster.status.command import read_status
from serving.cluster.status.judge import Status
from serving.cluster.status.scaling import KEDA_LEASE
from serving.cluster.status.scheduling import Reason, dead, is_alive

NODE_POOL = Kind("karpenter.sh", "v1", "NodePool")
SCALED_OBJECT = Kind("keda.sh", "v1alpha1", "ScaledObject")
SERVICE_MONITOR = Kind("monitoring.coreos.com", "v1", "ServiceMonitor")
HTTP_ROUTE = Kind("gateway.networking.k8s.io", "v1", "HTTPRoute")


class Secret(StrEnum):
    THERE = "there"
    OTHER_TYPE = "other type"  # only where a type is asked for
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Facts:
    server_version: str  # as the server writes it: v1.35.0, v1.31.4-gke.1256000
    has_namespace: bool | None
    enforced: str | None  # label pod-security.kubernetes.io/enforce, empty without one
    cluster: ClusterSnapshot
    kinds: Mapping[Kind, Api]
    metrics: Mapping[str, MetricsApi]
    denied: tuple[str, ...] = ()  # resources that the installation makes and this user may not
    denied_optional: tuple[str, ...] = ()  # the same of what other values make, with what for
    pull_secrets: Mapping[str, Secret | None] = field(default_factory=dict)
    secrets: Mapping[str, Secret | None] = field(default_factory=dict)
    keda_trouble: Reason | None = None  # why its operator, whose kinds are served, does not work
    installed: Status | None = None  # the Tandem of this namespace; None where there is none, or may not be seen

    @property
    def namespace(self) -> str:
        return self.cluster.namespace


LISTS = ("nodes", "node_pools", "storage_classes", "quotas", "limit_ranges", "pods", "events")
DOCKER = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")  # the second is old, and kubelets accept it


def collect(connection: Connection, wanted: Requirements) -> Facts:
    """Raises ApiError or Unreachable where there is no answer to go on with."""
    version = connection.get("/version", "its version")
    with connection.guard("its version"):
        server_version = str(version["gitVersion"])
    has_namespace, enforced = _namespace(connection)
    kinds = {NODE_POOL, SCALED_OBJECT, SERVICE_MONITOR, HTTP_ROUTE, *wanted.kinds}
    optional = [(it, purpose) for it, purpose in OPTIONAL if it not in wanted.resources]
    with connection.guard("its objects"):
        return Facts(
            server_version=server_version,
            has_namespace=has_namespace,
            enforced=enforced,
            cluster=look(connection, *LISTS, *(["volume_claims"] if wanted.claims_used else [])),
            kinds=_kinds(connection, kinds),
            metrics={group: metrics_api(connection, group) for group in METRICS},
            denied=tuple(it.name for it in sorted(wanted.resources) if not _may_create(connection, it)),
            denied_optional=tuple(
                f"{it.name} ({purpose})" for it, purpose in optional if not _may_create(connection, it)
            ),
            pull_secrets={it: _secret(connection, it, DOCKER) for it in sorted(wanted.pull_secrets)},
            secrets={it: _secret(connection, it) for it in sorted(wanted.secrets_used)},
            keda_trouble=_keda_trouble(connection),
            installed=_installed(connection),
        )


def _keda_trouble(connection: Connection) -> Reason | None:
    now = datetime.now(UTC)
    leases = look(connection, leases={"fieldSelector": f"metadata.name={KEDA_LEASE}"}).leases or ()
    return dead(leases[0], "KEDA", now) if leases and not any(is_alive(it, now) for it in leases) else None


def _installed(connection: Connection) -> Status | None:
    try:
        return read_status(connection)
    except ApiError as error:
        if error.status == 403:
            return None
        raise


def _namespace(connection: Connection) -> tuple[bool | None, str | None]:
    """Whether the namespace exists, and the pod security level that it enforces."""
    name = connection.namespace
    try:
        found = connection.get(f"/api/v1/namespaces/{name}", f"the namespace '{name}'")
    except ApiError as error:
        if error.status == 403:
            return None, None
        if error.status == 404:
            return False, ""
        raise
    return True, label(found, "pod-security.kubernetes.io/enforce")


def _may_create(connection: Connection, it: Resource) -> bool:
    return connection.may(Right(it.group, it.name, is_namespaced=it.is_namespaced))


def _kinds(connection: Connection, kinds: Iterable[Kind]) -> dict[Kind, Api]:
    """By discovery, which every signed-in user may read; reading CustomResourceDefinitions takes more rights."""
    served = {
        (group, version): discovered(connection, group, version)
        for group, version in {(it.group, it.version) for it in kinds}
    }
    found = {}
    for it in kinds:
        names = served[it.group, it.version]
        found[it] = names if isinstance(names, Api) else Api.SERVED if it.name in names else Api.ABSENT
    return found


def _secret(connection: Connection, name: str, kinds: tuple[str, ...] = ()) -> Secret | None:
    path = f"/api/v1/namespaces/{connection.namespace}/secrets"

    def named(selector: str) -> tuple[str, ...] | None:
        return connection.items(path, "its secrets' names", name_of, {"fieldSelector": selector}, accept=METADATA_ONLY)

    there = named(f"metadata.name={name}")
    if not there:
        return None if there is None else Secret.ABSENT
    if not kinds:
        return Secret.THERE
    return Secret.THERE if any(named(f"metadata.name={name},type={it}") for it in kinds) else Secret.OTHER_TYPE
