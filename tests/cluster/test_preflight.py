"""What is said about a cluster follows from the facts alone. The last tests hold the facts that are asked for against the chart."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from serving.cluster.facts import INSTALLED, Api, Facts, Node
from serving.cluster.preflight import MIN_SERVER_VERSION, Finding, State, exit_status, findings

CHART = Path(__file__).parents[2] / "helm" / "tandem"
CPU_NODE = Node("plain", is_ready=True, is_cordoned=False, num_gpus=0, num_allocatable_gpus=0)
GPU_NODE = replace(CPU_NODE, name="card", num_gpus=4, num_allocatable_gpus=4)
GOOD = Facts(
    server_version="v1.35.0",
    namespace="tandem",
    has_namespace=True,
    denied=(),
    nodes=(CPU_NODE, GPU_NODE),
    metrics=Api.SERVED,
    node_pools=Api.SERVED,
    scaled_objects=Api.SERVED,
)
OK, MISSING, UNKNOWN = State.OK, State.MISSING, State.UNKNOWN


def of(name: str, **changes: object) -> Finding:
    (found,) = [it for it in findings(replace(GOOD, **changes)) if it.name == name]  # type: ignore[arg-type]
    return found


def status(**changes: object) -> int:
    return exit_status(findings(replace(GOOD, **changes)))  # type: ignore[arg-type]


def test_a_cluster_with_everything_is_good() -> None:
    assert [it.state for it in findings(GOOD)] == [OK] * 8
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
    assert found.found == "may not create deployments, secrets in 'tandem'"
    assert "--clusterrole=edit --namespace=tandem" in (found.fix or "")


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


IDLE_CARD = replace(GPU_NODE, num_allocatable_gpus=0)


@pytest.mark.parametrize(
    ("nodes", "state", "says"),
    [
        pytest.param((GPU_NODE,), OK, "1 carries nvidia.com/gpu, 4 allocatable", id="one node"),
        pytest.param((GPU_NODE, GPU_NODE), OK, "2 carry nvidia.com/gpu, 8 allocatable", id="two nodes"),
        pytest.param((GPU_NODE, IDLE_CARD), OK, "2 carry nvidia.com/gpu, 4 allocatable", id="one of them unhealthy"),
        pytest.param((IDLE_CARD,), MISSING, "1 carries nvidia.com/gpu, 0 allocatable", id="announced, not allocatable"),
        pytest.param((CPU_NODE,), MISSING, "none carries nvidia.com/gpu", id="none has a card"),
        pytest.param((), MISSING, "none carries nvidia.com/gpu", id="no nodes"),
        pytest.param((replace(GPU_NODE, is_ready=False),), MISSING, "none that carries", id="not ready"),
        pytest.param((replace(GPU_NODE, is_cordoned=True), CPU_NODE), MISSING, "none that carries", id="cordoned"),
        pytest.param(None, UNKNOWN, "may not see nodes", id="may not be seen"),
    ],
)
def test_gpus_are_counted_where_pods_can_have_them(nodes: tuple[Node, ...] | None, state: State, says: str) -> None:
    found = of("GPU nodes", nodes=nodes)
    assert (found.state, found.is_required) == (state, False)
    assert says in found.found


def test_a_gpu_node_that_is_down_is_named_rather_than_more_nodes_asked_for() -> None:
    found = of("GPU nodes", nodes=(CPU_NODE, replace(GPU_NODE, is_ready=False)))
    assert found.fix == "kubectl describe node card says why"


@pytest.mark.parametrize(
    ("field", "name", "api", "says", "fix"),
    [
        ("metrics", "metrics API", Api.ABSENT, "not served", "metrics-server"),
        ("metrics", "metrics API", Api.BROKEN, "does not answer", "describe apiservice"),
        ("node_pools", "Karpenter", Api.ABSENT, "NodePool is not served", "k8s/gpu-nodes/"),
        ("scaled_objects", "KEDA", Api.ABSENT, "ScaledObject is not served", "zero"),
    ],
)
def test_an_api_that_lacks_is_optional_and_says_what_it_is_for(
    field: str, name: str, api: Api, says: str, fix: str
) -> None:
    found = of(name, **{field: api})
    assert (found.state, found.is_required) == (MISSING, False)
    assert says in found.found
    assert fix in (found.fix or "")
    assert status(**{field: api}) == 0


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
        pytest.param({"nodes": None, "has_namespace": False}, 1, id="what is missing counts before what is unknown"),
    ],
)
def test_only_what_is_required_decides_the_exit_code(changes: dict[str, object], code: int) -> None:
    assert status(**changes) == code


def test_the_version_asked_for_is_the_charts() -> None:
    needed = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["kubeVersion"]
    assert needed == ">={}.{}.0-0".format(*MIN_SERVER_VERSION)


def test_the_rights_asked_for_are_those_to_create_what_the_chart_holds() -> None:
    templates = (CHART / "templates").glob("*.*")  # not tests/, whose pod exists only while `helm test` runs
    kinds = {kind for it in templates for kind in re.findall(r"(?m)^kind: (\w+)", it.read_text(encoding="utf-8"))}
    plural = {f"{kind.lower()}s" if not kind.endswith("y") else f"{kind.lower()[:-1]}ies" for kind in kinds}
    assert plural == {resource for _, resource in INSTALLED} - {"secrets"}
