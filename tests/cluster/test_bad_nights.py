"""What goes wrong at night, from objects as servers write them: status names the cause first, with a way out, and says what waits for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from serving.cluster.metrics_api import Api, MetricsApi
from serving.cluster.status.command import as_text
from serving.cluster.status.judge import Cause, Status, judge
from serving.cluster.status.scaling import ScalerReport, parse_status
from tests.cluster.objects import (
    NO_CARD,
    NOW,
    RUNNING,
    Object,
    condition,
    container,
    deployment,
    ended,
    endpoints,
    event,
    labels,
    node,
    node_claim,
    pod,
    snapshot,
    waiting,
)


def before(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def scaler(*, ready: int = 2, replicas: int = 2) -> Object:
    it = deployment(ready=ready, replicas=replicas)
    it["metadata"] |= {"name": "tandem-scaler", "labels": labels("scaler")}
    return it


def scaler_pod(*containers: Object) -> Object:
    it = pod("", *containers, name="tandem-scaler-1")
    it["metadata"]["labels"] = labels("scaler")
    return it


def gpu(replicas: int = 1, ready: int = 0, by: str = "") -> Object:
    it = deployment("gpu", gpus=1, replicas=replicas, ready=ready)
    if by:
        it["metadata"]["annotations"] = {"tandem-scaled-by": by}
    return it


def waits(seconds: float, said: str = NO_CARD, gate: str = "") -> Object:
    """A GPU pod that no node takes, for so long."""
    it = pod("gpu", gpus=1, unscheduled=said)
    it["metadata"]["creationTimestamp"] = before(seconds)
    if gate:
        it["spec"]["schedulingGates"] = [{"name": gate}]
        it["status"]["conditions"][1]["reason"] = "SchedulingGated"
    return it


def since(it: Object, seconds: float) -> Object:
    """Its conditions changed so long ago."""
    for each in it["status"]["conditions"]:
        each["lastTransitionTime"] = before(seconds)
    return it


def leaving(it: Object, by_s: float) -> Object:
    it["metadata"]["deletionTimestamp"] = before(by_s)
    return it


def of(
    deployments: list[Object],
    pods: list[Object],
    *,
    scalers: ScalerReport | None = None,
    external: MetricsApi | None = None,
    **more: Any,
) -> Status:
    scalers_by_release = {} if scalers is None else {"tandem": scalers}
    return judge(snapshot(deployments, pods, **more), NOW, scalers=scalers_by_release, external=external)


def first(found: Status) -> Cause:
    """What stands first under the release's line, too."""
    cause = found.releases[0].causes[0]
    line = as_text(found).splitlines()[1]
    assert cause.why in line
    assert (cause.way_out or "") in line
    return cause


GATEWAY, CPU = deployment(), deployment("cpu")
SERVING = [pod(), pod("cpu")]
BACK_OFF = waiting("ImagePullBackOff", 'Back-off pulling image "example/image:1": 401 Unauthorized')
QUOTA = 'pods "tandem-cpu-x" is forbidden: exceeded quota: team, requested: requests.cpu=1, used: requests.cpu=4, limited: requests.cpu=4'
EXPIRED_WEBHOOK = (
    'Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook: Post "https://hook.a.svc:443/": '
    "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-11-20T12:00:00Z is after 2026-11-01T00:00:00Z"
)
INSUFFICIENT = "NodeClaim gpu-x7k2p event: InsufficientInstanceCapacity: We currently do not have sufficient g6.xlarge capacity in zone a"
NO_GROUP = "pod didn't trigger scale-up: 1 max node group size reached"
OUT_OF_QUOTA = "Node scale up in zones europe-west4-a associated with this pod failed: GCE quota exceeded. Pod is at risk of not being scheduled."


def refused(message: str) -> Object:
    return deployment(
        "cpu", ready=0, status={"conditions": [condition("ReplicaFailure", "True", "FailedCreate", message)]}
    )


def claim_event(reason: str, message: str, seconds: float) -> Object:
    return {
        **event("gpu-x7k2p", reason, message, at=before(seconds)),
        "involvedObject": {"kind": "NodeClaim", "name": "gpu-x7k2p"},
    }


