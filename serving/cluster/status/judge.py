"""Which parts of a release serve, which wait, and are requests answered at all? Pure: ClusterSnapshot in, Status out.

A pool serves if a Service sends to at least one of its pods; that is what the API knows. Which variants really loaded, and where a
request goes, only the gateway knows, so that is not shown here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from serving.cluster.metrics_api import MetricsApi
from serving.cluster.objects.fields import GATEWAY, TRITON, WARM_NODES, age_s, condition
from serving.cluster.objects.nodes import NodeClaim
from serving.cluster.objects.pods import Deployment, Pod
from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.cold_starts import ColdLine, Report, of_pool
from serving.cluster.status.pod_problems import reason, refused
from serving.cluster.status.scaling import ScalerReport, ScalerStatus, ScalingLine, of_deployment
from serving.cluster.status.scheduling import Reason, duration, step

_ORDER = {GATEWAY: 0, TRITON: 1}


class Standing(StrEnum):
    SERVES = "serves"  # at least one pod answers
    WAITS = "waits"  # pods are wanted and none answers
    OFF = "off"  # none is wanted


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that does not serve, or pods that could not even be made (`pod` None)."""

    pod: str | None
    why: str
    way_out: str | None
    is_for_ever: bool = False  # until somebody does something


@dataclass(frozen=True, slots=True)
class Cause:
    """What somebody has to do something about; while nothing is answered, also what is waited for. `of`: the parts, or what else."""

    of: str
    why: str
    way_out: str | None
    is_for_ever: bool


@dataclass(frozen=True, slots=True)
class ReleasePart:
    """The gateway, a pool, or the scaler, without which requests are still answered."""

    name: str  # a pool's own, else the component's
    component: str
    standing: Standing
    device: str  # of a pool: cpu or gpu, by what its pods ask for
    num_ready: int
    num_wanted: int
    image: str
    models: tuple[str, ...]
    nodes: tuple[str, ...]
    autoscaler: str | None
    waiting: tuple[Waiting, ...]
    cold_starts: tuple[ColdLine, ...] = ()  # of a GPU pool: the last, and one in progress
    scaling: ScalingLine | None = None

    @property
    def is_gateway(self) -> bool:
        return self.component == GATEWAY

    @property
    def is_pool(self) -> bool:
        return self.component == TRITON

    @property
    def title(self) -> str:
        return f"pool {self.name}" if self.is_pool else self.name


@dataclass(frozen=True, slots=True)
class Release:
    name: str
    version: str
    is_serving: bool
    now: str  # the sentence that says what is answered, and by what
    parts: tuple[ReleasePart, ...]  # the gateway first, then the pools by name
    causes: tuple[Cause, ...] = ()  # the gravest first
    num_refused: int | None = None  # requests of the last minute that no pool could take, as its scaler knows


@dataclass(frozen=True, slots=True)
class NodeLine:
    name: str
    standing: str  # "ready", "not ready", "cordoned", "coming"
    instance_type: str
    gpus: dict[str, int]
    num_pods: int
    note: str


@dataclass(frozen=True, slots=True)
class Status:
    releases: tuple[Release, ...]
    nodes: tuple[NodeLine, ...]
    unseen: tuple[str, ...]  # what this user may not see, and so is missing above

    @property
    def is_serving(self) -> bool:
        return bool(self.releases) and all(it.is_serving for it in self.releases)

    @property
    def waits_for_ever(self) -> bool:
        """For something that does not come until somebody does something."""
        return any(cause.is_for_ever for it in self.releases for cause in it.causes)


def judge(
    snapshot: ClusterSnapshot,
    now: datetime,
    release: str | None = None,
    reports: Mapping[str, Report] | None = None,
    scalers: Mapping[str, ScalerReport] | None = None,
    external: MetricsApi | None = None,
) -> Status:
    """Judges one release, or all. `reports`: the cold starts of each release's scaler, by release, and `scalers`: its status.

    `external`: who serves external metrics, where an autoscaler reads them.
    """
    names = sorted({it.release for it in snapshot.deployments or ()})
    chosen = [it for it in names if release is None or it == release]
    return Status(
        releases=tuple(
            _release(it, snapshot, now, (reports or {}).get(it), (scalers or {}).get(it), external) for it in chosen
        ),
        nodes=_nodes(snapshot, set(chosen), now),
        unseen=snapshot.forbidden,
    )


def _release(
    name: str,
    snapshot: ClusterSnapshot,
    now: datetime,
    report: Report | None,
    scaler: ScalerReport | None,
    external: MetricsApi | None,
) -> Release:
    deployments = sorted(
        (it for it in snapshot.deployments or () if it.release == name),
        key=lambda it: (_ORDER.get(it.component, len(_ORDER)), it.pool),
    )
    parts = tuple(
        replace(_part(it, snapshot, now, report), scaling=of_deployment(it, snapshot, scaler, external, now))
        for it in deployments
    )
    serving = {it.component for it in parts if it.standing is Standing.SERVES}
    is_serving = {GATEWAY, TRITON} <= serving
    return Release(
        name=name,
        version=next((it.version for it in deployments), ""),
        is_serving=is_serving,
        now=_now(parts),
        parts=parts,
        causes=_causes(name, parts, snapshot, now, is_serving=is_serving),
        num_refused=round(scaler.failed[""]) if isinstance(scaler, ScalerStatus) and "" in scaler.failed else None,
    )


