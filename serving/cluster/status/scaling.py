"""Who sets a pool's number, does that work, what is wanted, and why? Pure: a Deployment, its ClusterSnapshot and its scaler's page in.

The scaler's page (`/status`) tells demand, decisions and errors whoever follows it: itself, KEDA, or an HPA by way of Prometheus. Rule:
what nobody tells is None, and an autoscaler is called dead only by what it left behind: a Lease, conditions, an API that does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from serving.cluster.metrics_api import Api, MetricsApi
from serving.cluster.objects.fields import SCALER, Object, age_s, at, text
from serving.cluster.objects.namespace import Autoscaler, ScaledObject
from serving.cluster.objects.pods import Deployment
from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.scheduling import LOOK_S, PATIENCE_S, Reason, dead, duration, is_alive

EXTERNAL = "external.metrics.k8s.io"
KEDA_LEASE = "operator.keda.sh"


@dataclass(frozen=True, slots=True)
class Decision:
    """The last change of a pool's number."""

    before: int
    after: int
    sentence: str
    decided_at: float  # seconds of 1970


@dataclass(frozen=True, slots=True)
class ScalerStatus:
    """A scaler's page. `holds_s`: for how long it has published no number; `problem`: why it cannot set one."""

    wanted: Mapping[str, int] | None = None
    demands: Mapping[str, float] = field(default_factory=dict)
    holds: str = ""
    holds_s: float = 0.0
    problem: str = ""
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    good: Mapping[str, float] = field(default_factory=dict)  # requests of the last minute
    failed: Mapping[str, float] = field(default_factory=dict)


ScalerReport = ScalerStatus | str  # or why it tells nothing


def parse_status(page: Object) -> ScalerStatus:
    """Raises what a text of another shape raises (KeyError, TypeError, ValueError). An older scaler tells less."""
    decisions = {
        str(pool): Decision(int(it["before"]), int(it["after"]), str(it["sentence"]), float(it["decided_at"]))
        for pool, it in at(page, "decisions", default={}).items()
    }
    traffic = at(page, "traffic", default={})
    return ScalerStatus(
        wanted=None if page["wanted"] is None else {str(pool): int(number) for pool, number in page["wanted"].items()},
        demands={str(pool): float(it["replicas"]) for pool, it in page["demands"].items()},
        holds=text(page, "holds"),
        holds_s=float(at(page, "holds_s", default=0.0)),
        problem=text(page, "applies", "problem"),
        decisions=decisions,
        good={str(pool): float(it["num_good"]) for pool, it in traffic.items()},
        failed={str(pool): float(it["num_failed"]) for pool, it in traffic.items()},
    )


@dataclass(frozen=True, slots=True)
class ScalingLine:
    """`by`: "the scaler", "KEDA", "an HPA"; `problems`: why that does not work. `error_ratio`: of the last minute's requests."""

    by: str
    problems: tuple[Reason, ...]
    wanted: int | None = None
    demand_replicas: float | None = None
    decision: Decision | None = None
    decided_s_ago: float | None = None
    error_ratio: float | None = None
    num_requests: int | None = None

    @property
    def works(self) -> bool:
        return not self.problems


def of_deployment(
    it: Deployment,
    snapshot: ClusterSnapshot,
    report: ScalerReport | None,
    external: MetricsApi | None,
    now: datetime,
) -> ScalingLine | None:
    """None where nobody sets its number. `external`: who serves external metrics, where somebody has looked."""
    scaled = next((each for each in snapshot.scaled_objects or () if each.target == it.name), None)
    hpa = next((each for each in snapshot.autoscalers or () if each.target == it.name), None)
    if it.is_scaled_by_us:
        by, problems = "the scaler", tuple(_scaler(it, snapshot, report))
    elif scaled is not None:
        by = "KEDA"
        problems = (*_keda(scaled, snapshot, now), *(_hpa(hpa, external, now) if hpa else ()))
    elif hpa is not None:
        by, problems = "an HPA", tuple(_hpa(hpa, external, now))
    else:
        return None
    page = report if isinstance(report, ScalerStatus) else ScalerStatus()
    decision = page.decisions.get(it.pool)
    requests = page.good.get(it.pool, 0.0) + page.failed.get(it.pool, 0.0)
    return ScalingLine(
        by=by,
        problems=problems,
        wanted=(page.wanted or {}).get(it.pool),
        demand_replicas=page.demands.get(it.pool),
        decision=decision,
        decided_s_ago=None if decision is None else max(0.0, now.timestamp() - decision.decided_at),
        error_ratio=page.failed.get(it.pool, 0.0) / requests if requests else None,
        num_requests=round(requests) if it.pool in page.good else None,
    )