@pytest.mark.parametrize(
    ("deployments", "pods", "more", "says", "way_out"),
    [
        pytest.param([GATEWAY, deployment("cpu", ready=0)], [pod(), pod("cpu", container(BACK_OFF))], {}, "401 Unauthorized", "imagePullSecrets", id="an image is not pulled"),
        pytest.param([GATEWAY, CPU], [pod(), pod("cpu"), pod("cpu", container(BACK_OFF), name="tandem-cpu-new")], {}, "401 Unauthorized", "imagePullSecrets", id="the image of an upgrade is not pulled, and the old one serves"),
        pytest.param([GATEWAY, refused(QUOTA)], [pod()], {}, "exceeded quota: team", "describe quota", id="a quota"),
        pytest.param([GATEWAY, refused(EXPIRED_WEBHOOK)], [pod()], {}, "certificate of webhook pods.example.com has expired", "webhookconfigurations", id="the certificate of a webhook has expired"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(120)], {"node_claims": [], "claim_events": [claim_event("InsufficientCapacityError", INSUFFICIENT, 30)]}, "do not have sufficient g6.xlarge", "spot", id="the cloud has no capacity"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(120)], {"events": [event("tandem-gpu-1", "TriggeredScaleUp", "group a 0->1", "cluster-autoscaler", before(110)), event("tandem-gpu-1", "FailedScaleUp", OUT_OF_QUOTA, "cluster-autoscaler", before(60))]}, "GCE quota exceeded", "raise the quota", id="the cloud's quota, and the node that was on its way is not"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(20)], {"events": [event("tandem-gpu-1", "NotTriggerScaleUp", NO_GROUP, "cluster-autoscaler")]}, "no node takes it", "max node group size reached", id="the autoscaler's group is full"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(120)], {"nodes": [node("cpu-0"), node("card-0", gpus=1, taint="team")]}, "no node takes it", "tolerations", id="a card behind a taint"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(120, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")], {"nodes": [node("cpu-0"), node("card-0")]}, "no node takes it", "no node carries that", id="a card that no device plugin announces"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(1000)], {"node_claims": [node_claim("gpu-x7k2p", condition("Launched", "True"), condition("Registered", "Unknown", "NodeNotFound", "Node not registered with cluster"))]}, "is bought and boots", "nodeclaim gpu-x7k2p", id="a node that never joins"),
        pytest.param([CPU], [pod("cpu")], {}, "Deployment is not there", "helm rollback tandem", id="the gateway is deleted"),
        pytest.param([deployment(replicas=0, ready=0), CPU], [pod("cpu")], {}, "scaled to none", "--replicas=2", id="the gateway is scaled to none"),
        pytest.param([GATEWAY, CPU], SERVING, {"endpoint_slices": [endpoints("tandem-cpu-1")], "services": [{"metadata": {"name": "tandem-cpu", "labels": labels("triton", "cpu")}, "spec": {"ports": []}}]}, "its Service is not there", "upgrade", id="the gateway's Service is deleted"),
        pytest.param([GATEWAY, CPU], [pod(), since(pod("cpu", container(RUNNING, ready=True), node="lost-0"), 120)], {"nodes": [node("cpu-0"), since(node("lost-0", ready="Unknown", message="Kubelet stopped posting node status."), 120)]}, "lost-0 is not ready (Kubelet stopped posting", "is the machine up", id="a node is lost"),
        pytest.param([GATEWAY, CPU], [pod(), pod("cpu"), leaving(pod("cpu", name="tandem-cpu-old", node="lost-0"), 600)], {"nodes": [node("cpu-0"), node("lost-0", ready="Unknown")]}, "had to be gone 10 min ago, and its node lost-0 is not ready", "--force", id="a pod on a lost node never ends"),
        pytest.param([GATEWAY, CPU], SERVING, {"nodes": [node("cpu-0", unschedulable=True)], "budgets": [{"metadata": {"name": "tandem-gateway"}, "spec": {"selector": {"matchLabels": {"app.kubernetes.io/component": "gateway"}}}, "status": {"disruptionsAllowed": 0, "expectedPods": 1, "currentHealthy": 1, "desiredHealthy": 1}}]}, "tandem-gateway wants 1 of 1 healthy", "more replicas", id="a budget blocks a drain"),
        pytest.param([GATEWAY, CPU], SERVING, {"certificates": [{"metadata": {"name": "gateway"}, "spec": {"secretName": "gateway-tls"}, "status": {"notAfter": before(7200), "conditions": [condition("Ready", "False", "Expired", "the issuer refuses")]}}]}, "expired, 2 h ago (Expired: the issuer refuses)", "describe certificate gateway", id="the certificate of the way in has expired"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(120)], {"node_claims": [], "leases": [{"metadata": {"name": "karpenter-leader-election", "namespace": "karpenter"}, "spec": {"renewTime": before(1800)}}]}, "Karpenter does not work: it has not renewed its Lease karpenter-leader-election for 30 min", "--namespace karpenter", id="Karpenter is dead"),
        pytest.param([GATEWAY, CPU, gpu(by="scaler")], [*SERVING, waits(120, gate="tandem-wanted")], {}, "the release has no scaler", "scaler.enabled", id="the scaler is deleted"),
        pytest.param([GATEWAY, CPU, gpu(0, by="scaler"), scaler(ready=0)], [*SERVING, scaler_pod(container(waiting("CrashLoopBackOff"), name="scaler", last=ended(1, message="no such pool"), restartCount=9))], {}, "no such pool", "logs", id="the scaler dies again and again"),
    ],
)  # fmt: skip
def test_the_cause_stands_first_with_its_way_out_and_lasts(
    deployments: list[Object], pods: list[Object], more: dict[str, Any], says: str, way_out: str
) -> None:
    found = of(deployments, pods, **more)
    cause = first(found)
    assert says in cause.why
    assert way_out in (cause.way_out or "")
    assert cause.is_for_ever
    assert found.waits_for_ever