def _causes(
    name: str, parts: tuple[ReleasePart, ...], snapshot: ClusterSnapshot, now: datetime, *, is_serving: bool
) -> tuple[Cause, ...]:
    """Each once: parts that wait for the same are named together. What lasts comes first, and of that what leaves more unanswered."""
    found = list(_gateway_gone(name, parts, snapshot))
    by_weight = sorted(parts, key=lambda it: it.standing is Standing.SERVES)
    found += [Cause(it.title, w.why, w.way_out, w.is_for_ever) for it in by_weight for w in it.waiting]
    found += [
        Cause(it.title, problem.why, problem.way_out, problem.is_for_ever)
        for it in parts
        for problem in (it.scaling.problems if it.scaling else ())
    ]
    found += _held_nodes(name, snapshot)
    found += _certificates(snapshot, now)
    lasting = [it for it in found if it.is_for_ever]
    # A gateway that waits for its pools is no cause while one of these has its own.
    passing = [] if is_serving else [it for it in found if not it.is_for_ever and (it.of != GATEWAY or not lasting)]
    merged: dict[str, Cause] = {}
    for it in (*lasting, *passing):
        was = merged.get(it.why)
        of = it.of if was is None else was.of if it.of in was.of.split(", ") else f"{was.of}, {it.of}"
        merged[it.why] = replace(was or it, of=of)
    return tuple(merged.values())


def _gateway_gone(name: str, parts: tuple[ReleasePart, ...], snapshot: ClusterSnapshot) -> Iterator[Cause]:
    gateway = next((it for it in parts if it.is_gateway), None)
    where = f"--namespace {snapshot.namespace}"
    if gateway is None:
        way_out = f"install it again: helm {where} get values {name}, then helm upgrade; or helm rollback {name}"
        yield Cause(GATEWAY, "its Deployment is not there", way_out, is_for_ever=True)
    elif gateway.standing is Standing.OFF:
        way_out = f"kubectl {where} scale deployment --selector app.kubernetes.io/component={GATEWAY} --replicas=2"
        yield Cause(GATEWAY, "it is scaled to none", way_out, is_for_ever=True)


def _held_nodes(name: str, snapshot: ClusterSnapshot) -> Iterator[Cause]:
    """Nodes that are to be emptied, and a disruption budget does not let a pod of ours go."""
    for pod in snapshot.pods or ():
        node = snapshot.node(pod.node)
        if pod.release != name or node is None or not node.is_cordoned or pod.is_leaving or pod.has_ended:
            continue
        for it in snapshot.budgets or ():
            if it.num_allowed or not it.match_labels or not it.match_labels.items() <= pod.labels.items():
                continue
            why = (
                f"pod {pod.name} cannot be evicted: its disruption budget {it.name} wants {it.num_needed} of {it.num_expected} "
                f"healthy, and {it.num_healthy} {'is' if it.num_healthy == 1 else 'are'}"
            )
            is_too_few = it.num_needed >= it.num_expected
            way_out = "wait until the others are ready"
            if is_too_few:
                delete = f"kubectl --namespace {snapshot.namespace} delete pod {pod.name}"
                way_out = f"more replicas of the {pod.component} than its budget wants, or {delete}"
            yield Cause(f"node {node.name}, which is cordoned", why, way_out, is_for_ever=is_too_few)


def _certificates(snapshot: ClusterSnapshot, now: datetime) -> Iterator[Cause]:
    for it in snapshot.certificates or ():
        ready = condition(it.conditions, "Ready")
        says = f" ({ready.reason}: {ready.message})" if ready is not None and not ready.is_true else ""
        way_out = f"kubectl --namespace {snapshot.namespace} describe certificate {it.name} says why it is not renewed"
        if it.ends_at is not None and it.ends_at <= now:
            why = f"it has expired, {duration(age_s(it.ends_at, now))} ago{says}"
            yield Cause(f"certificate {it.name} (secret {it.secret})", why, way_out, is_for_ever=True)


def _now(parts: tuple[ReleasePart, ...]) -> str:
    serving = [it for it in parts if it.standing is Standing.SERVES and it.is_pool]
    waiting = [it for it in parts if it.standing is Standing.WAITS and it.is_pool]
    if not any(it.is_gateway for it in parts):
        return "nothing is answered: this release has no gateway"
    if not any(it.is_gateway and it.standing is Standing.SERVES for it in parts):
        return "nothing is answered: no gateway is ready"
    if not serving:
        return "the gateway answers, with errors only: no pool has a Triton that is ready"
    answered = f"answered by {' and '.join(f'pool {it.name} ({it.device})' for it in serving)}"
    bridged = [it.name for it in waiting if it.device == "gpu"]
    if bridged and any(it.device == "cpu" for it in serving):
        return f"{answered}; the CPU bridges until {' and '.join(bridged)} is ready"
    return f"{answered}; {' and '.join(it.name for it in waiting)} is not ready" if waiting else answered


