"""What keeps a GPU node warm fits where a Triton of the chart's GPU pool fits, gives way to it at once, and is restricted like everything else."""

from __future__ import annotations

import pytest

from tests import api_server

from .conftest import Object, files, objects, one

PAUSE, BUFFER = "spare-capacity/pause-pods.yaml", "spare-capacity/capacity-buffer.yaml"
# Cluster Autoscaler's expendable-pods-priority-cutoff: below it nobody buys a node for a pod.
CUTOFF = -10


@pytest.fixture(params=["pause pods", "capacity buffer"])
def pod(request: pytest.FixtureRequest) -> Object:
    it = one(PAUSE, "Deployment")["spec"] if request.param == "pause pods" else one(BUFFER, "PodTemplate")
    spec: Object = it["template"]["spec"]
    return spec


def test_a_spare_node_is_one_that_a_triton_fits_on(pod: Object, gpu_pod: Object) -> None:
    (spare,), (triton,) = pod["containers"], gpu_pod["containers"]
    asked = {name: str(value) for name, value in triton["resources"]["requests"].items()}
    limits = triton["resources"]["limits"]
    asked |= {name: str(value) for name, value in limits.items() if name.startswith("nvidia.com/")}
    assert {name: str(value) for name, value in spare["resources"]["requests"].items()} == asked
    assert pod["tolerations"] == gpu_pod["tolerations"]
    assert pod.get("nodeSelector", {}) == gpu_pod.get("nodeSelector", {})


def test_it_is_restricted_and_has_no_token(pod: Object) -> None:
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"].rpartition(":")[2] not in ("", "latest")


def test_a_pause_pod_gives_way_to_everybody_at_once_and_still_gets_a_node() -> None:
    priority, pod = one(PAUSE, "PriorityClass"), one(PAUSE, "Deployment")["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == priority["metadata"]["name"]
    assert CUTOFF <= priority["value"] < 0  # 0 is the priority of a pod that says nothing
    assert priority["preemptionPolicy"] == "Never"
    assert priority.get("globalDefault", False) is False
    assert pod["terminationGracePeriodSeconds"] == 0


def test_a_buffers_pods_are_made_of_its_template() -> None:
    buffer = one(BUFFER, "CapacityBuffer")
    assert buffer["apiVersion"] == "autoscaling.x-k8s.io/v1beta1"
    assert buffer["spec"]["podTemplateRef"]["name"] == one(BUFFER, "PodTemplate")["metadata"]["name"]
    assert buffer["spec"]["replicas"] == one(PAUSE, "Deployment")["spec"]["replicas"] == 1


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_what_kubernetes_itself_knows_of_all_these_files_is_valid(version: str) -> None:
    own = [
        it
        for file in files()
        for it in objects(str(file))
        if "." not in it["apiVersion"].partition("/")[0] or it["apiVersion"].partition("/")[0].endswith(".k8s.io")
        if it["kind"] != "CapacityBuffer"
    ]
    assert {it["kind"] for it in own} == {"ConfigMap", "Deployment", "PodTemplate", "PriorityClass"}
    for it in own:
        api_server.validate(it, version)