@pytest.mark.parametrize(
    ("deployments", "pods", "more"),
    [
        pytest.param([GATEWAY, CPU], SERVING, {}, id="all is well"),
        pytest.param([GATEWAY, CPU, gpu(0)], SERVING, {}, id="a pool sleeps"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(30)], {"node_claims": [node_claim("gpu-x7k2p", condition("Launched", "True"))]}, id="a node is on its way"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(20)], {}, id="no autoscaler can have looked yet"),
        pytest.param([GATEWAY, CPU, gpu(by="scaler"), scaler()], [*SERVING, scaler_pod(), waits(120, gate="tandem-wanted")], {}, id="the scaler wants none"),
        pytest.param([GATEWAY, CPU], [*SERVING, leaving(pod("cpu", name="tandem-cpu-old"), 20)], {}, id="a pod ends"),
        pytest.param([GATEWAY, CPU, gpu()], [*SERVING, waits(30)], {"leases": [{"metadata": {"name": "karpenter-leader-election"}, "spec": {"renewTime": before(8)}}]}, id="Karpenter lives"),
        pytest.param([GATEWAY, CPU], SERVING, {"nodes": [node("cpu-0", unschedulable=True)], "budgets": [{"metadata": {"name": "tandem-gateway"}, "spec": {"selector": {"matchLabels": {"app.kubernetes.io/component": "gateway"}}}, "status": {"disruptionsAllowed": 1, "expectedPods": 2, "currentHealthy": 2, "desiredHealthy": 1}}]}, id="a drain that a budget allows"),
        pytest.param([GATEWAY, CPU], SERVING, {"certificates": [{"metadata": {"name": "gateway"}, "spec": {"secretName": "a"}, "status": {"notAfter": before(-7200)}}]}, id="a certificate that holds"),
    ],
)  # fmt: skip
def test_what_goes_on_by_itself_is_no_cause(
    deployments: list[Object], pods: list[Object], more: dict[str, Any]
) -> None:
    found = of(deployments, pods, **more)
    assert found.releases[0].causes == ()
    assert (found.is_serving, found.waits_for_ever) == (True, False)


def test_a_gateway_that_waits_for_its_pools_is_told_after_what_keeps_these() -> None:
    gateway = pod("", container(RUNNING, name="gateway", started=True))
    found = of([deployment(ready=0), deployment("cpu", ready=0)], [gateway, pod("cpu", container(BACK_OFF))])
    assert [it.of for it in found.releases[0].causes] == ["pool cpu"]
    alone = of([deployment(ready=0), deployment("cpu", ready=0)], [gateway, pod("cpu", container(RUNNING))])
    assert {it.of for it in alone.releases[0].causes} == {"gateway", "pool cpu"}
    assert not alone.waits_for_ever


