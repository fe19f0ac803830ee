"""Reads what `tandem cluster status` judges and prints it, on a terminal or as JSON; its exit code.

One line for each part, what waits indented under it, and pods with the same reason in one line. A scaler is asked through the API
server's proxy (`get services/proxy`); whatever keeps its report away becomes a sentence: rights, network policies that do not let the API
server in, a scaler that starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from urllib3 import Timeout

from serving.cluster.api import CONNECT_TIMEOUT_S, Connection, connect
from serving.cluster.client import ApiError, Unreachable
from serving.cluster.metrics_api import MetricsApi, metrics_api
from serving.cluster.objects.fields import COMPONENT, OURS, SCALER, Object, text, there_are
from serving.cluster.objects.gpus import listed
from serving.cluster.objects.namespace import Lease
from serving.cluster.snapshot import ClusterSnapshot, look
from serving.cluster.status.cold_starts import ColdLine, Report, parse_report
from serving.cluster.status.judge import NodeLine, Release, ReleasePart, Status, Waiting, judge
from serving.cluster.status.scaling import EXTERNAL, KEDA_LEASE, ScalerReport, ScalingLine, parse_status
from serving.cluster.status.scheduling import BUYERS, duration
from serving.errors import UserError

LISTS = (
    "pods", "endpoint_slices", "services", "autoscalers", "scaled_objects", "volume_claims", "events", "nodes", "node_claims",
    "budgets", "certificates",
)  # fmt: skip
PORT = "metrics"  # of the scaler's Service: where it answers HTTP
READ_S = 3.0  # it answers in milliseconds, or a network policy drops what is asked, and an API server tries for 30 s; a guess
PATIENCE = Timeout(connect=CONNECT_TIMEOUT_S, read=READ_S)
RIGHT = "get services/proxy"
Value = TypeVar("Value")
LET_IN = "does networkPolicy.metricsFrom let the API server in?"


def collect(connection: Connection) -> ClusterSnapshot:
    """Without Deployments nothing else is asked for. Raises ApiError, Unreachable where not even these can be listed."""
    found = look(connection, "deployments")
    if found.deployments is None:
        raise ApiError(connection.server, 403, f"the deployments of namespace '{connection.namespace}'")
    if not found.deployments:
        return found
    found = replace(look(connection, *LISTS), deployments=found.deployments)
    is_anything_unscheduled = any(it.node is None and not it.has_ended for it in found.pods or ())
    if is_anything_unscheduled and found.node_claims:
        found = replace(found, claim_events=look(connection, "claim_events").claim_events)
    # Their Leases tell whether those are alive on whom this snapshot waits.
    names = [*([KEDA_LEASE] if found.scaled_objects else []), *(BUYERS if is_anything_unscheduled else [])]
    leases = [_lease(connection, name) for name in names]
    return replace(found, leases=None if None in leases else tuple(it for each in leases for it in each or ()))


def _lease(connection: Connection, name: str) -> tuple[Lease, ...] | None:
    return look(connection, leases={"fieldSelector": f"metadata.name={name}"}).leases


def external_api(connection: Connection, snapshot: ClusterSnapshot) -> MetricsApi | None:
    """Who serves external metrics, if an autoscaler reads them. Raises ApiError, Unreachable."""
    reads = any(it.reads_external for it in snapshot.autoscalers or ())
    return metrics_api(connection, EXTERNAL) if reads else None


def elsewhere(connection: Connection) -> tuple[str, ...]:
    """The namespaces that hold a Tandem, as far as this user may see them."""
    query = {"labelSelector": OURS}
    found = connection.items(
        "/apis/apps/v1/deployments", "deployments", lambda it: text(it, "metadata", "namespace"), query
    )
    return tuple(sorted(set(found or ())))


def scaler_reports(connection: Connection, snapshot: ClusterSnapshot) -> dict[str, Report]:
    """Cold starts, by release. Raises ApiError, Unreachable as any other question does."""
    return {
        release: _page(connection, name, "cold-starts", parse_report)
        for release, name in _scalers(connection, snapshot)
    }


def scaler_statuses(
    connection: Connection, snapshot: ClusterSnapshot, reports: Mapping[str, Report]
) -> dict[str, ScalerReport]:
    """By release; one that did not tell its cold starts is not asked again."""
    return {
        release: told
        if isinstance(told := reports.get(release, ""), str) and told
        else _page(connection, name, "status", parse_status)
        for release, name in _scalers(connection, snapshot)
    }


def _scalers(connection: Connection, snapshot: ClusterSnapshot) -> list[tuple[str, str]]:
    """Release and name of each scaler's Service."""
    releases = {it.release for it in snapshot.deployments or () if it.component == SCALER}
    if not releases:
        return []
    services = look(connection, services={"labelSelector": f"{COMPONENT}={SCALER}"}).services or ()
    return [(it.release, it.name) for it in services if it.release in releases and PORT in it.ports]