def _scaler(it: Deployment, snapshot: ClusterSnapshot, report: ScalerReport | None) -> Iterator[Reason]:
    ours = [each for each in snapshot.deployments or () if (each.release, each.component) == (it.release, SCALER)]
    logs = f"kubectl --namespace {snapshot.namespace} logs --selector app.kubernetes.io/component={SCALER}"
    if not ours:
        yield Reason(
            "nobody sets its number: the release has no scaler", "scaler.enabled, and upgrade", is_for_ever=True
        )
    elif not any(each.replicas for each in ours):
        way_out = f"kubectl --namespace {snapshot.namespace} scale deployment {ours[0].name} --replicas=2"
        yield Reason("nobody sets its number: the scaler is scaled to none", way_out, is_for_ever=True)
    elif snapshot.pods is not None and not any(
        pod.is_ready for pod in snapshot.pods if (pod.release, pod.component) == (it.release, SCALER)
    ):
        yield Reason("nobody sets its number now: no scaler is ready", f"read why: {logs}")
    elif isinstance(report, ScalerStatus):
        if report.problem:
            yield Reason(f"the scaler cannot set its number: {report.problem}", logs, is_for_ever=True)
        if report.wanted is None:
            yield Reason(f"the scaler tells no number: {report.holds}", logs, is_for_ever=report.holds_s > LOOK_S)


def _keda(it: ScaledObject, snapshot: ClusterSnapshot, now: datetime) -> Iterator[Reason]:
    operators = [each for each in snapshot.leases or () if each.name == KEDA_LEASE]
    if operators and not any(is_alive(each, now) for each in operators):
        yield dead(operators[0], "KEDA", now)
        return
    if not it.conditions and age_s(it.created_at, now) > LOOK_S:
        why = f"KEDA has not looked at its ScaledObject for {duration(age_s(it.created_at, now))}"
        yield Reason(
            why, "is its operator up? kubectl get pods --all-namespaces | grep keda-operator", is_for_ever=True
        )
    for each in it.conditions:
        if (each.kind == "Ready" and not each.is_true) or (each.kind in ("Paused", "Fallback") and each.is_true):
            why = f"KEDA says {each.kind} {each.status}: {each.message}"
            yield Reason(
                why,
                f"kubectl --namespace {snapshot.namespace} describe scaledobject {it.name}",
                is_for_ever=each.kind == "Ready",
            )


def _hpa(it: Autoscaler, external: MetricsApi | None, now: datetime) -> Iterator[Reason]:
    if it.reads_external and external is not None and external.state is not Api.SERVED:
        by = f" by {external.server}" if external.server else ""
        says = f" ({external.trouble})" if external.trouble else ""
        is_not = f"is registered{by} and does not answer{says}" if external.state is Api.BROKEN else "is not served"
        way_out = "is prometheus-adapter, or KEDA's metrics server, up? kubectl get apiservices"
        yield Reason(f"its HPA reads {EXTERNAL}, which {is_not}", way_out, is_for_ever=True)
        return
    broken = next(
        (each for each in it.conditions if each.kind in ("AbleToScale", "ScalingActive") and not each.is_true), None
    )
    if broken is not None and broken.reason != "ScalingDisabled":  # at none by design
        lasts = age_s(broken.since, now) > PATIENCE_S / 3  # 5 minutes: metrics of a new pool take one
        yield Reason(f"its HPA says {it.trouble}", f"kubectl describe hpa {it.name}", is_for_ever=lasts)