def test_one_node_that_takes_several_parts_along_is_one_cause() -> None:
    pods = [
        since(pod("", container(RUNNING, name="gateway", ready=True), node="lost-0"), 120),
        since(pod("cpu", container(RUNNING, ready=True), node="lost-0"), 120),
    ]
    lost = since(node("lost-0", ready="Unknown"), 120)
    (cause,) = of([deployment(ready=0), deployment("cpu", ready=0)], pods, nodes=[lost]).releases[0].causes
    assert cause.of == "gateway, pool cpu"


# -- autoscalers that are dead ----------------------------------------------------------------------------------------


def hpa(*conditions: Object, kind: str = "External") -> Object:
    metric = {
        "type": kind,
        kind.lower(): {"metric": {"name": "tandem_wanted_replicas"}, "target": {"averageValue": "1"}},
    }
    return {
        "metadata": {"name": "tandem-gpu"},
        "spec": {"scaleTargetRef": {"name": "tandem-gpu"}, "minReplicas": 0, "maxReplicas": 4, "metrics": [metric]},
        "status": {"conditions": list(conditions)},
    }


def scaled_object(*conditions: Object, made_s_ago: float = 3600) -> Object:
    return {
        "metadata": {"name": "tandem-gpu", "creationTimestamp": before(made_s_ago)},
        "spec": {"scaleTargetRef": {"name": "tandem-gpu"}, "minReplicaCount": 0, "maxReplicaCount": 4},
        "status": {"conditions": list(conditions)},
    }


def keda_lease(seconds: float) -> Object:
    return {"metadata": {"name": "operator.keda.sh", "namespace": "keda"}, "spec": {"renewTime": before(seconds)}}


READY = condition("Ready", "True", "ScaledObjectReady")
DOWN = MetricsApi(Api.BROKEN, "monitoring/prometheus-adapter", "FailedDiscoveryCheck: connection refused")
EXPIRED = MetricsApi(
    Api.BROKEN, "keda/keda-operator-metrics-apiserver", "FailedDiscoveryCheck: x509: certificate has expired"
)


@pytest.mark.parametrize(
    ("more", "external", "says"),
    [
        pytest.param({"scaled_objects": [scaled_object(READY)], "leases": [keda_lease(900)]}, None, "KEDA does not work", id="KEDA's operator ended"),
        pytest.param({"scaled_objects": [scaled_object()]}, None, "KEDA has not looked at its ScaledObject", id="KEDA's operator was never there"),
        pytest.param({"scaled_objects": [scaled_object(condition("Ready", "False", "Error", "no scaler"))], "leases": [keda_lease(2)]}, None, "no scaler", id="KEDA refuses"),
        pytest.param({"autoscalers": [hpa()]}, DOWN, "connection refused", id="prometheus-adapter is down, and the pool at none hides it"),
        pytest.param({"autoscalers": [hpa()]}, EXPIRED, "certificate has expired", id="the certificate of a metrics server has expired"),
        pytest.param({"autoscalers": [hpa()]}, MetricsApi(Api.ABSENT), "is not served", id="prometheus-adapter was never there"),
        pytest.param({"autoscalers": [since({"status": {"conditions": []}} | hpa(condition("ScalingActive", "False", "FailedGetExternalMetric", "no metrics")), 600)]}, MetricsApi(Api.SERVED), "FailedGetExternalMetric", id="a metric that does not come"),
    ],
)  # fmt: skip
def test_a_dead_autoscaler_is_the_cause_also_where_its_pool_sleeps(
    more: dict[str, Any], external: MetricsApi | None, says: str
) -> None:
    found = of([GATEWAY, CPU, gpu(0)], SERVING, external=external, **more)
    cause = first(found)
    assert (cause.of, says in cause.why, found.waits_for_ever) == ("pool gpu", True, True)
    scaling = found.releases[0].parts[2].scaling
    assert scaling is not None
    assert not scaling.works


