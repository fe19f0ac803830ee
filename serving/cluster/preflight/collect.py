"""Asks an API server for the facts of a preflight: only reading, and only what an ordinary user may ask.

Rule: what a secret holds is never asked for, only whether it is there and of which type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from serving.cluster.api import METADATA_ONLY, Object, ask, items
from serving.cluster.connection import Connection, Refused
from serving.cluster.fields import at, condition, conditions, name_of
from serving.cluster.preflight import reading
from serving.cluster.preflight.default import OPTIONAL
from serving.cluster.preflight.facts import (
    HTTP_ROUTE,
    METRICS,
    NODE_POOL,
    SCALED_OBJECT,
    SERVICE_MONITOR,
    Api,
    Facts,
    MetricsApi,
    Secret,
)
from serving.cluster.preflight.requirements import Kind, Resource, Wanted

ENFORCED = "pod-security.kubernetes.io/enforce"
DOCKER = "kubernetes.io/dockerconfigjson"
OLD_DOCKER = "kubernetes.io/dockercfg"  # still accepted by kubelets
OURS = "app.kubernetes.io/part-of=tandem"


def collect(connection: Connection, wanted: Wanted) -> Facts:
    """Raises Refused or Unreachable where there is no answer to go on with."""
    version = ask(connection, "/version", "its version")
    with connection.asking("its version"):
        server_version = str(version["gitVersion"])
    namespace = connection.namespace
    inside = f"/api/v1/namespaces/{namespace}"
    has_namespace, enforced = _namespace(connection)

    def read(path: str, what: str, **query: Any) -> tuple[Object, ...] | None:
        return items(connection, path, what, query)

    nodes = read("/api/v1/nodes", "its nodes")
    node_pools = read("/apis/karpenter.sh/v1/nodepools", "its node pools")
    classes = read("/apis/storage.k8s.io/v1/storageclasses", "its storage classes")
    quotas = read(f"{inside}/resourcequotas", "its quotas")
    ranges = read(f"{inside}/limitranges", "its limit ranges")
    pods = read(f"{inside}/pods", "its pods", labelSelector=OURS) if quotas else ()
    events = read(f"{inside}/events", "its events", fieldSelector="involvedObject.kind=Pod")
    kinds = {NODE_POOL, SCALED_OBJECT, SERVICE_MONITOR, HTTP_ROUTE, *wanted.kinds}
    with connection.asking("its objects"):
        return Facts(
            server_version=server_version,
            namespace=namespace,
            has_namespace=has_namespace,
            enforced=enforced,
            denied=tuple(it.name for it in sorted(wanted.resources) if not _may_create(connection, it)),
            denied_optional=_denied_optional(connection, wanted),
            nodes=None if nodes is None else tuple(map(reading.node, nodes)),
            node_pools=None if node_pools is None else tuple(map(reading.node_pool, node_pools)),
            kinds=_kinds(connection, kinds),
            metrics={group: _metrics_api(connection, group) for group in METRICS},
            storage_classes=None if classes is None else tuple(map(reading.storage_class, classes)),
            quotas=None if quotas is None else tuple(map(reading.quota, quotas)),
            limit_ranges=None if ranges is None else tuple(it for each in ranges for it in reading.limit_ranges(each)),
            own_use=_own_use(pods),
            pull_secrets={it: _secret(connection, it, (DOCKER, OLD_DOCKER)) for it in sorted(wanted.pull_secrets)},
            secrets={it: _secret(connection, it) for it in sorted(wanted.secrets_used)},
            claims={it: _claim(connection, it) for it in sorted(wanted.claims_used)},
            failed_pulls=None if events is None else reading.failed_pulls(events),
        )


def _own_use(pods: tuple[Object, ...] | None) -> Mapping[str, Decimal] | None:
    return None if pods is None else reading.sums(pods)


def _namespace(connection: Connection) -> tuple[bool | None, str | None]:
    """Whether it is there, and the pod security level that it enforces."""
    name = connection.namespace
    try:
        found = ask(connection, f"/api/v1/namespaces/{name}", f"the namespace '{name}'")
    except Refused as error:
        if error.status == 403:
            return None, None
        if error.status == 404:
            return False, ""
        raise
    return True, str(at(found, "metadata", "labels", default={}).get(ENFORCED, ""))


def _may_create(connection: Connection, it: Resource) -> bool:
    """Whether this user may; raises Refused for one who may not even ask, such as the anonymous user."""
    attributes = {"group": it.group, "resource": it.name, "verb": "create"}
    if it.is_namespaced:
        attributes["namespace"] = connection.namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = ask(connection, path, "this user's own rights", body=review)
    return bool(at(answer, "status", "allowed"))


def _denied_optional(connection: Connection, wanted: Wanted) -> tuple[str, ...]:
    others = [(it, purpose) for it, purpose in OPTIONAL if it not in wanted.resources]
    return tuple(f"{it.name} ({purpose})" for it, purpose in others if not _may_create(connection, it))


def _kinds(connection: Connection, kinds: Iterable[Kind]) -> dict[Kind, Api]:
    """By discovery, which every signed-in user may read; reading CustomResourceDefinitions takes more rights."""
    served = {
        (group, version): _discovered(connection, group, version)
        for group, version in {(it.group, it.version) for it in kinds}
    }
    found = {}
    for it in kinds:
        names = served[it.group, it.version]
        found[it] = names if isinstance(names, Api) else Api.SERVED if it.name in names else Api.ABSENT
    return found


def _discovered(connection: Connection, group: str, version: str) -> frozenset[str] | Api:
    try:
        found = ask(connection, f"/apis/{group}/{version}", f"the API {group}/{version}")
    except Refused as error:
        if error.status in (404, 503):
            return Api.ABSENT if error.status == 404 else Api.BROKEN
        raise
    return frozenset(str(it.get("kind")) for it in found["resources"])


def _metrics_api(connection: Connection, group: str) -> MetricsApi:
    """The aggregator's own word, which names the server behind it; for who may not read that, discovery."""
    versions = ("v1beta2", "v1beta1") if group.startswith("custom") else ("v1beta1",)
    broken = None
    for version in versions:
        path = f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}"
        state = server = None
        trouble = ""
        try:
            found = ask(connection, path, f"who serves {group}")
            of = at(found, "spec", "service", default={})
            server = f"{of.get('namespace')}/{of.get('name')}" if of else None
            available = condition(conditions(found), "Available")
            state = Api.SERVED if available and available.is_true else Api.BROKEN
            trouble = f"{available.reason}: {available.message}" if available and not available.is_true else ""
        except Refused as error:
            if error.status == 403:
                names = _discovered(connection, group, version)
                state = names if isinstance(names, Api) else Api.SERVED
            elif error.status != 404:
                raise
        if state is Api.SERVED:
            return MetricsApi(state, server)
        if state is Api.BROKEN:
            broken = MetricsApi(state, server, trouble)
    return broken or MetricsApi(Api.ABSENT)


def _secret(connection: Connection, name: str, kinds: tuple[str, ...] = ()) -> Secret | None:
    path = f"/api/v1/namespaces/{connection.namespace}/secrets"

    def named(selector: str) -> tuple[Object, ...] | None:
        return items(connection, path, "its secrets' names", {"fieldSelector": selector}, accept=METADATA_ONLY)

    there = named(f"metadata.name={name}")
    if not there:
        return None if there is None else Secret.ABSENT
    if not kinds:
        return Secret.THERE
    return Secret.THERE if any(named(f"metadata.name={name},type={it}") for it in kinds) else Secret.OTHER_TYPE


def _claim(connection: Connection, name: str) -> str | None:
    path = f"/api/v1/namespaces/{connection.namespace}/persistentvolumeclaims"
    found = items(connection, path, "its volume claims", {"fieldSelector": f"metadata.name={name}"})
    if found is None:
        return None
    return next((str(at(it, "status", "phase", default="")) for it in found if name_of(it) == name), "")
