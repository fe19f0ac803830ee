"""Reads what `tandem cluster status` judges and prints it, on a terminal or as JSON; its exit code.

One line for each part, what waits indented under it, and pods with the same reason in one line. A scaler is asked through the API
server's proxy (`get services/proxy`); whatever keeps its report away becomes a sentence: rights, network policies that do not let the API
server in, a scaler that starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from urllib3 import Timeout

from serving.cluster.api import CONNECT_TIMEOUT_S, Connection, connect
from serving.cluster.client import ApiError, Unreachable
from serving.cluster.objects.fields import COMPONENT, OURS, SCALER, text, there_are
from serving.cluster.objects.gpus import listed
from serving.cluster.snapshot import ClusterSnapshot, look
from serving.cluster.status.cold_starts import ColdLine, Report, parse_report
from serving.cluster.status.judge import NodeLine, Release, ReleasePart, Status, Waiting, judge
from serving.cluster.status.scheduling import duration
from serving.errors import UserError

LISTS = (
    "pods", "endpoint_slices", "autoscalers", "scaled_objects", "volume_claims", "events", "nodes", "node_claims",
)  # fmt: skip
PORT = "metrics"  # of the scaler's Service: where it answers HTTP
READ_S = 3.0  # it answers in milliseconds, or a network policy drops what is asked, and an API server tries for 30 s; a guess
PATIENCE = Timeout(connect=CONNECT_TIMEOUT_S, read=READ_S)
RIGHT = "get services/proxy"
LET_IN = "does networkPolicy.metricsFrom let the API server in?"


def collect(connection: Connection) -> ClusterSnapshot:
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


def scaler_reports(connection: Connection, snapshot: ClusterSnapshot) -> dict[str, Report]:
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


COLUMN = 8  # of the first word; "serves" is the longest there


def run(*, context: str | None, namespace: str | None, release: str | None, as_json: bool) -> int:
    """0 every release shown serves, 1 one does not."""
    connection = connect(context, namespace)
    with connection.api:
        snapshot = collect(connection)
        if not snapshot.deployments:
            raise _nothing_installed(connection, elsewhere(connection))
        reports = scaler_reports(connection, snapshot)
    releases = sorted({it.release for it in snapshot.deployments})
    if release is not None and release not in releases:
        raise UserError(f"no release '{release}' in namespace '{snapshot.namespace}'; {there_are(releases)}")
    found = judge(snapshot, datetime.now(UTC), release, reports)
    as_document = {"is_serving": found.is_serving, **dataclasses.asdict(found)}
    print(connection.document(as_document) if as_json else f"{connection}\n{as_text(found)}")
    return 0 if found.is_serving else 1


def _nothing_installed(connection: Connection, others: tuple[str, ...]) -> UserError:
    where = f"no Tandem in namespace '{connection.namespace}' of context '{connection.context}'"
    if others:
        return UserError(f"{where}, but in {', '.join(others)}: give --namespace")
    return UserError(f"{where}: give another --namespace, or install it (docs/kubernetes.md)")


def as_text(status: Status) -> str:
    lines = [line for it in status.releases for line in _release(it)]
    if status.nodes:
        lines += ["", "nodes", *map(_node, status.nodes)]
    if status.unseen:
        lines += ["", f"unknown: this user may not see {', '.join(status.unseen)}"]
    return "\n".join(lines)


def _release(it: Release) -> Iterator[str]:
    yield f"release {it.name}{f' ({it.version})' if it.version else ''}: {it.now}"
    for part in it.parts:
        yield from _part(part)


def _part(it: ReleasePart) -> Iterator[str]:
    name = f"pool {it.name} ({it.device})" if it.is_pool else it.name
    facts = [f"{it.num_ready} of {it.num_wanted} ready", it.image]
    if it.is_pool:
        facts.append(f"loads {', '.join(it.models) if it.models else 'all that its repository holds'}")
    if it.nodes:
        facts.append(f"on {', '.join(it.nodes)}")
    if it.autoscaler:
        facts.append(it.autoscaler)
    yield f"  {it.standing:<{COLUMN}}{name}: {'; '.join(facts)}"
    alike: dict[str, list[Waiting]] = {}
    for waiting in it.waiting:
        alike.setdefault(waiting.why, []).append(waiting)
    for first, *others in alike.values():
        who = f"{first.pod}{f' and {len(others)} more' if others else ''}: " if first.pod else ""
        yield f"  {'':<{COLUMN}}- {who}{first.why}{f'; {first.way_out}' if first.way_out else ''}"
    for cold in it.cold_starts:
        yield f"  {'':<{COLUMN}}- {_cold_start(cold)}"


def _node(it: NodeLine) -> str:
    facts = [
        it.instance_type,
        listed(it.gpus),
        f"{it.num_pods} pod{'' if it.num_pods == 1 else 's'} of Tandem",
        it.note,
    ]
    return f"  {it.standing:<{COLUMN + 2}}{it.name}: {', '.join(filter(None, facts))}"


def _cold_start(it: ColdLine) -> str:
    if it.told_by == "nobody":
        return f"cold starts: {it.why}"
    words = [f"{name.replace('_', ' ')} {duration(took_s)}" for name, took_s in it.phases_s.items() if name != "total"]
    if it.boot_s is not None and "node" in it.phases_s:
        place = words.index(f"node {duration(it.phases_s['node'])}")
        words[place] += f" (bought and booted in {duration(it.boot_s)})"
    if it.now_in:
        words.append(f"now {it.now_in.replace('_', ' ')}")
    phases = ", ".join(words) or "no phase was seen"
    if it.told_by == "pod":
        what = "newest pod" if it.state == "over" else "newest pod, on its way"
        return f"{what}, made {duration(it.age_s)} ago: {phases} (the decision, warm-up and first answer only a scaler knows that saw them)"
    total = f" in {duration(it.phases_s['total'])}" if "total" in it.phases_s else ""
    heads = {
        "over": f"last cold start, {duration(it.age_s)} ago{total}",
        "given up": f"last cold start, {duration(it.age_s)} ago, given up: no longer wanted",
        "goes on": f"cold start for {duration(it.age_s)}",
    }
    return f"{heads[it.state]}: {phases}"