@pytest.mark.parametrize(
    ("more", "external", "by"),
    [
        ({"scaled_objects": [scaled_object(READY)], "leases": [keda_lease(5)]}, None, "KEDA"),
        ({"scaled_objects": [scaled_object(READY)], "leases": None}, None, "KEDA"),
        ({"scaled_objects": [scaled_object(made_s_ago=5)]}, None, "KEDA"),
        ({"autoscalers": [hpa()]}, MetricsApi(Api.SERVED), "an HPA"),
        ({"autoscalers": [hpa()]}, None, "an HPA"),
    ],
    ids=["KEDA lives", "nobody may see its Lease", "it is new", "adapter serves", "nobody has looked"],
)
def test_an_autoscaler_that_lives_or_of_which_nobody_knows_is_no_cause(
    more: dict[str, Any], external: MetricsApi | None, by: str
) -> None:
    found = of([GATEWAY, CPU, gpu(0)], SERVING, external=external, **more)
    assert found.releases[0].causes == ()
    scaling = found.releases[0].parts[2].scaling
    assert scaling is not None
    assert (scaling.by, scaling.works) == (by, True)


# -- what the scaler tells --------------------------------------------------------------------------------------------

PAGE: dict[str, Any] = {
    "version": 1,
    "wanted": {"cpu": 2, "gpu": 1},
    "demands": {"cpu": {"replicas": 1.72}, "gpu": {"replicas": 0.57}},
    "holds": "",
    "holds_s": None,
    "keeps": "",
    "decisions": {"gpu": {"before": 0, "after": 1, "reason": "pays", "sentence": "pool gpu pays", "decided_at": NOW.timestamp() - 40}},
    "traffic": {"": {"num_good": 0.0, "num_failed": 7.0}, "cpu": {"num_good": 90.0, "num_failed": 0.0}, "gpu": {"num_good": 45.0, "num_failed": 5.0}},
    "applies": {"is_leading": True, "holder": "a", "problem": ""},
}  # fmt: skip
SCALED = [GATEWAY, CPU, gpu(ready=1, by="scaler"), scaler()]
PODS = [*SERVING, pod("gpu", gpus=1), scaler_pod()]


def test_what_is_wanted_and_why_and_what_failed_is_told_for_each_pool() -> None:
    found = of(SCALED, PODS, scalers=parse_status(PAGE))
    scaling = found.releases[0].parts[2].scaling
    assert scaling is not None
    assert scaling.decision is not None
    assert (scaling.by, scaling.works, scaling.wanted, scaling.demand_replicas) == ("the scaler", True, 1, 0.57)
    assert (scaling.decision.before, scaling.decision.after, scaling.decided_s_ago) == (0, 1, 40)
    assert (scaling.error_ratio, scaling.num_requests) == (0.1, 50)
    assert found.releases[0].num_refused == 7
    (line,) = [it for it in as_text(found).splitlines() if "pool gpu pays" in it]
    for words in ("wanted 1", "demand 0.57", "40 s ago", "10.0% of 50"):
        assert words in line


@pytest.mark.parametrize(
    ("change", "says", "lasts"),
    [
        (
            {"applies": {"problem": "the API server refuses to scale deployment tandem-gpu: forbidden"}},
            "forbidden",
            True,
        ),
        ({"wanted": None, "holds": "no gateway answers", "holds_s": 300.0}, "no gateway answers", True),
        ({"wanted": None, "holds": "gateways have been heard for less than 10 s", "holds_s": 4.0}, "", False),
    ],
)
def test_a_scaler_that_cannot_do_its_work_is_the_cause(change: dict[str, Any], says: str, lasts: bool) -> None:
    found = of(SCALED, PODS, scalers=parse_status(PAGE | change))
    assert found.waits_for_ever is lasts
    if lasts:
        assert says in first(found).why


def test_a_scaler_that_cannot_be_asked_is_not_called_dead() -> None:
    found = of(SCALED, PODS, scalers="this user lacks get services/proxy")
    assert found.releases[0].causes == ()


def test_the_page_of_an_older_scaler_tells_less() -> None:
    page = parse_status({key: it for key, it in PAGE.items() if key not in ("decisions", "traffic", "holds_s")})
    assert (page.wanted, page.decisions, page.good) == ({"cpu": 2, "gpu": 1}, {}, {})
    with pytest.raises(KeyError):
        parse_status({"version": 1})