def _part(it: Deployment, snapshot: ClusterSnapshot, now: datetime, report: Report | None) -> ReleasePart:
    pods = [pod for pod in snapshot.pods or () if _is_of(pod, it)]
    num_ready = it.num_ready
    if snapshot.pods is not None and snapshot.answering is not None and it.component != WARM_NODES:
        num_ready = sum(pod.name in snapshot.answering for pod in pods)
    waiting = tuple(_waiting(it, pods, snapshot, now))
    return ReleasePart(
        name=it.pool or it.component,
        component=it.component,
        standing=Standing.SERVES if num_ready else Standing.WAITS if it.replicas else Standing.OFF,
        device="" if it.component != TRITON else "gpu" if it.spec.gpus else "cpu",
        num_ready=num_ready,
        num_wanted=it.replicas,
        image=it.spec.main.image,
        models=it.models,
        nodes=tuple(sorted({pod.node for pod in pods if pod.node})),
        autoscaler=_autoscaler(it, snapshot),
        waiting=waiting,
        cold_starts=of_pool(it.pool, report, pods, snapshot, now) if it.spec.gpus else (),
    )


def _is_of(pod: Pod, it: Deployment) -> bool:
    return (pod.release, pod.component, pod.pool) == (it.release, it.component, it.pool)


def _waiting(it: Deployment, pods: list[Pod], snapshot: ClusterSnapshot, now: datetime) -> Iterable[Waiting]:
    if found := refused(it, snapshot):
        yield Waiting(None, found.why, found.way_out, found.is_for_ever)
    for pod in pods:
        found = reason(pod, snapshot, now)
        is_asked = snapshot.answering is not None and it.component != WARM_NODES  # to which no Service sends
        if found is None and is_asked and pod.name not in (snapshot.answering or ()):
            found = _without_service(it, snapshot)
        if found:
            yield Waiting(pod.name, found.why, found.way_out, found.is_for_ever)


def _without_service(it: Deployment, snapshot: ClusterSnapshot) -> Reason:
    of_it = (it.release, it.component, it.pool)
    if snapshot.services and of_it not in {(each.release, each.component, each.pool) for each in snapshot.services}:
        way_out = f"helm --namespace {snapshot.namespace} upgrade puts it back"
        return Reason("it is ready, but its Service is not there", way_out, is_for_ever=True)
    return Reason("it is ready, but no Service sends to it yet")


def _autoscaler(it: Deployment, snapshot: ClusterSnapshot) -> str | None:
    """Who sets the number of replicas; None if nobody does, as far as the snapshot shows."""
    if it.is_scaled_by_us:
        return "the scaler"
    scaled = next((each for each in snapshot.scaled_objects or () if each.target == it.name), None)
    hpa = next((each for each in snapshot.autoscalers or () if each.target == it.name), None)
    if hpa is None and scaled is None:
        return None
    by = f"KEDA {scaled.min_replicas} to {scaled.max_replicas}" if scaled else ""
    if scaled:
        by += "".join(
            f", {each.kind} {each.status}: {each.message}"
            for each in scaled.conditions
            if (each.kind == "Ready" and not each.is_true) or (each.kind in ("Paused", "Fallback") and each.is_true)
        )
    if hpa is None:
        return by
    aims = ", ".join(hpa.metrics) or "no metric"
    by_metrics = f"{'' if scaled else f'HPA {hpa.min_replicas} to {hpa.max_replicas}, '}{aims}{f' ({hpa.trouble})' if hpa.trouble else ''}"
    return f"{by}, {by_metrics}" if by else by_metrics


def _nodes(snapshot: ClusterSnapshot, releases: set[str], now: datetime) -> tuple[NodeLine, ...]:
    """Nodes with our pods, nodes with cards, and nodes that are being bought."""
    on: dict[str, int] = {}
    for pod in snapshot.pods or ():
        if pod.node and pod.release in releases and not pod.has_ended:
            on[pod.node] = on.get(pod.node, 0) + 1
    coming = [it for it in snapshot.node_claims or () if it.is_coming]
    named = {it.node for it in coming}
    lines = [
        NodeLine(
            name=it.name,
            standing="not ready" if not it.is_ready else "cordoned" if it.is_cordoned else "ready",
            instance_type=it.instance_type,
            gpus=dict(it.allocatable),
            num_pods=on.get(it.name, 0),
            note=it.not_ready,
        )
        for it in snapshot.nodes or ()
        if (it.name in on or it.allocatable) and it.name not in named
    ]
    return (*lines, *(_coming(it, on, now) for it in coming))


def _coming(it: NodeClaim, on: dict[str, int], now: datetime) -> NodeLine:
    pool = f"NodePool {it.node_pool}: " if it.node_pool else ""
    return NodeLine(
        it.node or it.name, "coming", it.instance_type, dict(it.gpus), on.get(it.node, 0), f"{pool}it {step(it, now)}"
    )
