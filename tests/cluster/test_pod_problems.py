"""A pod that does not serve has one reason, in a sentence, with the way out. Objects are written as the server writes them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from serving.cluster.status.judge import Waiting, judge
from tests.cluster.objects import (
    NO_CARD,
    NOW,
    RUNNING,
    condition,
    container,
    deployment,
    ended,
    endpoints,
    event,
    node,
    node_claim,
    pod,
    snapshot,
    waiting,
)


def why(it: dict[str, Any], pool: str = "gpu", **more: Any) -> Waiting:
    """The reason of the one pod of a pool, beside a gateway that serves."""
    found = snapshot([deployment(), deployment(pool, gpus=int(pool == "gpu"), ready=0)], [pod(), it], **more)
    (only,) = [each for part in judge(found, NOW).releases[0].parts for each in part.waiting]
    return only


def test_a_pod_that_finds_no_card_is_told_what_the_scheduler_says_and_what_lacks() -> None:
    found = why(pod("gpu", gpus=1, unscheduled=NO_CARD))
    assert found.pod == "tandem-gpu-1"
    assert "untolerated taint" in found.why
    assert "preemption" not in found.why
    assert "1 nvidia.com/gpu" in (found.way_out or "")
    assert "tolerations" not in (found.way_out or "")


def test_cards_that_are_taken_are_named_by_their_nodes() -> None:
    found = why(
        pod("gpu", gpus=1, unscheduled="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        nodes=[node("card-0", gpus=1)],
    )
    assert "1 nvidia.com/gpu" in (found.way_out or "")
    assert "card-0" in (found.way_out or "")


def test_no_advice_names_a_node_that_is_cordoned() -> None:
    cordoned = node("card-0", gpus=1)
    cordoned["spec"]["unschedulable"] = True
    it = pod("gpu", gpus=1, unscheduled="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    alone = why(it, nodes=[cordoned]).way_out or ""
    assert ("card-0" in alone, "add a node" in alone) == (False, True)
    both = why(it, nodes=[cordoned, node("card-1", gpus=1)]).way_out or ""
    assert ("card-0" in both, "card-1" in both) == (False, True)


@pytest.mark.parametrize(
    ("gate", "says"), [("tandem-wanted", "the scaler has not asked"), ("kueue", "scheduling gate")]
)
def test_a_pod_that_is_held_back_is_told_by_whom(gate: str, says: str) -> None:
    it = pod("gpu", gpus=1, unscheduled="Scheduling is blocked due to non-empty scheduling gates")
    it["spec"]["schedulingGates"] = [{"name": gate}]
    (condition,) = [one for one in it["status"]["conditions"] if one["type"] == "PodScheduled"]
    condition["reason"] = "SchedulingGated"
    assert says in why(it).why


def test_cards_under_another_name_are_told() -> None:
    sliced = node("card-0")
    sliced["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "7"
    found = why(
        pod("gpu", gpus=1, unscheduled="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."), nodes=[sliced]
    )
    assert "nvidia.com/mig-1g.10gb: pools.gpu.gpu.resource" in (found.way_out or "")


def test_who_may_not_see_nodes_is_not_told_that_there_are_none() -> None:
    found = why(pod("gpu", gpus=1, unscheduled=NO_CARD), nodes=None)
    assert "may not see" in (found.way_out or "")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        pytest.param("0/2 nodes are available: 1 Insufficient cpu, 2 Insufficient memory.", "ask for less (cpu, memory): pools.cpu.resources", id="too little left"),
        pytest.param("0/2 nodes are available: 2 Too many pods.", "ask for less (pods)", id="too many pods"),
        pytest.param("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "no node fits pools.cpu.nodeSelector", id="a selector"),
        pytest.param("no nodes available to schedule pods", "describe pod tandem-cpu-1", id="no nodes at all"),
    ],
)  # fmt: skip
def test_what_the_scheduler_says_has_its_way_out(message: str, says: str) -> None:
    found = why(pod("cpu", unscheduled=message), pool="cpu")
    assert found.why.endswith(message.rstrip("."))
    assert says in (found.way_out or "")


@pytest.mark.parametrize(
    "message",
    [
        "0/1 nodes are available: 1 node(s) had untolerated taint(s).",
        "0/1 nodes are available: 1 node(s) had untolerated taint {team: }.",
    ],
    ids=["a newer server", "an older one"],
)
def test_a_taint_that_is_not_tolerated_is_named_from_the_nodes(message: str) -> None:
    found = why(
        pod("cpu", unscheduled=message, tolerates="other"),
        pool="cpu",
        nodes=[node("a", taint="team"), node("b", taint="other")],
    )
    assert "pools.cpu.tolerations" in (found.way_out or "")
    assert (found.way_out or "").endswith("{key: team, operator: Exists, effect: NoSchedule}")


def test_for_a_card_only_the_taints_of_nodes_with_cards_count() -> None:
    message = "0/2 nodes are available: 2 node(s) had untolerated taint(s)."
    it = pod("gpu", gpus=1, unscheduled=message, tolerates="nvidia.com/gpu")
    nodes = [
        node("card", gpus=1, taint="ml"),
        node("plain", taint="team"),
        node("cordoned", gpus=1, taint="node.kubernetes.io/unschedulable"),
    ]
    way_out = why(it, nodes=nodes).way_out or ""
    assert "pools.gpu.tolerations" in way_out
    assert re.findall(r"key: (\w+)", way_out) == ["ml"]


def test_more_cards_than_any_node_has_are_told() -> None:
    found = why(
        pod("gpu", gpus=4, unscheduled="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        nodes=[node("card-0", gpus=1)],
    )
    assert (found.way_out or "").endswith(" 1: pools.gpu.gpu.count")


def test_a_volume_claim_that_is_not_bound_is_the_reason() -> None:
    message = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    claim = {"metadata": {"name": "models"}, "spec": {"storageClassName": "gold"}, "status": {"phase": "Pending"}}
    found = why(pod("cpu", unscheduled=message, claim="models"), pool="cpu", volume_claims=[claim])
    assert [word for word in ("'models'", "Pending", "'gold'") if word not in found.why] == []
    assert "describe pvc models" in (found.way_out or "")


def test_a_volume_claim_that_is_not_there_is_the_reason() -> None:
    message = '0/2 nodes are available: persistentvolumeclaim "models" not found.'
    found = why(pod("cpu", unscheduled=message, claim="models"), pool="cpu")
    assert "PersistentVolumeClaim 'models'" in found.why
    assert "modelRepository.claimName" in (found.way_out or "")


LAUNCHED = condition("Launched", "True", "Launched")
REGISTERED = condition("Registered", "True", "Registered")


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        pytest.param([], "it is asked of the cloud, asked for 42 s ago", id="new"),
        pytest.param([condition("Launched", "Unknown", "LaunchFailed", "no capacity")], "is asked of the cloud (LaunchFailed: no capacity)", id="the cloud has none"),
        pytest.param([LAUNCHED, condition("Registered", "Unknown", "NodeNotFound", "Node not registered with cluster")], "is bought and boots (NodeNotFound: Node not", id="boots"),
        pytest.param([LAUNCHED, REGISTERED, condition("Initialized", "Unknown", "ResourceNotRegistered", 'Resource "nvidia.com/gpu" was requested but not registered')],
                     'has joined and gets ready (driver, device plugin) (ResourceNotRegistered: Resource "nvidia.com/gpu"', id="waits for its device plugin"),
    ],
)  # fmt: skip
def test_a_node_on_its_way_is_told_with_its_phase(conditions: list[dict[str, Any]], says: str) -> None:
    found = why(pod("gpu", gpus=1, unscheduled=NO_CARD), node_claims=[node_claim("gpu-x7k2p", *conditions)])
    assert found.why.startswith("node gpu-x7k2p ")
    assert says in found.why
    assert found.way_out is None


@pytest.mark.parametrize(
    "claim",
    [
        node_claim("gpu-x7k2p", condition("Initialized", "True", "Initialized"), node="gpu-x7k2p"),
        node_claim("cpu-9", gpus=0),
    ],
    ids=["one that is there already", "one without a card"],
)
def test_another_nodes_coming_is_no_reason_to_wait(claim: dict[str, Any]) -> None:
    assert not why(pod("gpu", gpus=1, unscheduled=NO_CARD), node_claims=[claim]).why.startswith("node ")


def test_the_node_that_karpenter_named_for_a_pod_is_its_node() -> None:
    claims = [node_claim("gpu-a"), node_claim("gpu-b")]
    events = [event("tandem-gpu-1", "Nominated", "Pod should schedule on: nodeclaim/gpu-b")]
    found = why(pod("gpu", gpus=1, unscheduled=NO_CARD), node_claims=claims, events=events)
    assert found.why.startswith("node gpu-b ")


def test_a_node_that_karpenter_named_for_a_cpu_pod_is_its_node_too() -> None:
    events = [event("tandem-cpu-1", "Nominated", "Pod should schedule on: nodeclaim/cpu-b")]
    found = why(
        pod("cpu", unscheduled="0/1 nodes are available: 1 Insufficient cpu."),
        pool="cpu",
        node_claims=[node_claim("cpu-b", gpus=0)],
        events=events,
    )
    assert "node cpu-b" in found.why


def test_why_karpenter_buys_nothing_is_told_in_its_newest_words() -> None:
    events = [
        event("tandem-gpu-1", "FailedScheduling", "Failed to schedule pod, old", at="2026-11-20T11:00:00Z"),
        event(
            "tandem-gpu-1",
            "FailedScheduling",
            "Failed to schedule pod, all available instance types exceed limits for nodepool",
        ),
        event("tandem-gpu-1", "FailedScheduling", "0/3 nodes", source="default-scheduler"),
        event("another", "FailedScheduling", "not this pod's"),
    ]
    found = why(pod("gpu", gpus=1, unscheduled=NO_CARD), events=events)
    assert re.search("karpenter.* nodepool$", found.way_out or "")


@pytest.mark.parametrize(
    ("reason", "says"),
    [("TriggeredScaleUp", "a node is on its way: pod triggered"), ("NotTriggerScaleUp", "no node takes it")],
)
def test_cluster_autoscaler_is_heard_too(reason: str, says: str) -> None:
    events = [event("tandem-gpu-1", reason, "pod triggered scale-up: [{gpus 0->1}]", source="cluster-autoscaler")]
    found = why(pod("gpu", gpus=1, unscheduled=NO_CARD), events=events)
    assert found.why.startswith(says)
    assert (reason == "NotTriggerScaleUp") == ("cluster-autoscaler buys none" in (found.way_out or ""))


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
def test_an_image_that_cannot_be_pulled_is_named(reason: str) -> None:
    found = why(pod("cpu", container(waiting(reason, "401 Unauthorized"))), pool="cpu")
    assert "example/image:1" in found.why
    assert f"({reason}: 401 Unauthorized)" in found.why
    assert "imagePullSecrets" in (found.way_out or "")


def test_an_init_containers_image_counts_too() -> None:
    it = pod(
        "cpu", container(waiting("PodInitializing")), init=(container(waiting("ErrImagePull"), name="copy-models"),)
    )
    assert "ErrImagePull" in why(it, pool="cpu").why


@pytest.mark.parametrize(
    ("last", "says", "way_out"),
    [
        pytest.param(ended(1, message="no such model"), "triton ends again and again (exit code 1: no such model), started again 4 times", "logs tandem-cpu-1 -c triton --previous", id="an error"),
        pytest.param(ended(137, "OOMKilled"), "triton was killed for memory, started again 4 times", "pools.cpu.resources.limits.memory", id="memory"),
        pytest.param(ended(137), "exit code 137", "137 is a kill", id="killed"),
        pytest.param(ended(126, "ContainerCannotRun"), "(ContainerCannotRun, exit code 126)", "may not be run by this user", id="not executable"),
        pytest.param(ended(0, "Completed"), "(Completed, exit code 0)", "--previous", id="ends as if all were well"),
    ],
)  # fmt: skip
def test_a_crash_loop_is_told_with_its_last_end(last: dict[str, Any], says: str, way_out: str) -> None:
    it = pod("cpu", container(waiting("CrashLoopBackOff", "back-off 40s"), last=last, restartCount=4))
    found = why(it, pool="cpu")
    assert says in found.why
    assert way_out in (found.way_out or "")


def test_a_container_between_two_crashes_is_one_that_crashes() -> None:
    assert "exit code 2" in why(pod("cpu", container(ended(2))), pool="cpu").why


@pytest.mark.parametrize("state", [ended(1), waiting("CrashLoopBackOff")], ids=["just now", "in a loop"])
def test_a_model_repository_that_is_refused_names_the_log_to_read(state: dict[str, Any]) -> None:
    verify = container(state, name="verify-models", last=ended(1), restartCount=3)
    found = why(pod("cpu", container(waiting("PodInitializing")), init=(verify,)), pool="cpu")
    assert "exit code 1" in found.why
    assert (found.way_out or "").endswith("kubectl --namespace serve logs tandem-cpu-1 -c verify-models")


def test_another_init_container_that_fails_is_named() -> None:
    copy = container(waiting("CrashLoopBackOff"), name="copy-models", last=ended(1, message="No space left on device"))
    found = why(pod("cpu", container(waiting("PodInitializing")), init=(copy,)), pool="cpu")
    assert "copy-models" in found.why
    assert "exit code 1: No space" in found.why


def test_an_init_container_that_failed_once_and_then_passed_is_no_reason() -> None:
    verify = container(ended(0, "Completed"), name="verify-models", ready=True, last=ended(1), restartCount=1)
    found = why(pod("cpu", container(RUNNING), init=(verify,)), pool="cpu")
    assert "loads its models" in found.why
    assert "cpu-0" in found.why


@pytest.mark.parametrize(
    ("it", "says"),
    [
        pytest.param(pod("cpu", container(waiting("ContainerCreating"))), "node cpu-0 pulls its image or mounts its volumes", id="pulling"),
        pytest.param(pod("cpu", container(waiting("PodInitializing")), init=(container(RUNNING, name="copy-models"),)), "its init container copy-models is at work", id="copying models"),
        pytest.param(pod("cpu", container(waiting("PodInitializing")), init=(container(RUNNING, name="proxy", ready=True),)), "node cpu-0 pulls its image", id="a sidecar is up"),
        pytest.param(pod("cpu", container(RUNNING)), "triton loads its models on node cpu-0", id="loading"),
        pytest.param(pod("cpu", container(RUNNING, last=ended(137), restartCount=2)), "it ended before (exit code 137), started again 2 times", id="loading again"),
        pytest.param(pod("cpu", container(RUNNING, started=True)), "has started, but its first model is not ready", id="not ready any more"),
        pytest.param(pod("cpu", container(waiting("CreateContainerConfigError", 'secret "keys" not found'))), '(CreateContainerConfigError: secret "keys" not found)', id="a secret lacks"),
        pytest.param(pod("cpu", node=None), "the scheduler has not looked at it yet", id="just made"),
        pytest.param(pod("cpu", node="cpu-0", phase="Pending"), "node cpu-0 has not started it yet", id="just placed"),
        pytest.param(pod("cpu", phase="Failed", reason="Evicted", message="The node was low on memory."), "it failed as a whole (Evicted: The node was low on memory.)", id="evicted"),
    ],
)  # fmt: skip
def test_a_pod_on_its_way_up_is_told_where_it_stands(it: dict[str, Any], says: str) -> None:
    assert says in why(it, pool="cpu").why


def test_a_volume_that_cannot_be_mounted_is_told_in_the_kubelets_words() -> None:
    events = [
        event(
            "tandem-cpu-1", "FailedMount", 'MountVolume.SetUp failed for volume "models": not found', source="kubelet"
        )
    ]
    found = why(pod("cpu", container(waiting("ContainerCreating"))), pool="cpu", events=events)
    assert re.match("node cpu-0 .*MountVolume.SetUp failed", found.why)


def test_a_pod_on_a_node_that_went_away_says_so() -> None:
    nodes = [node("cpu-0", ready="Unknown", message="Kubelet stopped posting node status.")]
    found = why(pod("cpu", phase="Running"), pool="cpu", nodes=nodes)
    assert re.search("node cpu-0 .*Kubelet stopped", found.why)


def test_a_pod_that_leaves_is_waiting_for_nothing() -> None:
    it = pod("cpu")
    it["metadata"]["deletionTimestamp"] = "2026-11-20T11:59:50Z"
    assert "leaving" in why(it, pool="cpu", endpoint_slices=[endpoints("tandem-gateway-1")]).why


def test_a_gateway_that_is_not_ready_waits_for_models() -> None:
    it = pod("", container(RUNNING, name="gateway", started=True))
    found = judge(snapshot([deployment(ready=0)], [it]), NOW).releases[0].parts[0].waiting[0]
    assert "every model" in found.why


@pytest.mark.parametrize(
    ("message", "says", "way_out"),
    [
        pytest.param('pods "tandem-cpu-6b9f-x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2',
                     "no pod can be made: exceeded quota: team, requested: pods=1", "raise the quota", id="a quota"),
        pytest.param('pods "x" is forbidden: failed quota: team: must specify limits.cpu for: proxy',
                     "must specify limits.cpu for: proxy", "pools.cpu.resources", id="a quota on what is not stated"),
        pytest.param('pods "x" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
                     "the namespace's pod security refuses its pods: violates PodSecurity", "satisfy `restricted`", id="pod security"),
        pytest.param('pods "x" is forbidden: error looking up service account serve/tandem-triton: serviceaccount "tandem-triton" not found',
                     "no pod can be made: error looking up service account", "describe replicasets", id="anything else"),
    ],
)  # fmt: skip
def test_pods_that_the_server_refuses_to_make_are_told_of(message: str, says: str, way_out: str) -> None:
    failure = condition("ReplicaFailure", "True", "FailedCreate", message)
    found = snapshot([deployment(), deployment("cpu", ready=0, status={"conditions": [failure]})], [pod()])
    (only,) = judge(found, NOW).releases[0].parts[1].waiting
    assert only.pod is None
    assert says in only.why
    assert '"x"' not in only.why
    assert way_out in (only.way_out or "")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"spec": {"paused": True}}, "its rollout is paused"),
        ({"status": {"observedGeneration": 1}}, "not been looked at yet"),
    ],
    ids=["paused", "no controller"],
)
def test_a_deployment_that_nobody_works_on_says_so(more: dict[str, Any], says: str) -> None:
    found = snapshot([deployment(), deployment("cpu", ready=0, **more)], [pod()])
    assert says in judge(found, NOW).releases[0].parts[1].waiting[0].why
