"""What serves, what waits, and what nobody may see, from objects as the server writes them; and how that looks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.command import as_text
from serving.cluster.status.judge import Release, Standing, Status, judge
from serving.cluster.status.scheduling import duration
from tests.cluster.objects import (
    GPU,
    NO_CARD,
    NOW,
    RUNNING,
    condition,
    container,
    deployment,
    endpoints,
    labels,
    node,
    node_claim,
    pod,
    snapshot,
)

BRIDGED = (
    [deployment(), deployment("cpu"), deployment("gpu", gpus=1, ready=0)],
    [pod(), pod("cpu"), pod("gpu", gpus=1, unscheduled=NO_CARD)],
)


def status(deployments: list[Any], pods: list[Any], **more: Any) -> Status:
    return judge(snapshot(deployments, pods, **more), NOW)


def only(deployments: list[Any], pods: list[Any], **more: Any) -> Release:
    (found,) = status(deployments, pods, **more).releases
    return found


def test_a_release_that_serves_says_by_what() -> None:
    found = only([deployment(), deployment("cpu")], [pod(), pod("cpu")])
    assert (found.name, found.version, found.is_serving) == ("tandem", "0.1.0", True)
    assert found.now.endswith("pool cpu (cpu)")
    assert [(it.name, it.standing, it.device) for it in found.parts] == [
        ("gateway", Standing.SERVES, ""),
        ("cpu", Standing.SERVES, "cpu"),
    ]
    assert found.parts[1].models == ("digits-fp32", "digits-int8")
    assert found.parts[1].nodes == ("cpu-0",)


def test_while_the_gpu_pool_waits_the_cpu_bridges() -> None:
    found = only(*BRIDGED)
    assert found.is_serving
    assert re.search(r"pool cpu \(cpu\); .*bridges.* gpu ", found.now)
    assert found.parts[2].standing is Standing.WAITS


def test_a_cpu_pool_that_waits_beside_a_gpu_is_bridged_by_nothing() -> None:
    found = only(
        [deployment(), deployment("gpu", gpus=1), deployment("cpu", ready=0)],
        [pod(), pod("gpu"), pod("cpu", container(RUNNING))],
    )
    assert re.search("pool gpu.*; cpu ", found.now)
    assert "bridges" not in found.now


@pytest.mark.parametrize(
    ("deployments", "pods", "now"),
    [
        pytest.param([deployment(ready=0), deployment("cpu")], [pod("", container(RUNNING, name="gateway")), pod("cpu")], "nothing is answered: no gateway is ready", id="no gateway is ready"),
        pytest.param([deployment("cpu")], [pod("cpu")], "nothing is answered: this release has no gateway", id="no gateway at all"),
        pytest.param([deployment(), deployment("cpu", ready=0)], [pod(), pod("cpu", container(RUNNING))], "the gateway answers, with errors only: no pool has a Triton that is ready", id="no pool is ready"),
        pytest.param([deployment(), deployment("cpu", replicas=0, ready=0)], [pod()], "the gateway answers, with errors only: no pool has a Triton that is ready", id="the only pool is off"),
    ],
)  # fmt: skip
def test_a_release_that_answers_nothing_says_why(deployments: list[Any], pods: list[Any], now: str) -> None:
    found = status(deployments, pods)
    assert (found.is_serving, found.releases[0].now) == (False, now)


def test_a_pool_that_nobody_wants_is_off_and_no_reason_to_wait() -> None:
    found = only([deployment(), deployment("cpu"), deployment("gpu", gpus=1, replicas=0, ready=0)], [pod(), pod("cpu")])
    assert (found.parts[2].standing, found.parts[2].waiting) == (Standing.OFF, ())
    assert found.now.endswith("pool cpu (cpu)")


def test_what_helps_is_told_of_and_does_not_decide() -> None:
    scaler = deployment(ready=0)
    scaler["metadata"] = {**scaler["metadata"], "name": "tandem-scaler", "labels": labels("scaler")}
    found = only([deployment(), deployment("cpu"), scaler], [pod(), pod("cpu")])
    assert found.is_serving
    assert [(it.name, it.standing) for it in found.parts][2] == ("scaler", Standing.WAITS)


def test_one_of_two_pods_is_enough_to_serve_and_the_other_is_told_of() -> None:
    found = only(
        [deployment(), deployment("cpu", replicas=2)],
        [pod(), pod("cpu"), pod("cpu", container(RUNNING), name="tandem-cpu-2")],
    )
    assert (found.parts[1].standing, found.parts[1].num_ready, found.parts[1].num_wanted) == (Standing.SERVES, 1, 2)
    assert [it.pod for it in found.parts[1].waiting] == ["tandem-cpu-2"]


def test_a_pod_that_is_ready_but_behind_no_service_does_not_serve() -> None:
    found = only(
        [deployment(), deployment("cpu")], [pod(), pod("cpu")], endpoint_slices=[endpoints("tandem-gateway-1")]
    )
    assert not found.is_serving
    assert "no Service" in found.parts[1].waiting[0].why


@pytest.mark.parametrize(
    ("ready", "serving", "serves"),
    [
        pytest.param(None, None, True, id="absent is true"),
        pytest.param(True, True, True, id="ready"),
        pytest.param(False, False, False, id="not ready"),
        pytest.param(False, True, False, id="leaving"),
        pytest.param(True, False, False, id="published all the same"),
    ],
)
def test_an_endpoint_answers_if_it_is_ready_itself(ready: bool | None, serving: bool | None, serves: bool) -> None:
    slices = [endpoints("tandem-gateway-1", "tandem-cpu-1", ready=ready, serving=serving)]
    assert only([deployment(), deployment("cpu")], [pod(), pod("cpu")], endpoint_slices=slices).is_serving is serves


def test_every_release_of_a_namespace_is_told_of_and_one_that_fails_is_enough() -> None:
    deployments = [
        deployment(),
        deployment("cpu"),
        deployment(release="beta"),
        deployment("cpu", release="beta", ready=0),
    ]
    pods = [pod(), pod("cpu"), pod(release="beta"), pod("cpu", container(RUNNING), release="beta")]
    found = status(deployments, pods)
    assert [(it.name, it.is_serving) for it in found.releases] == [("beta", False), ("tandem", True)]
    assert not found.is_serving
    assert judge(snapshot(deployments, pods), NOW, "tandem").is_serving


def test_nothing_installed_does_not_serve() -> None:
    assert not judge(ClusterSnapshot("serve"), NOW).is_serving


# -- what may not be seen ---------------------------------------------------------------------------------------------


def test_without_a_look_at_pods_the_deployments_numbers_count() -> None:
    deployments = snapshot(*BRIDGED).deployments
    whole = ClusterSnapshot("serve", deployments, pods=None, endpoint_slices=None, nodes=None, node_claims=None)
    found = judge(whole, NOW)
    assert found.is_serving
    assert found.unseen == ("pods", "endpoint slices", "nodes", "Karpenter's node claims")
    assert all(not it.waiting for it in found.releases[0].parts)
    assert as_text(found).endswith(", ".join(found.unseen))


def test_without_a_look_at_nodes_the_rest_is_told() -> None:
    found = status(*BRIDGED, nodes=None, node_claims=None)
    assert (found.nodes, found.unseen) == ((), ("nodes", "Karpenter's node claims"))
    assert "no node" in found.releases[0].parts[2].waiting[0].why


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_nodes_with_our_pods_or_cards_are_told_and_others_are_not() -> None:
    nodes = [
        node("cpu-0"),
        node("theirs"),
        node("card-0", gpus=1, unschedulable=True),
        node("card-1", gpus=1, ready="False", message="kubelet stopped"),
    ]
    found = status(*BRIDGED, nodes=nodes)
    assert [(it.name, it.standing, it.num_pods, it.gpus) for it in found.nodes] == [
        ("cpu-0", "ready", 2, {}),
        ("card-0", "cordoned", 0, {GPU: 1}),
        ("card-1", "not ready", 0, {GPU: 1}),
    ]
    assert "kubelet stopped" in as_text(found)


def test_a_node_that_is_being_bought_is_one_line() -> None:
    claim = node_claim("gpu-x7k2p", condition("Launched", "True", "Launched"), node="gpu-x7k2p")
    found = status(*BRIDGED, nodes=[node("cpu-0"), node("gpu-x7k2p", ready="False")], node_claims=[claim])
    assert [(it.name, it.standing) for it in found.nodes] == [("cpu-0", "ready"), ("gpu-x7k2p", "coming")]
    assert "NodePool gpu" in found.nodes[1].note
    assert "42 s" in found.nodes[1].note


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (90000, "25 h")],
)
def test_durations_are_as_fine_as_somebody_cares(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# -- autoscalers ------------------------------------------------------------------------------------------------------


def hpa(
    target: dict[str, Any],
    current: dict[str, Any] | None,
    *conditions: dict[str, Any],
    kind: str = "ContainerResource",
    **more: Any,
) -> dict[str, Any]:
    body = {"ContainerResource": "containerResource", "Resource": "resource", "External": "external"}[kind]
    named: dict[str, Any] = {"metric": {"name": "tandem_wanted_replicas"}} if kind == "External" else {"name": "cpu"}
    return {
        "metadata": {"name": "tandem-cpu"},
        "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "tandem-cpu"}, "minReplicas": 1, "maxReplicas": 4,
            "metrics": [{"type": kind, body: {**named, "target": target}}], **more,
        },
        "status": {
            "currentMetrics": None if current is None else [{"type": kind, body: {**named, "current": current}}],
            "conditions": list(conditions),
        },
    }  # fmt: skip


PERCENT = {"type": "Utilization", "averageUtilization": 70}


def scaler_of(it: dict[str, Any] | None, scaled: list[dict[str, Any]] | None = None) -> str | None:
    found = snapshot(
        [deployment(), deployment("cpu")],
        [pod(), pod("cpu")],
        scaled_objects=scaled or [],
        autoscalers=[] if it is None else [it],
    )
    return judge(found, NOW).releases[0].parts[1].autoscaler


@pytest.mark.parametrize(
    ("it", "says"),
    [
        pytest.param(hpa(PERCENT, {"averageUtilization": 35}), "HPA 1 to 4, cpu 35% of 70%", id="well"),
        pytest.param(hpa(PERCENT, {"averageUtilization": 0}), "HPA 1 to 4, cpu 0% of 70%", id="idle is not unknown"),
        pytest.param(hpa(PERCENT, None), "HPA 1 to 4, cpu unknown of 70%", id="no value yet"),
        pytest.param(hpa(PERCENT, None, kind="Resource"), "HPA 1 to 4, cpu unknown of 70%", id="of the whole pod"),
        pytest.param(hpa({"averageValue": "8"}, {"averageValue": "6"}, kind="External"), "HPA 1 to 4, tandem_wanted_replicas 6 each of 8 each", id="an external metric"),
        pytest.param(hpa({"averageValue": "8"}, {"averageValue": "-9223372036854775808m"}, kind="External"), "HPA 1 to 4, tandem_wanted_replicas unknown of 8 each", id="at no replicas"),
        pytest.param(hpa({"value": "8"}, {"value": "6"}, kind="External"), "HPA 1 to 4, tandem_wanted_replicas 6 of 8", id="a sum"),
        pytest.param(hpa(PERCENT, None, metrics=None), "HPA 1 to 4, no metric", id="none"),
        pytest.param(
            hpa(PERCENT, None, condition("AbleToScale", "True", "SucceededGetScale"), condition("ScalingActive", "False", "FailedGetResourceMetric", "no metrics returned")),
            "HPA 1 to 4, cpu unknown of 70% (FailedGetResourceMetric: no metrics returned)", id="without metrics"),
        pytest.param(
            hpa(PERCENT, {"averageUtilization": 99}, condition("ScalingLimited", "True", "TooManyReplicas", "more than the maximum")),
            "HPA 1 to 4, cpu 99% of 70% (TooManyReplicas: more than the maximum)", id="at its largest"),
        pytest.param(
            hpa(PERCENT, {"averageUtilization": 5}, condition("ScalingLimited", "True", "TooFewReplicas", "less than the minimum")),
            "HPA 1 to 4, cpu 5% of 70%", id="at its smallest, which is as it should be"),
        pytest.param(hpa(PERCENT, None, condition("ScalingActive", "False", "ScalingDisabled", "at 0")), "HPA 1 to 4, cpu unknown of 70%", id="asleep"),
        pytest.param(hpa(PERCENT, None, scaleTargetRef={"name": "theirs"}), None, id="of another"),
        pytest.param(None, None, id="none at all"),
    ],
)  # fmt: skip
def test_an_autoscaler_is_told_with_its_aim_and_its_trouble(it: dict[str, Any] | None, says: str | None) -> None:
    assert scaler_of(it) == says


def scaled_object(*conditions: dict[str, Any], **more: Any) -> dict[str, Any]:
    spec = {"scaleTargetRef": {"name": "tandem-cpu"}, "minReplicaCount": 0, "maxReplicaCount": 3, **more}
    return {"metadata": {"name": "tandem-cpu"}, "spec": spec, "status": {"conditions": list(conditions)}}


def test_keda_is_told_before_the_autoscaler_that_it_made() -> None:
    it = hpa({"averageValue": "8"}, {"averageValue": "6"}, kind="External")
    found = scaler_of(it, [scaled_object(condition("Ready", "True"))]) or ""
    assert re.findall(r"KEDA|\d|tandem_wanted_replicas", found) == [
        "KEDA",
        "0",
        "3",
        "tandem_wanted_replicas",
        "6",
        "8",
    ]


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        ([condition("Ready", "False", "ScaledObjectCheckFailed", "no scaler")], "KEDA 0 to 3, Ready False: no scaler"),
        ([condition("Ready", "True"), condition("Paused", "True", "", "paused by annotation")], "KEDA 0 to 3, Paused True: paused by annotation"),
        ([condition("Ready", "True"), condition("Fallback", "False")], "KEDA 0 to 3"),
        ([], "KEDA 0 to 3"),
    ],
    ids=["not ready", "paused", "well", "nobody looks after it"],
)  # fmt: skip
def test_keda_without_an_autoscaler_is_told_alone(conditions: list[dict[str, Any]], says: str) -> None:
    assert scaler_of(None, [scaled_object(*conditions)]) == says


# -- on a terminal ----------------------------------------------------------------------------------------------------


def test_on_a_terminal_it_is_a_line_for_each_part_and_what_waits_under_it() -> None:
    claim = node_claim("gpu-x7k2p", condition("Launched", "True", "Launched"))
    found = status(*BRIDGED, node_claims=[claim])
    lines = as_text(found).splitlines()
    assert [re.split(r"[:;,] ?", line.strip())[0] for line in lines] == [
        "release tandem (0.1.0)",
        "serves  gateway",
        "serves  pool cpu (cpu)",
        "waits   pool gpu (gpu)",
        "- tandem-gpu-1",
        "- newest pod",
        "",
        "nodes",
        "ready     cpu-0",
        "coming    gpu-x7k2p",
    ]
    assert [
        it for it in ("1 of 1 ", "digits-fp32, digits-int8", "example/image:1", "cpu-0") if it not in lines[2]
    ] == []
    assert [it for it in ("g6.xlarge", "1 nvidia.com/gpu", "NodePool gpu", "42 s") if it not in lines[-1]] == []


def test_pods_that_wait_for_the_same_are_one_line() -> None:
    pods = [pod("cpu", container(RUNNING), name=f"tandem-cpu-{number}") for number in range(12)]
    found = status([deployment(), deployment("cpu", replicas=12, ready=0)], [pod(), *pods])
    assert len(found.releases[0].parts[1].waiting) == 12
    (line,) = [it for it in as_text(found).splitlines() if "loads its models" in it and "- " in it]
    assert [it for it in ("tandem-cpu-0 ", "11 more", "node cpu-0") if it not in line] == []


def test_a_test_pod_that_has_ended_takes_nothing_of_its_node() -> None:
    ended = pod("cpu", name="tandem-test", phase="Succeeded")
    ended["metadata"]["labels"] = labels("test")
    found = status([deployment(), deployment("cpu")], [pod(), pod("cpu"), ended])
    assert found.nodes[0].num_pods == 2
