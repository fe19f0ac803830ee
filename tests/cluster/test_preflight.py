"""What is said about a cluster follows from the facts alone. The last tests hold what is asked for against the chart."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path

import helm_python
import pytest
import yaml

from serving.cluster.metrics_api import METRICS, Api, MetricsApi
from serving.cluster.objects.namespace import Event, Limit, LimitRange, Quota, StorageClass, VolumeClaim
from serving.cluster.objects.nodes import Node, NodePool, Taint
from serving.cluster.objects.pods import ContainerSpec, Pod, PodSpec
from serving.cluster.preflight.checks import MIN_SERVER_VERSION, exit_status
from serving.cluster.preflight.command import findings
from serving.cluster.preflight.facts import (
    HTTP_ROUTE,
    NODE_POOL,
    SCALED_OBJECT,
    SERVICE_MONITOR,
    Facts,
    Secret,
)
from serving.cluster.preflight.requirements import (
    DEFAULT,
    OPTIONAL,
    Kind,
    PodGroup,
    Requirements,
    requirements,
    with_gpu_pool,
)
from serving.cluster.snapshot import ClusterSnapshot
from serving.cluster.status.judge import judge
from serving.cluster.status.scaling import ScalerStatus
from serving.cluster.status.scheduling import Reason
from serving.documents.findings import Finding, State
from tests.cluster.objects import NOW, deployment, labels, pod, snapshot
from tests.helm.conftest import Rendering, accepted

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "tandem"
CPU_NODE = Node("plain", is_ready=True, is_cordoned=False, capacity={}, allocatable={})
GPU_TAINT = Taint("nvidia.com/gpu", "", "NoSchedule")
GPU_NODE = replace(CPU_NODE, name="card", capacity={"nvidia.com/gpu": 4}, allocatable={"nvidia.com/gpu": 4})
SERVED = MetricsApi(Api.SERVED, "kube-system/metrics-server")
GOOD = Facts(
    server_version="v1.35.0",
    has_namespace=True,
    enforced="restricted",
    cluster=ClusterSnapshot(
        "tandem",
        nodes=(CPU_NODE, GPU_NODE),
        storage_classes=(StorageClass("fast", is_default=True, provisioner="ebs.csi.aws.com"),),
    ),
    kinds=dict.fromkeys((NODE_POOL, SCALED_OBJECT, SERVICE_MONITOR, HTTP_ROUTE), Api.SERVED),
    metrics=dict.fromkeys(METRICS, SERVED),
)
IN_SNAPSHOT = {it.name for it in fields(ClusterSnapshot)}
OK, MISSING, UNKNOWN = State.OK, State.MISSING, State.UNKNOWN
GPU = with_gpu_pool(DEFAULT, "nvidia.com/gpu")
MIG = with_gpu_pool(DEFAULT, "nvidia.com/mig-1g.10gb")
GIB = Decimal(2**30)


def changed(**changes: object) -> Facts:
    """The good facts with others, of the snapshot or beside it."""
    cluster = {name: it for name, it in changes.items() if name in IN_SNAPSHOT}
    beside = {name: it for name, it in changes.items() if name not in IN_SNAPSHOT}
    return replace(GOOD, cluster=replace(GOOD.cluster, **cluster), **beside)  # type: ignore[arg-type]


def of(name: str, asked: Requirements = DEFAULT, **changes: object) -> Finding:
    (found,) = [it for it in findings(changed(**changes), asked) if it.name == name]
    return found


def names(asked: Requirements = DEFAULT, **changes: object) -> list[str]:
    return [it.name for it in findings(changed(**changes), asked)]


def status(asked: Requirements = DEFAULT, **changes: object) -> int:
    return exit_status(findings(changed(**changes), asked))


def test_in_a_cluster_with_everything_only_policies_stay_unknown() -> None:
    found = {it.name: it.state for it in findings(GOOD, DEFAULT)}
    assert {name for name, state in found.items() if state is not OK} == {"network policies"}
    assert found["network policies"] is UNKNOWN
    assert status() == 0


@pytest.mark.parametrize(
    ("version", "state", "says"),
    [
        pytest.param("v1.30.0", OK, "v1.30.0 (1.30 or newer", id="the oldest"),
        pytest.param("v1.31.4-gke.1256000", OK, "v1.31.4-gke", id="a cloud's own suffix"),
        pytest.param("v2.0.0", OK, "v2.0.0", id="a larger first number"),
        pytest.param("v1.29.15", MISSING, "too old", id="one too old"),
        pytest.param("v1.9.11", MISSING, "too old", id="compared as numbers, not as text"),
        pytest.param("v0.0.0-master+$Format:%H$", MISSING, "too old", id="built without its version"),
        pytest.param("", UNKNOWN, "cannot be read", id="empty"),
        pytest.param("1", UNKNOWN, "cannot be read", id="one number"),
        pytest.param("latest", UNKNOWN, "cannot be read", id="no number"),
    ],
)
def test_the_server_is_as_new_as_the_chart_needs(version: str, state: State, says: str) -> None:
    found = of("server version", server_version=version)
    assert (found.state, found.is_required) == (state, True)
    assert says in found.found


@pytest.mark.parametrize(
    ("has_namespace", "state", "fix"),
    [
        pytest.param(True, OK, None, id="exists"),
        pytest.param(False, MISSING, "kubectl create namespace tandem", id="does not exist"),
        pytest.param(None, UNKNOWN, "have an administrator look: kubectl get namespace tandem", id="may not be seen"),
    ],
)
def test_the_namespace_exists(has_namespace: bool | None, state: State, fix: str | None) -> None:
    found = of("namespace", has_namespace=has_namespace)
    assert (found.state, found.fix) == (state, fix)
    assert "'tandem'" in found.found


def test_a_right_that_lacks_is_named_with_the_role_that_has_it() -> None:
    found = of("rights", denied=("deployments", "secrets"))
    assert found.state is MISSING
    assert "deployments, secrets in 'tandem'" in found.found
    assert "--clusterrole=edit --namespace=tandem" in (found.fix or "")
    assert "besides" not in (found.fix or "")


def test_a_right_that_edit_does_not_hold_is_told_apart() -> None:
    fix = of("rights", denied=("deployments", "scaledobjects", "priorityclasses")).fix or ""
    assert "scaledobjects, priorityclasses" in fix


def test_rights_for_what_is_not_wanted_are_optional() -> None:
    changes = {"denied_optional": ("servicemonitors (monitoring)",)}
    found = of("more rights", **changes)
    assert (found.state, found.is_required) == (MISSING, False)
    assert "servicemonitors (monitoring)" in found.found
    assert status(**changes) == 0


@pytest.mark.parametrize(
    ("enforced", "state", "says"),
    [
        pytest.param("restricted", OK, "'restricted' is enforced", id="the strictest"),
        pytest.param("baseline", OK, "'baseline' is enforced", id="the middle"),
        pytest.param("privileged", OK, "'privileged' is enforced", id="everything allowed, in so many words"),
        pytest.param("", MISSING, "enforce nothing", id="no label"),
        pytest.param("Restricted", MISSING, "'Restricted' is no level", id="misspelt"),
        pytest.param(None, UNKNOWN, "may not see", id="may not be seen"),
    ],
)
def test_what_pod_security_enforces_is_told_and_never_in_the_way(enforced: str | None, state: State, says: str) -> None:
    found = of("pod security", enforced=enforced)
    assert (found.state, found.is_required) == (state, False)
    assert says in found.found


BROKEN, CORDONED = replace(CPU_NODE, is_ready=False), replace(CPU_NODE, is_cordoned=True)


@pytest.mark.parametrize(
    ("nodes", "state", "says", "fix"),
    [
        pytest.param((CPU_NODE,), OK, "1 of 1 ready", "", id="one is enough"),
        pytest.param((CPU_NODE, BROKEN, CORDONED), OK, "2 of 3 ready, 1 cordoned", "", id="others may be down"),
        pytest.param((), MISSING, "there is none", "autoscaler", id="no nodes"),
        pytest.param((BROKEN, BROKEN), MISSING, "0 of 2 ready", "kubectl describe nodes", id="none is ready"),
        pytest.param((CORDONED,), MISSING, "1 of 1 ready, 1 cordoned", "kubectl uncordon", id="all are cordoned"),
        pytest.param((CORDONED, BROKEN), MISSING, "1 of 2 ready, 1 cordoned", "uncordon", id="cordoned or broken"),
        pytest.param(None, UNKNOWN, "may not see nodes", "administrator", id="may not be seen"),
    ],
)
def test_a_node_is_ready_for_pods(nodes: tuple[Node, ...] | None, state: State, says: str, fix: str) -> None:
    found = of("nodes", nodes=nodes)
    assert (found.state, found.is_required) == (state, True)
    assert says in found.found
    assert fix in (found.fix or "")


IDLE_CARD = replace(GPU_NODE, allocatable={"nvidia.com/gpu": 0})
SLICED = replace(
    GPU_NODE, name="sliced", capacity={"nvidia.com/mig-1g.10gb": 7}, allocatable={"nvidia.com/mig-1g.10gb": 7}
)
SILENT = replace(CPU_NODE, name="new", sign_of_gpu="nvidia.com/gpu.present=true")


@pytest.mark.parametrize(
    ("nodes", "state", "says"),
    [
        pytest.param((GPU_NODE,), OK, "1 carries cards, allocatable: 4 nvidia.com/gpu", id="one node"),
        pytest.param((GPU_NODE, GPU_NODE), OK, "2 carry cards, allocatable: 8 nvidia.com/gpu", id="two nodes"),
        pytest.param((GPU_NODE, IDLE_CARD), OK, "2 carry cards, allocatable: 4 nvidia.com/gpu", id="one unhealthy"),
        pytest.param((GPU_NODE, SLICED), OK, "4 nvidia.com/gpu, 7 nvidia.com/mig-1g.10gb", id="whole and sliced"),
        pytest.param((IDLE_CARD,), MISSING, "1 carries nvidia.com/gpu, 0 allocatable", id="announced, not allocatable"),
        pytest.param((CPU_NODE,), MISSING, "none carries nvidia.com/gpu", id="none has a card"),
        pytest.param((), MISSING, "none carries nvidia.com/gpu", id="no nodes"),
        pytest.param((replace(GPU_NODE, is_ready=False),), MISSING, "none with a card is ready", id="not ready"),
        pytest.param((replace(GPU_NODE, is_cordoned=True), CPU_NODE), MISSING, "none with a card", id="cordoned"),
        pytest.param(None, UNKNOWN, "may not see nodes", id="may not be seen"),
    ],
)
def test_gpus_are_counted_where_pods_can_have_them(nodes: tuple[Node, ...] | None, state: State, says: str) -> None:
    found = of("GPU nodes", nodes=nodes)
    assert (found.state, found.is_required) == (state, False)
    assert says in found.found
    assert of("GPU nodes", GPU, nodes=nodes).is_required


def test_a_gpu_node_that_is_down_is_named_rather_than_more_nodes_asked_for() -> None:
    found = of("GPU nodes", nodes=(CPU_NODE, replace(GPU_NODE, is_ready=False)))
    assert "kubectl describe node card" in (found.fix or "")


def test_no_finding_about_cards_goes_by_a_node_that_is_cordoned() -> None:
    theirs = Taint("team", "ml", "NoSchedule")
    cordoned, closed = replace(GPU_NODE, name="held", is_cordoned=True), replace(GPU_NODE, taints=(theirs,))
    alone = of("GPU nodes", GPU, nodes=(CPU_NODE, cordoned))
    assert (alone.state, "held" in (alone.fix or ""), "add GPU nodes" in (alone.fix or "")) == (MISSING, False, True)
    both = of("GPU nodes", GPU, nodes=(cordoned, replace(GPU_NODE, is_ready=False)))
    assert "describe node card" in (both.fix or "")
    assert of("GPU taints", GPU, nodes=(cordoned, closed)).state is MISSING, "the cordoned one lets nobody in"
    assert "GPU taints" not in names(GPU, nodes=(replace(cordoned, taints=(theirs,)), CPU_NODE))
    assert "GPU device plugin" not in names(GPU, nodes=(CPU_NODE, GPU_NODE, replace(SILENT, is_cordoned=True)))


@pytest.mark.parametrize(
    ("asked", "node", "state", "says"),
    [
        pytest.param(MIG, SLICED, OK, "7 nvidia.com/mig-1g.10gb", id="a slice is asked for and there"),
        pytest.param(MIG, GPU_NODE, MISSING, "but there are 4 nvidia.com/gpu", id="a slice is asked for, cards are whole"),
        pytest.param(GPU, SLICED, MISSING, "but there are 7 nvidia.com/mig", id="whole ones are asked for"),
        pytest.param(DEFAULT, SLICED, OK, "7 nvidia.com/mig-1g.10gb", id="nothing is asked for"),
        pytest.param(with_gpu_pool(GPU, "nvidia.com/gpu"), replace(GPU_NODE, allocatable={"nvidia.com/gpu": 1}),
                     MISSING, "2 nvidia.com/gpu are asked for, 1 are allocatable", id="fewer than asked for"),
    ],
)  # fmt: skip
def test_the_resource_that_is_asked_for_is_the_one_that_counts(
    asked: Requirements, node: Node, state: State, says: str
) -> None:
    found = of("GPU nodes", asked, nodes=(CPU_NODE, node))
    assert found.state is state
    assert says in found.found
    if "but there are" in says:
        assert f"pools.gpu.gpu.resource={next(iter(node.allocatable))}" in (found.fix or "")


BUYER = NodePool("gpu", is_ready=True, sign_of_gpu="limits.nvidia.com/gpu")


def test_a_karpenter_pool_of_cards_that_stands_at_zero_is_whole() -> None:
    found = of("GPU nodes", GPU, nodes=(CPU_NODE,), node_pools=(BUYER,))
    assert (found.state, "NodePool 'gpu' buys them" in found.found) == (OK, True)


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        (replace(BUYER, sign_of_gpu=None), "none carries nvidia.com/gpu"),
        (replace(BUYER, is_ready=False, trouble="NodeClassNotReady: no subnets"), "NodeClassNotReady: no subnets"),
    ],
    ids=["of ordinary machines", "that is not ready"],
)
def test_a_karpenter_pool_that_cannot_buy_cards_is_none(pool: NodePool, says: str) -> None:
    found = of("GPU nodes", GPU, nodes=(CPU_NODE,), node_pools=(pool,))
    assert (found.state, says in found.found) == (MISSING, True)


def test_a_gpu_machine_without_its_resource_names_the_device_plugin() -> None:
    found = of("GPU device plugin", nodes=(CPU_NODE, SILENT))
    assert "new " in found.found
    assert "(nvidia.com/gpu.present=true)" in found.found
    assert "grep nvidia" in (found.fix or "")
    assert not found.is_required
    assert of("GPU device plugin", GPU, nodes=(CPU_NODE, SILENT)).is_required


def test_one_silent_machine_beside_good_ones_is_told_and_not_in_the_way() -> None:
    assert status(GPU, nodes=(CPU_NODE, GPU_NODE, SILENT)) == 0
    assert "GPU device plugin" in names(GPU, nodes=(CPU_NODE, GPU_NODE, SILENT))


@pytest.mark.parametrize("nodes", [(CPU_NODE,), (replace(SILENT, is_ready=False),)], ids=["no sign", "still booting"])
def test_without_a_sign_of_a_card_there_is_no_word_of_its_plugin(nodes: tuple[Node, ...]) -> None:
    assert "GPU device plugin" not in names(nodes=nodes)


@pytest.mark.parametrize(
    ("taints", "state", "says"),
    [
        pytest.param((GPU_TAINT,), OK, "nvidia.com/gpu:NoSchedule: tolerated", id="the usual one"),
        pytest.param((replace(GPU_TAINT, value="present"),), OK, "tolerated", id="with a value"),
        pytest.param((replace(GPU_TAINT, effect="NoExecute"),), MISSING, "NoExecute", id="with another effect"),
        pytest.param((GPU_TAINT, Taint("team", "ml", "NoSchedule")), MISSING, "team=ml:NoSchedule", id="and one more"),
    ],
)
def test_taints_of_gpu_nodes_are_held_against_the_pools_tolerations(
    taints: tuple[Taint, ...], state: State, says: str
) -> None:
    found = of("GPU taints", GPU, nodes=(CPU_NODE, replace(GPU_NODE, taints=taints)))
    assert (found.state, found.is_required) == (state, True)
    assert says in found.found
    if state is MISSING:
        assert f"{{key: {taints[-1].key}, operator: Exists, effect: {taints[-1].effect}}}" in (found.fix or "")


@pytest.mark.parametrize(
    "taint",
    [Taint("node.kubernetes.io/not-ready", "", "NoSchedule"), Taint("spot", "", "PreferNoSchedule")],
    ids=["the cluster's own", "a preference"],
)
def test_taints_that_are_not_for_a_chart_to_tolerate_are_left_out(taint: Taint) -> None:
    assert "GPU taints" not in names(GPU, nodes=(CPU_NODE, replace(GPU_NODE, taints=(taint,))))


def test_one_gpu_node_that_lets_the_pool_in_is_enough() -> None:
    closed = replace(GPU_NODE, name="theirs", taints=(Taint("team", "ml", "NoSchedule"),))
    assert "GPU taints" not in [
        it.name for it in findings(changed(nodes=(closed, GPU_NODE)), GPU) if it.state is MISSING
    ]


def quota(hard: dict[str, object], used: dict[str, object] | None = None, **changes: object) -> tuple[Quota, ...]:
    def decimals(it: dict[str, object] | None) -> dict[str, Decimal]:
        return {key: Decimal(str(value)) for key, value in (it or {}).items()}

    return (replace(Quota("team", decimals(hard), decimals(used)), **changes),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quotas", "says"),
    [
        pytest.param(quota({"requests.cpu": "1"}), "team leaves 1 of requests.cpu, 2 is asked for", id="cpu"),
        pytest.param(quota({"cpu": "1"}), "team leaves 1 of cpu", id="under its short name"),
        pytest.param(quota({"limits.cpu": 6}, {"limits.cpu": 1}), "leaves 5 of limits.cpu, 6 is asked for", id="used"),
        pytest.param(
            quota({"requests.memory": 2**30}), "leaves 1Gi of requests.memory, 1.75Gi is asked for", id="memory"
        ),
        pytest.param(quota({"limits.memory": 2**30}), "1Gi of limits.memory", id="memory's limit"),
        pytest.param(quota({"pods": 1}), "leaves 1 of pods, 3 is asked for", id="pods"),
        pytest.param(quota({"count/pods": 1}), "leaves 1 of count/pods", id="pods, counted as objects"),
        pytest.param(quota({"pods": 4}, {"pods": 9}), "leaves 0 of pods", id="used beyond what is allowed"),
    ],
)
def test_a_quota_that_is_too_small_is_told_with_what_it_leaves(quotas: tuple[Quota, ...], says: str) -> None:
    found = of("quotas", quotas=quotas)
    assert (found.state, found.is_required) == (MISSING, True)
    assert says in found.found


@pytest.mark.parametrize(
    "quotas",
    [
        quota({"requests.cpu": 2, "limits.cpu": 6, "pods": 3}),
        quota({"requests.nvidia.com/gpu": 0}),
        quota({"services.loadbalancers": 0, "count/jobs.batch": 0}),
        quota({"requests.cpu": "0.1"}, is_scoped=True),
    ],
    ids=["exactly enough", "of cards that nobody asks for", "of other things", "of some pods only"],
)
def test_a_quota_that_leaves_enough_is_named(quotas: tuple[Quota, ...]) -> None:
    found = of("quotas", quotas=quotas)
    assert (found.state, "team" in found.found) == (OK, True)


def test_a_quota_of_cards_counts_for_a_gpu_pool() -> None:
    found = of("quotas", GPU, quotas=quota({"requests.nvidia.com/gpu": 0}))
    assert "0 of requests.nvidia.com/gpu, 1" in found.found


def test_what_is_installed_already_does_not_count_twice() -> None:
    used = quota({"pods": 4}, {"pods": 4})
    assert of("quotas", quotas=used).state is MISSING
    assert of("quotas", quotas=used, pods=(OWN_POD,) * 3).state is OK


OWN_POD = Pod.parse({"metadata": {"name": "a"}, "status": {"phase": "Running"}})
CARELESS = requirements(
    [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
      "spec": {"template": {"spec": {"containers": [{"name": "b"}]}}}}],
    "mine",
)  # fmt: skip


def test_a_quota_on_limits_refuses_a_container_that_states_none() -> None:
    found = of("quotas", CARELESS, quotas=quota({"limits.cpu": 100}))
    assert re.search("limits.cpu.* deployment a, container b", found.found)
    given = limits(Limit("defaults", "Container", default={"cpu": Decimal(1)}))
    assert of("quotas", CARELESS, quotas=quota({"limits.cpu": 100}), limit_ranges=given).state is OK


@pytest.mark.parametrize("field", ["quotas", "limit_ranges"])
def test_quotas_and_limits_that_may_not_be_seen_are_unknown(field: str) -> None:
    found = of(field.replace("_", " "), **{field: None})
    assert (found.state, found.is_required) == (UNKNOWN, True)
    assert status(**{field: None}) == 3


def limits(*given: Limit) -> tuple[LimitRange, ...]:
    return tuple(LimitRange(it.name, (it,)) for it in given)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        pytest.param(Limit("small", "Container", max={"cpu": Decimal(1)}),
                     "container triton may have 2 of cpu, small allows 1", id="a largest limit"),
        pytest.param(Limit("big", "Container", min={"memory": 2 * GIB}),
                     "asks for 64Mi of memory, big wants 2Gi", id="a smallest request"),
        pytest.param(Limit("tight", "Container", max_ratio={"cpu": Decimal("1.5")}),
                     "has a limit of cpu over 1.5 times its request (tight)", id="a ratio"),
        pytest.param(Limit("pods", "Pod", max={"memory": GIB}),
                     "deployment tandem-cpu may have 1.5Gi of memory, pods allows 1Gi", id="of whole pods"),
    ],
)  # fmt: skip
def test_a_limit_range_that_the_chart_does_not_keep_is_told(limit: Limit, says: str) -> None:
    found = of("limit ranges", limit_ranges=limits(limit))
    assert (found.state, found.is_required) == (MISSING, True)
    assert says in found.found


def test_a_limit_range_that_only_gives_defaults_is_no_hindrance() -> None:
    given = limits(Limit("d", "Container", default={"cpu": Decimal(1)}))
    assert of("limit ranges", limit_ranges=given).state is OK


VOLUME = replace(DEFAULT, claims_made=(VolumeClaim("models", None, 10 * GIB),))


@pytest.mark.parametrize(
    ("asked", "changes", "state", "is_required", "says"),
    [
        pytest.param(DEFAULT, {}, OK, False, "default storage class fast", id="a default, and nobody needs it"),
        pytest.param(VOLUME, {}, OK, True, "default storage class fast", id="a default, and needed"),
        pytest.param(DEFAULT, {"storage_classes": ()}, MISSING, False, "no default", id="none, and nobody needs it"),
        pytest.param(VOLUME, {"storage_classes": ()}, MISSING, True, "no default", id="none, and needed"),
        pytest.param(VOLUME, {"storage_classes": (StorageClass("slow", False, "x"),)}, MISSING, True, "there is slow", id="one, not default"),
        pytest.param(replace(DEFAULT, claims_made=(VolumeClaim("m", "gold", GIB),)), {}, MISSING, True, "no storage class 'gold'", id="another is named"),
        pytest.param(VOLUME, {"storage_classes": None}, UNKNOWN, True, "may not see", id="may not be seen"),
        pytest.param(replace(DEFAULT, claims_used=frozenset({"models"})), {}, MISSING, True, "no volume claim 'models'", id="a claim that is not there"),
        pytest.param(replace(DEFAULT, claims_used=frozenset({"models"})), {"volume_claims": None}, UNKNOWN, True, "may not see volume claim", id="a claim that may not be seen"),
    ],
)  # fmt: skip
def test_storage_is_required_where_a_volume_is(
    asked: Requirements, changes: dict[str, object], state: State, is_required: bool, says: str
) -> None:
    found = of("storage", asked, **changes)
    assert (found.state, found.is_required) == (state, is_required)
    assert says in found.found


@pytest.mark.parametrize(
    ("secret", "state", "says"),
    [
        (Secret.THERE, OK, "of the right type"),
        (Secret.ABSENT, MISSING, "not in 'tandem'"),
        (Secret.OTHER_TYPE, MISSING, "not of type kubernetes.io/dockerconfigjson"),
        (None, UNKNOWN, "may not see secrets"),
    ],
)
def test_a_pull_secret_is_there_and_of_its_type(secret: Secret | None, state: State, says: str) -> None:
    found = of("pull secret 'registry'", pull_secrets={"registry": secret})
    assert (found.state, found.is_required) == (state, True)
    assert says in found.found
    if state is MISSING:
        assert "secret docker-registry registry" in (found.fix or "")


@pytest.mark.parametrize(("secret", "state"), [(Secret.THERE, OK), (Secret.ABSENT, MISSING), (None, UNKNOWN)])
def test_a_secret_that_pods_name_is_there(secret: Secret | None, state: State) -> None:
    assert of("secret 'keys'", secrets={"keys": secret}).state is state


def test_pulls_that_failed_lately_are_told_with_the_image_and_decide_nothing() -> None:
    failed = Event("a", "Failed", 'Failed to pull image "r.example.com/x:1": 401 Unauthorized', "kubelet", None)
    found = of("image pulls", events=(failed,))
    assert (found.state, found.is_required) == (MISSING, False)
    assert "r.example.com/x:1" in found.found
    assert "401" in found.found
    assert of("image pulls", events=None).state is UNKNOWN


@pytest.mark.parametrize("group", METRICS)
@pytest.mark.parametrize(
    ("api", "state", "says"),
    [
        (MetricsApi(Api.SERVED, "keda/keda-operator-metrics-apiserver"), OK, "served by keda/keda-operator"),
        (MetricsApi(Api.SERVED), OK, "served"),
        (MetricsApi(Api.ABSENT), MISSING, "not served"),
        (
            MetricsApi(Api.BROKEN, "a/b", "FailedDiscoveryCheck: no response"),
            MISSING,
            "by a/b but does not answer (FailedD",
        ),
    ],
    ids=["served", "served, by whom may not be seen", "absent", "down"],
)
def test_metrics_apis_tell_who_serves_them(group: str, api: MetricsApi, state: State, says: str) -> None:
    metrics = {**GOOD.metrics, group: api}
    found = of(group, metrics=metrics)
    assert (found.state, found.is_required) == (state, False)
    assert says in found.found
    assert of(group, replace(DEFAULT, metrics=frozenset({group})), metrics=metrics).is_required


@pytest.mark.parametrize(
    ("kind", "name", "fix"),
    [
        (NODE_POOL, "Karpenter", "k8s/gpu-nodes/"),
        (SCALED_OBJECT, "KEDA", "to zero"),
        (SERVICE_MONITOR, "Prometheus operator", "scrapes"),
        (HTTP_ROUTE, "Gateway API", "httpRoute"),
    ],
)
def test_an_api_that_lacks_is_optional_until_it_is_wanted(kind: Kind, name: str, fix: str) -> None:
    kinds = {**GOOD.kinds, kind: Api.ABSENT}
    found = of(name, kinds=kinds)
    assert (found.state, found.is_required) == (MISSING, False)
    assert "is not served" in found.found
    assert fix in (found.fix or "")
    assert status(kinds=kinds) == 0
    assert status(replace(DEFAULT, kinds=frozenset({kind})), kinds=kinds) == 1


def test_a_kind_that_nobody_knew_of_is_required_when_it_is_rendered() -> None:
    kind = Kind("example.com", "v1", "Widget")
    asked = replace(DEFAULT, kinds=frozenset({kind}))
    assert of("Widget", asked, kinds={**GOOD.kinds, kind: Api.ABSENT}).state is MISSING
    assert of("Widget", asked, kinds={**GOOD.kinds, kind: Api.BROKEN}).found.endswith("does not answer")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        pytest.param({"nodes": (CPU_NODE,)}, 0, id="no GPU"),
        pytest.param({"has_namespace": False}, 1, id="no namespace"),
        pytest.param({"denied": ("services",)}, 1, id="a right lacks"),
        pytest.param({"nodes": ()}, 1, id="no node"),
        pytest.param({"server_version": "v1.29.0"}, 1, id="too old"),
        pytest.param({"nodes": None}, 3, id="nodes may not be seen"),
        pytest.param({"has_namespace": None}, 3, id="the namespace may not be seen"),
        pytest.param({"server_version": "?"}, 3, id="an unreadable version"),
        pytest.param({"storage_classes": None}, 0, id="storage classes may not be seen"),
        pytest.param({"nodes": None, "has_namespace": False}, 1, id="what is missing counts before what is unknown"),
    ],
)
def test_only_what_is_required_decides_the_exit_code(changes: dict[str, object], code: int) -> None:
    assert status(**changes) == code


def test_with_a_gpu_pool_wanted_its_nodes_decide_too() -> None:
    assert status(GPU) == 0
    assert status(GPU, nodes=(CPU_NODE,)) == 1
    assert status(GPU, nodes=None) == 3


# -- against the chart ------------------------------------------------------------------------------------------------


def rendered() -> Requirements:
    files = sorted((ROOT / "k8s" / "rendered").glob("*.yaml"))
    documents = [each for it in files for each in yaml.safe_load_all(it.read_text(encoding="utf-8"))]
    return requirements([it for it in documents if it["kind"] != "Kustomization"], DEFAULT.source)


def test_the_version_asked_for_is_the_charts() -> None:
    needed = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["kubeVersion"]
    assert needed == ">={}.{}.0-0".format(*MIN_SERVER_VERSION)


def amounts_of(it: ContainerSpec) -> ContainerSpec:
    return ContainerSpec(it.name, it.is_init, it.requests, it.limits)


def test_the_default_that_is_asked_for_is_what_the_chart_renders() -> None:
    found = rendered()
    asked = replace(
        found,
        secrets_used=frozenset(),  # the API keys', whose name the rendering chose
        pods=tuple(
            PodGroup(it.owner, it.count, PodSpec(tuple(map(amounts_of, it.spec.containers)))) for it in found.pods
        ),
    )
    assert asked == DEFAULT, (
        "the chart's default has changed: serving/cluster/preflight/requirements.py is to say the same"
    )


def test_the_gpu_pool_that_is_asked_for_is_the_charts() -> None:
    with helm_python.Chart.load(CHART) as chart:
        made = Rendering(chart.render(accepted({"pools": {"gpu": {"enabled": True}}}), name="tandem"))
    (read,) = requirements([made.one("Deployment", "tandem-gpu")], "").pods
    asked = GPU.pods[-1]
    assert asked.spec.gpus == {"nvidia.com/gpu": 1}
    assert asked.sums() == read.sums()
    assert [*asked.spec.tolerations] == [it for it in read.spec.tolerations if "tolerationSeconds" not in it]


def test_every_kind_that_the_chart_may_make_is_asked_a_right_for() -> None:
    made = set()
    for it in (CHART / "templates").rglob("*.*"):
        made |= set(re.findall(r"(?m)^(?:kind: |.*?, kind: )(\w+)$", it.read_text(encoding="utf-8")))
    objects = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}} for kind in made]
    asked = {it.name for it in requirements(objects, "").resources}
    assert asked <= {it.name for it in DEFAULT.resources} | {it.name for it, _ in OPTIONAL}


# -- who scales ------------------------------------------------------------------------------------------------------


def test_keda_whose_operator_ended_is_missing_though_its_kinds_are_served() -> None:
    trouble = Reason("KEDA does not work: it has not renewed its Lease", "kubectl get pods", is_for_ever=True)
    found = of("KEDA", keda_trouble=trouble)
    assert (found.state, found.fix) == (MISSING, "kubectl get pods")
    assert "does not work" in found.found


def test_pools_that_are_installed_are_told_with_who_scales_them_and_whether_that_works() -> None:
    gpu = deployment("gpu", gpus=1)
    gpu["metadata"]["annotations"] = {"tandem-scaled-by": "scaler"}
    scaler = deployment()
    scaler["metadata"] |= {"name": "tandem-scaler", "labels": labels("scaler")}
    scaler_pod = pod(name="tandem-scaler-1")
    scaler_pod["metadata"]["labels"] = labels("scaler")
    page = ScalerStatus(wanted={"gpu": 1}, demands={"gpu": 0.5})
    for deployments, state, says in (
        ([deployment(), gpu, scaler], OK, "by the scaler: wanted 1; demand 0.5"),
        ([deployment(), gpu], MISSING, "the release has no scaler"),
    ):
        seen = snapshot(deployments, [pod(), pod("gpu"), scaler_pod])
        found = of("autoscaling of tandem's pool 'gpu'", installed=judge(seen, NOW, scalers={"tandem": page}))
        assert (found.state, found.is_required) == (state, False)
        assert says in found.found
