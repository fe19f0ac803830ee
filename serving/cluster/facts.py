"""What does an API server say about itself: version, namespace, rights, nodes, APIs?

Only reading, and only what an ordinary user may ask; what the user may not see is None, never a guess. What the facts are worth
is judged in `preflight`. Rule: every request goes through `Connection.asking` and has `TIMEOUT_S`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kubernetes import client
from kubernetes.utils import parse_quantity

from serving.cluster.connection import TIMEOUT_S, Connection, Refused

GPU = "nvidia.com/gpu"
PAGE_SIZE = 500  # kubectl's own chunk
# (API group, resource) of everything that an installation creates; a test compares it with the chart.
INSTALLED = (
    ("apps", "deployments"),
    ("", "services"),
    ("", "configmaps"),
    ("", "serviceaccounts"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("networking.k8s.io", "networkpolicies"),
    ("", "secrets"),  # where Helm keeps its releases
)


class Api(StrEnum):
    """Whether a group's kind is served; an aggregated API is `broken` while its own server is down."""

    SERVED = "served"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    is_ready: bool
    is_cordoned: bool
    num_gpus: int  # capacity: what the device plugin once announced
    num_allocatable_gpus: int  # of those, the healthy ones; some may be in use


@dataclass(frozen=True, slots=True)
class Facts:
    """None: the user may not see it."""

    server_version: str  # as the server writes it: v1.35.0, v1.31.4-gke.1256000
    namespace: str
    has_namespace: bool | None
    denied: tuple[str, ...]  # resources of INSTALLED that the user may not create in the namespace
    nodes: tuple[Node, ...] | None
    metrics: Api
    node_pools: Api
    scaled_objects: Api


def collect(connection: Connection) -> Facts:
    """Asks the server; raises Refused or Unreachable where there is no answer to go on with."""
    with connection.asking("its version"):
        version = client.VersionApi(connection.api).get_code(_request_timeout=TIMEOUT_S)
    return Facts(
        server_version=version.git_version,
        namespace=connection.namespace,
        has_namespace=_has_namespace(connection),
        denied=tuple(resource for group, resource in INSTALLED if not _may_create(connection, group, resource)),
        nodes=_nodes(connection),
        metrics=_api(connection, "metrics.k8s.io", "v1beta1", "PodMetrics"),
        node_pools=_api(connection, "karpenter.sh", "v1", "NodePool"),
        scaled_objects=_api(connection, "keda.sh", "v1alpha1", "ScaledObject"),
    )


def _has_namespace(connection: Connection) -> bool | None:
    try:
        with connection.asking(f"the namespace '{connection.namespace}'"):
            client.CoreV1Api(connection.api).read_namespace(connection.namespace, _request_timeout=TIMEOUT_S)
    except Refused as error:
        if error.status == 403:
            return None
        if error.status == 404:
            return False
        raise
    return True


def _may_create(connection: Connection, group: str, resource: str) -> bool:
    """Whether this user may; raises Refused for one who may not even ask, such as the anonymous user."""
    attributes = client.V1ResourceAttributes(
        namespace=connection.namespace, group=group, resource=resource, verb="create"
    )
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
    with connection.asking("this user's own rights"):
        api = client.AuthorizationV1Api(connection.api)
        answer = api.create_self_subject_access_review(review, _request_timeout=TIMEOUT_S)
        return bool(answer.status and answer.status.allowed)


def _nodes(connection: Connection) -> tuple[Node, ...] | None:
    nodes: list[Node] = []
    core, more = client.CoreV1Api(connection.api), ""
    try:
        while True:
            with connection.asking("its nodes"):
                page = core.list_node(limit=PAGE_SIZE, _continue=more, _request_timeout=TIMEOUT_S)
                nodes.extend(_node(it) for it in page.items)
                more = (page.metadata and page.metadata._continue) or ""
            if not more:
                return tuple(nodes)
    except Refused as error:
        if error.status == 403:
            return None
        raise


def _node(node: client.V1Node) -> Node:
    metadata, spec, status = (
        node.metadata or client.V1ObjectMeta(),
        node.spec or client.V1NodeSpec(),
        node.status or client.V1NodeStatus(),
    )
    return Node(
        name=metadata.name or "",
        is_ready=any(it.type == "Ready" and it.status == "True" for it in status.conditions or []),
        is_cordoned=bool(spec.unschedulable),
        num_gpus=_num_gpus(status.capacity),
        num_allocatable_gpus=_num_gpus(status.allocatable),
    )


def _num_gpus(resources: Mapping[str, str] | None) -> int:
    """A quantity as the server writes it: "8", and "1k" for a thousand shared ones."""
    return int(parse_quantity((resources or {}).get(GPU, "0")))


def _api(connection: Connection, group: str, version: str, kind: str) -> Api:
    """By discovery, which every signed-in user may read; reading CustomResourceDefinitions takes more rights."""
    try:
        with connection.asking(f"the API {group}/{version}"):
            api = client.CustomObjectsApi(connection.api)
            found = api.get_api_resources(group, version, _request_timeout=TIMEOUT_S)
            return Api.SERVED if any(it.kind == kind for it in found.resources) else Api.ABSENT
    except Refused as error:
        if error.status == 404:
            return Api.ABSENT
        if error.status == 503:
            return Api.BROKEN
        raise
