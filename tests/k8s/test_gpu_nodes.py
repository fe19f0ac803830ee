"""The GPU nodes of every cloud agree with the chart's GPU pool. What Karpenter itself says to them: tests/cluster/test_k8s_objects.py."""

from __future__ import annotations

import re

import pytest

from .conftest import K8S, Object, Render, objects, one

# File -> the class that its NodePools point at, where another file has it.
KARPENTER = {
    "gpu-nodes/karpenter-aws.yaml": "gpu-nodes/karpenter-aws.yaml",
    "gpu-nodes/karpenter-aws-spot.yaml": "gpu-nodes/karpenter-aws.yaml",
    "gpu-nodes/karpenter-aws-shared.yaml": "gpu-nodes/karpenter-aws.yaml",
    "gpu-nodes/karpenter-aks.yaml": "gpu-nodes/karpenter-aks.yaml",
}
GKE = "gpu-nodes/gke-compute-class.yaml"


@pytest.fixture(params=KARPENTER)
def file(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


@pytest.fixture
def node_pool(file: str) -> Object:
    return one(file, "NodePool")


def requirement(node_pool: Object, key: str) -> list[str]:
    (found,) = [it for it in node_pool["spec"]["template"]["spec"]["requirements"] if it["key"] == key]
    assert found["operator"] == "In"
    values: list[str] = found["values"]
    return values


def test_no_file_is_forgotten_here() -> None:
    assert {f"gpu-nodes/{path.name}" for path in (K8S / "gpu-nodes").glob("*.yaml")} == {*KARPENTER, GKE}


def test_the_chart_tolerates_the_nodes_taint(node_pool: Object, gpu_pod: Object) -> None:
    (taint,) = node_pool["spec"]["template"]["spec"]["taints"]
    (toleration,) = gpu_pod["tolerations"]
    assert (toleration["key"], toleration["effect"], toleration["operator"]) == (
        taint["key"],
        taint["effect"],
        "Exists",
    )


def test_the_limit_counts_the_resource_that_the_chart_asks_for(node_pool: Object, render: Render) -> None:
    limits = render({"pools": {"gpu": {"enabled": True}}}).container("tandem-gpu")["resources"]["limits"]
    assert node_pool["spec"]["limits"].keys() <= limits.keys()


def test_only_empty_nodes_go_and_all_of_them_at_once(node_pool: Object) -> None:
    disruption = node_pool["spec"]["disruption"]
    assert disruption["consolidationPolicy"] == "WhenEmpty"
    assert {"nodes": "100%", "reasons": ["Empty"]} in disruption["budgets"]


def test_a_node_waits_longer_than_a_triton_needs_to_leave(node_pool: Object, gpu_pod: Object) -> None:
    assert node_pool["spec"]["template"]["spec"]["terminationGracePeriod"] == "15m"
    assert gpu_pod["terminationGracePeriodSeconds"] < 15 * 60


def test_the_pool_points_at_the_class(file: str, node_pool: Object) -> None:
    reference = node_pool["spec"]["template"]["spec"]["nodeClassRef"]
    it = one(KARPENTER[file], reference["kind"])
    group, _, _ = it["apiVersion"].partition("/")
    assert reference == {"group": group, "kind": it["kind"], "name": it["metadata"]["name"]}


def test_every_machine_of_a_pool_has_one_card(file: str, node_pool: Object) -> None:
    """Karpenter packs pods first and compares prices after: a machine of four cards would be bought for two pods."""
    key, one_card = {
        "karpenter-aks.yaml": ("karpenter.azure.com/sku-name", r"Standard_NC[48]as_T4_v3"),
    }.get(file.rpartition("/")[2], ("node.kubernetes.io/instance-type", r"g6\.(xlarge|[248]xlarge)"))
    machines = requirement(node_pool, key)
    assert machines
    assert all(re.fullmatch(one_card, machine) for machine in machines), machines


def test_nvidias_device_plugin_finds_the_node(node_pool: Object) -> None:
    """Its chart goes to nodes with this label, or with one of Node Feature Discovery's, which need not be there."""
    assert node_pool["spec"]["template"]["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"


def test_pools_of_one_cluster_have_names_of_their_own() -> None:
    names = [one(file, "NodePool")["metadata"]["name"] for file in KARPENTER if "-aws" in file]
    assert len(set(names)) == len(names)


def test_spot_is_tried_first_and_is_otherwise_of_the_same_shape() -> None:
    spot, other = (one(f"gpu-nodes/karpenter-aws{it}.yaml", "NodePool")["spec"] for it in ("-spot", ""))
    assert 1 <= spot["weight"] <= 100  # Karpenter's bounds
    assert "weight" not in other
    key = "karpenter.sh/capacity-type"
    assert [requirement({"spec": it}, key) for it in (spot, other)] == [["spot"], ["on-demand"]]
    assert spot["disruption"] == other["disruption"]
    assert spot["limits"] == other["limits"]
    assert {**spot["template"]["spec"], "requirements": None} == {**other["template"]["spec"], "requirements": None}


def test_a_reclaimed_spot_machine_leaves_a_triton_time_to_leave(gpu_pod: Object) -> None:
    """AWS gives two minutes."""
    assert gpu_pod["terminationGracePeriodSeconds"] < 120


def test_the_image_is_pinned_and_the_machines_credentials_are_out_of_reach() -> None:
    spec = one("gpu-nodes/karpenter-aws.yaml", "EC2NodeClass")["spec"]
    (term,) = spec["amiSelectorTerms"]
    assert term["alias"].partition("@")[2] not in ("", "latest")
    assert spec["metadataOptions"]["httpTokens"] == "required"
    assert spec["metadataOptions"]["httpPutResponseHopLimit"] == 1


def test_karpenter_is_told_of_the_shares_that_the_device_plugin_will_make() -> None:
    pool, overlay = objects("gpu-nodes/karpenter-aws-shared.yaml")
    (match,) = overlay["spec"]["requirements"]
    assert match == {"key": "karpenter.sh/nodepool", "operator": "In", "values": [pool["metadata"]["name"]]}
    assert overlay["spec"]["capacity"] == {"nvidia.com/gpu.shared": "4"}


def test_every_name_to_replace_is_explained() -> None:
    readme = (K8S / "gpu-nodes" / "README.md").read_text()
    for name in ("CLUSTER_NAME", "NODE_ROLE", "AMI_VERSION"):
        assert name in (K8S / "gpu-nodes" / "karpenter-aws.yaml").read_text()
        assert f"s/{name}/" in readme


# -- GKE ----------------------------------------------------------------------------------------------------------------------

# Of cloud.google.com/v1 ComputeClass, as Google's reference of it names them (read 2026-11-22): only the fields that we use, with what they take.
GKE_SPEC = {"nodePoolAutoCreation", "whenUnsatisfiable", "priorities", "autoscalingPolicy", "activeMigration"}
GKE_PRIORITY = {"machineType", "spot", "gpu"}
GKE_POLICY = {"consolidationDelayMinutes", "consolidationThreshold", "gpuConsolidationThreshold"}


@pytest.mark.parametrize("name", ["tandem-gpu", "tandem-gpu-spot"])
def test_a_compute_class_is_of_known_fields_and_every_choice_has_one_card(name: str) -> None:
    it = one(GKE, "ComputeClass", name)
    assert it["apiVersion"] == "cloud.google.com/v1"
    spec = it["spec"]
    assert spec.keys() <= GKE_SPEC
    assert spec["autoscalingPolicy"].keys() <= GKE_POLICY
    assert 1 <= spec["autoscalingPolicy"]["consolidationDelayMinutes"] <= 1440
    for choice in spec["priorities"]:
        assert choice.keys() <= GKE_PRIORITY
        assert choice["gpu"] == {"type": "nvidia-l4", "count": 1, "driverVersion": "default"}
        assert choice["machineType"] in ("g2-standard-4", "g2-standard-8")  # one L4 each


def test_gkes_spot_class_tries_spot_first_and_falls_back() -> None:
    choices = one(GKE, "ComputeClass", "tandem-gpu-spot")["spec"]["priorities"]
    assert [choice["spot"] for choice in choices] == [True, True, False]


def test_the_readme_tells_how_a_pool_asks_for_a_compute_class(render: Render) -> None:
    (values,) = re.findall(r"pools\.gpu\.nodeSelector\.\S+", (K8S / "gpu-nodes" / "README.md").read_text())
    assert values.rstrip("'").endswith("compute-class=tandem-gpu")
    selector = {"cloud.google.com/compute-class": "tandem-gpu"}
    pod = dict(render({"pools": {"gpu": {"enabled": True, "nodeSelector": selector}}}).pods())["tandem-gpu"]
    assert pod["nodeSelector"] == selector
