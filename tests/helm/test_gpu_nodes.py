"""The GPU nodes for Karpenter agree with the chart's GPU pool. Karpenter's own schemas are not among the server's."""

from __future__ import annotations

import pytest
import yaml

from .conftest import ROOT, Object, Render

FILE = ROOT / "k8s" / "gpu-nodes" / "karpenter-aws.yaml"


@pytest.fixture(scope="module")
def node_pool() -> Object:
    return _documents()["NodePool"]


@pytest.fixture(scope="module")
def node_class() -> Object:
    return _documents()["EC2NodeClass"]


def _documents() -> dict[str, Object]:
    return {it["kind"]: it for it in yaml.safe_load_all(FILE.read_text())}


def test_the_chart_tolerates_the_nodes_taint(node_pool: Object, render: Render) -> None:
    (taint,) = node_pool["spec"]["template"]["spec"]["taints"]
    pod = render({"pools": {"gpu": {"enabled": True}}}).one("Deployment", "tandem-gpu")["spec"]["template"]["spec"]
    (toleration,) = pod["tolerations"]
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


def test_a_node_waits_longer_than_a_triton_needs_to_leave(node_pool: Object, render: Render) -> None:
    assert node_pool["spec"]["template"]["spec"]["terminationGracePeriod"] == "15m"
    pods = dict(render({"pools": {"gpu": {"enabled": True}}}).pods())
    assert pods["tandem-gpu"]["terminationGracePeriodSeconds"] < 15 * 60


def test_the_pool_points_at_the_class(node_pool: Object, node_class: Object) -> None:
    reference = node_pool["spec"]["template"]["spec"]["nodeClassRef"]
    group, _, _ = node_class["apiVersion"].partition("/")
    assert reference == {"group": group, "kind": "EC2NodeClass", "name": node_class["metadata"]["name"]}


def test_the_image_is_pinned_and_the_machines_credentials_are_out_of_reach(node_class: Object) -> None:
    (term,) = node_class["spec"]["amiSelectorTerms"]
    assert term["alias"].partition("@")[2] not in ("", "latest")
    assert node_class["spec"]["metadataOptions"]["httpTokens"] == "required"
    assert node_class["spec"]["metadataOptions"]["httpPutResponseHopLimit"] == 1


def test_every_name_to_replace_is_explained() -> None:
    readme = (ROOT / "k8s" / "README.md").read_text()
    for name in ("CLUSTER_NAME", "NODE_ROLE", "AMI_VERSION"):
        assert name in FILE.read_text()
        assert f"s/{name}/" in readme
