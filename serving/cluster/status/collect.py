"""Reads what `tandem cluster status` judges: a snapshot of the namespace and its nodes, and what the scalers there report.

A scaler is asked through the API server's proxy (`get services/proxy`). Whatever keeps its report away becomes a sentence: rights, network
policies that do not let the API server in, a scaler that starts.
"""

from __future__ import annotations

from dataclasses import replace

from urllib3 import Timeout

from serving.cluster.api import CONNECT_TIMEOUT_S, Connection
from serving.cluster.client import ApiError, Unreachable
from serving.cluster.objects.fields import COMPONENT, OURS, SCALER, text
from serving.cluster.snapshot import Snapshot, look
from serving.cluster.status.cold_starts import Report, parse_report

LISTS = (
    "pods", "endpoint_slices", "autoscalers", "scaled_objects", "volume_claims", "events", "nodes", "node_claims",
)  # fmt: skip
PORT = "metrics"  # of the scaler's Service: where it answers HTTP
READ_S = 3.0  # it answers in milliseconds, or a network policy drops what is asked, and an API server tries for 30 s; a guess
PATIENCE = Timeout(connect=CONNECT_TIMEOUT_S, read=READ_S)
RIGHT = "get services/proxy"
LET_IN = "does networkPolicy.metricsFrom let the API server in?"


def collect(connection: Connection) -> Snapshot:
    """Without Deployments nothing else is asked for. Raises ApiError, Unreachable where not even these can be listed."""
    found = look(connection, "deployments")
    if found.deployments is None:
        raise ApiError(connection.server, 403, f"the deployments of namespace '{connection.namespace}'")
    return replace(look(connection, *LISTS), deployments=found.deployments) if found.deployments else found


def elsewhere(connection: Connection) -> tuple[str, ...]:
    """The namespaces that hold a Tandem, as far as this user may see them."""
    query = {"labelSelector": OURS}
    found = connection.items(
        "/apis/apps/v1/deployments", "deployments", lambda it: text(it, "metadata", "namespace"), query
    )
    return tuple(sorted(set(found or ())))


def scaler_reports(connection: Connection, snapshot: Snapshot) -> dict[str, Report]:
    """By release. Raises ApiError, Unreachable as any other question does."""
    releases = {it.release for it in snapshot.deployments or () if it.component == SCALER}
    if not releases:
        return {}
    services = look(connection, services={"labelSelector": f"{COMPONENT}={SCALER}"}).services or ()
    return {it.release: _report(connection, it.name) for it in services if it.release in releases and PORT in it.ports}


def _report(connection: Connection, name: str) -> Report:
    path = f"/api/v1/namespaces/{connection.namespace}/services/{name}:{PORT}/proxy/cold-starts"
    try:
        return parse_report(connection.get(path, "a scaler's cold starts", timeout=PATIENCE))
    except ApiError as error:
        if error.status == 403:
            return f"this user lacks {RIGHT}"
        return f"{name} answers {error.status} through the API server: is its pod ready, and {LET_IN}"
    except Unreachable:
        return f"{name} does not answer within {READ_S:g} s through the API server: {LET_IN}"
    except (KeyError, TypeError, ValueError):
        return f"{name} answers in another form: is it of this version?"