def _page(connection: Connection, name: str, page: str, parse: Callable[[Object], Value]) -> Value | str:
    path = f"/api/v1/namespaces/{connection.namespace}/services/{name}:{PORT}/proxy/{page}"
    try:
        return parse(connection.get(path, f"a scaler's {page}", timeout=PATIENCE))
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
    """0 every release shown serves and nothing waits for ever, 1 otherwise."""
    connection = connect(context, namespace)
    with connection.api:
        found = read_status(connection, release)
        if found is None:
            raise _nothing_installed(connection, elsewhere(connection))
    as_document = {
        "is_serving": found.is_serving,
        "waits_for_ever": found.waits_for_ever,
        **dataclasses.asdict(found),
    }
    print(connection.document(as_document) if as_json else f"{connection}\n{as_text(found)}")
    return 0 if found.is_serving and not found.waits_for_ever else 1


def read_status(connection: Connection, release: str | None = None) -> Status | None:
    """None where no Tandem is installed. Raises UserError for a release that is not there; ApiError, Unreachable."""
    snapshot = collect(connection)
    if not snapshot.deployments:
        return None
    releases = sorted({it.release for it in snapshot.deployments})
    if release is not None and release not in releases:
        raise UserError(f"no release '{release}' in namespace '{snapshot.namespace}'; {there_are(releases)}")
    reports = scaler_reports(connection, snapshot)
    scalers = scaler_statuses(connection, snapshot, reports)
    return judge(snapshot, datetime.now(UTC), release, reports, scalers, external_api(connection, snapshot))


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
    for cause in it.causes:
        yield f"  {'cause':<{COLUMN}}{cause.of}: {cause.why}{f'; {cause.way_out}' if cause.way_out else ''}"
    if it.num_refused:
        yield f"  {'errors':<{COLUMN}}{it.num_refused} requests of the last minute were refused, because no pool could take them"
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
    if it.scaling is not None and (numbers := scaling_numbers(it.scaling)):
        yield f"  {'':<{COLUMN}}- {numbers}"
    for cold in it.cold_starts:
        yield f"  {'':<{COLUMN}}- {_cold_start(cold)}"


def scaling_numbers(it: ScalingLine) -> str:
    """What its scaler tells of a pool; empty where nobody does."""
    said = [] if it.wanted is None else [f"wanted {it.wanted}"]
    if it.demand_replicas is not None:
        said.append(f"demand {it.demand_replicas:.2g}")
    if it.decision is not None:
        since = f"{duration(it.decided_s_ago or 0.0)} ago"
        said.append(f"last decision {since}, {it.decision.before} -> {it.decision.after}: {it.decision.sentence}")
    if it.num_requests is not None:
        said.append(f"{it.error_ratio or 0.0:.1%} of {it.num_requests} requests of the last minute failed")
    return "; ".join(said)


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
