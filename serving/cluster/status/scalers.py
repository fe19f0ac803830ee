"""What do the scalers of a namespace tell of cold starts? Asked through the API server's proxy (`get services/proxy`).

Whatever keeps an answer away is told and no more: rights, network policies that do not let the API server in, a scaler that starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from urllib3 import Timeout

from serving.cluster.api import Object, ask, items
from serving.cluster.connection import CONNECT_TIMEOUT_S, Connection, Refused, Unreachable
from serving.cluster.fields import at, label, name_of
from serving.cluster.status.cold_starts import told_by_scaler
from serving.cluster.status.reading import COMPONENT, RELEASE
from serving.cluster.status.snapshot import Workload
from serving.decisions.cold_start import ColdStart

SCALER = "scaler"  # its component
PORT = "metrics"  # of its Service: where it answers HTTP
READ_S = 3.0  # it answers in milliseconds, or a network policy drops what is asked, and an API server tries for 30 s; a guess
PATIENCE = Timeout(connect=CONNECT_TIMEOUT_S, read=READ_S)
RIGHT = "get services/proxy"
LET_IN = "does networkPolicy.metricsFrom let the API server in?"


def scalers(connection: Connection, workloads: Iterable[Workload]) -> Iterator[tuple[str, tuple[ColdStart, ...] | str]]:
    """By release; why not, in words, where one does not tell. Raises Refused, Unreachable as any other question does."""
    releases = {it.release for it in workloads if it.component == SCALER}
    if not releases:
        return
    path = f"/api/v1/namespaces/{connection.namespace}/services"
    for it in items(connection, path, "its services", {"labelSelector": f"{COMPONENT}={SCALER}"}) or ():
        ports = {port.get("name") for port in at(it, "spec", "ports", default=())}
        if (release := label(it, RELEASE)) in releases and PORT in ports:
            yield release, _asked(connection, f"{path}/{name_of(it)}:{PORT}/proxy/cold-starts", name_of(it))


def _asked(connection: Connection, path: str, name: str) -> tuple[ColdStart, ...] | str:
    try:
        answer: Object = ask(connection, path, "a scaler's cold starts", timeout=PATIENCE)
        return told_by_scaler(answer)
    except Refused as error:
        if error.status == 403:
            return f"this user lacks {RIGHT}"
        return f"{name} answers {error.status} through the API server: is its pod ready, and {LET_IN}"
    except Unreachable:
        return f"{name} does not answer within {READ_S:g} s through the API server: {LET_IN}"
    except (KeyError, TypeError, ValueError):
        return f"{name} answers in another form: is it of this version?"
