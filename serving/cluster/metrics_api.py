"""Is a metrics API served, and by whom? HPAs read them; behind each stands a server that somebody installed, and that may be down."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from serving.cluster.api import Connection
from serving.cluster.client import ApiError
from serving.cluster.objects.fields import at, condition, conditions

METRICS = ("metrics.k8s.io", "external.metrics.k8s.io", "custom.metrics.k8s.io")


class Api(StrEnum):
    """Whether something is served; an aggregated API is `broken` while its own server is down."""

    SERVED = "served"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class MetricsApi:
    state: Api
    server: str | None = None  # "kube-system/metrics-server"; None where it cannot be seen
    trouble: str = ""  # the aggregator's own words


def discovered(connection: Connection, group: str, version: str) -> frozenset[str] | Api:
    try:
        found = connection.get(f"/apis/{group}/{version}", f"the API {group}/{version}")
    except ApiError as error:
        if error.status in (404, 503):
            return Api.ABSENT if error.status == 404 else Api.BROKEN
        raise
    return frozenset(str(it.get("kind")) for it in found["resources"])


def metrics_api(connection: Connection, group: str) -> MetricsApi:
    """The aggregator's own word, which names the server behind it; for who may not read that, discovery."""
    versions = ("v1beta2", "v1beta1") if group.startswith("custom") else ("v1beta1",)
    broken = None
    for version in versions:
        path = f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}"
        state = server = None
        trouble = ""
        try:
            found = connection.get(path, f"who serves {group}")
            of = at(found, "spec", "service", default={})
            server = f"{of.get('namespace')}/{of.get('name')}" if of else None
            available = condition(conditions(found), "Available")
            state = Api.SERVED if available and available.is_true else Api.BROKEN
            trouble = f"{available.reason}: {available.message}" if available and not available.is_true else ""
        except ApiError as error:
            if error.status == 403:
                names = discovered(connection, group, version)
                state = names if isinstance(names, Api) else Api.SERVED
            elif error.status != 404:
                raise
        if state is Api.SERVED:
            return MetricsApi(state, server)
        if state is Api.BROKEN:
            broken = MetricsApi(state, server, trouble)
    return broken or MetricsApi(Api.ABSENT)
