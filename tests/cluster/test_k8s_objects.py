"""k8s/ against a real API server with the definitions of Karpenter, AWS' provider of it and KEDA, and with Karpenter's real controller.

Not here: GKE and AKS, whose definitions cannot be had (the test that tries every file names them), AWS itself, a card.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.bed.api import Object, until
from tests.cluster.bed.build import CRDS
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.conftest import Nodes
from tests.k8s.conftest import K8S, ROOT, Render, chart, files, objects, one, render
from tests.k8s.keda_triggers import EXTERNAL_PUSH, OURS, mistakes

__all__ = ["chart", "render"]  # fixtures
pytestmark = pytest.mark.cluster

WITHOUT_DEFINITION = {"ComputeClass", "AKSNodeClass"}
NODE_POOLS = ("gpu-nodes/karpenter-aws.yaml", "gpu-nodes/karpenter-aws-spot.yaml")


def tried(bed: Bed, namespace: str, it: Object) -> str:
    """What a server says to the object without keeping it; Failed where it refuses."""
    return bed.kubectl(
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-n",
        namespace,
        "-f",
        "-",
        stdin=json.dumps(it),
    )


def test_the_server_takes_every_object_whose_definition_it_has(bed: Bed, namespace: str) -> None:
    refused = {}
    for file in files():
        for it in objects(str(file)):
            try:
                tried(bed, namespace, it)
            except Failed as error:
                refused[it["kind"]] = str(error)
    assert refused.keys() == WITHOUT_DEFINITION, "\n".join(refused.values())
    assert all("no matches" in words for words in refused.values())


@pytest.mark.parametrize(
    ("file", "kind", "at", "words"),
    [
        ("gpu-nodes/karpenter-aws.yaml", "NodePool", ("disruption", "consolidateafter"), '.spec.disruption.consolidateafter: field not declared in schema'),
        ("gpu-nodes/karpenter-aws.yaml", "EC2NodeClass", ("amiSelectorTerm",), '.spec.amiSelectorTerm: field not declared in schema'),
        ("gpu-nodes/karpenter-aws-shared.yaml", "NodeOverlay", ("capacity", "cpu"), "invalid resource restricted"),
        ("spare-capacity/capacity-buffer.yaml", "CapacityBuffer", ("replica",), '.spec.replica: field not declared in schema'),
    ],
)  # fmt: skip
def test_the_definitions_do_notice_a_mistake(
    bed: Bed, namespace: str, file: str, kind: str, at: tuple[str, ...], words: str
) -> None:
    it = one(file, kind)
    group = it["spec"]
    for key in at[:-1]:
        group = group[key]
    group[at[-1]] = "5m"
    with pytest.raises(Failed, match=re.escape(words)):
        tried(bed, namespace, it)


def scaled_object(render: Render) -> Object:
    values = yaml.safe_load((ROOT / "helm" / "tandem" / "values-keda.yaml").read_text())
    return render(values).one("ScaledObject", "tandem-gpu")


def test_kedas_definition_takes_the_charts_object_and_notices_a_misspelt_field(
    bed: Bed, namespace: str, render: Render
) -> None:
    it = copy.deepcopy(scaled_object(render))
    tried(bed, namespace, it)
    it["spec"]["cooldownperiod"] = it["spec"].pop("cooldownPeriod")
    with pytest.raises(Failed, match=re.escape(".spec.cooldownperiod: field not declared in schema")):
        tried(bed, namespace, it)


def test_kedas_definition_takes_a_misspelt_trigger_which_is_why_we_check_it(
    bed: Bed, namespace: str, render: Render
) -> None:
    it = copy.deepcopy(scaled_object(render))
    (trigger,) = it["spec"]["triggers"]
    trigger["metadata"]["scalerAdress"] = trigger["metadata"].pop("scalerAddress")
    tried(bed, namespace, it)
    assert any("scalerAdress" in mistake and "scalerAddress?" in mistake for mistake in mistakes(trigger))


def test_the_keys_that_we_know_of_a_trigger_are_those_in_kedas_source() -> None:
    source = (keda() / "pkg" / "scalers" / "external_scaler.go").read_text()
    (fields,) = re.findall(r"type externalScalerMetadata struct \{(.*?)\n\}", source, re.DOTALL)
    required, optional = set(), set()
    for tag in re.findall(r'`keda:"(name=[^"]*order=triggerMetadata[^"]*)"`', fields):
        (name,) = re.findall(r"name=(\w+)", tag)
        (optional if re.search(r"\boptional\b|\bdefault=", tag) else required).add(name)
    assert (required, optional) == (EXTERNAL_PUSH.required - OURS, EXTERNAL_PUSH.optional)


def keda() -> Path:
    """The module whose definitions the bed has, in Go's cache."""
    module, version = re.findall(r"^(\S+/keda/v2)\s+(\S+)", CRDS.read_text(), re.MULTILINE)[0]
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{module}@{version}"], capture_output=True, text=True, check=True
    )
    return Path(json.loads(done.stdout)["Dir"])


# -- the plain rendering ------------------------------------------------------------------------------------------------------


def test_a_real_kustomize_reads_the_plain_rendering_and_the_server_takes_it(bed: Bed, namespace: str) -> None:
    folder = K8S / "rendered"
    built = list(yaml.safe_load_all(bed.kubectl("kustomize", str(folder))))
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert in_order(built) == in_order(yaml.safe_load((folder / name).read_text()) for name in listed)
    said = bed.kubectl("apply", "--dry-run=server", "--validate=strict", "-n", namespace, "-k", str(folder))
    assert said.count("(server dry run)") == len(listed)
    assert "Warning" not in said


def in_order(found: Iterable[Object]) -> list[Object]:
    return sorted(found, key=lambda it: (it["kind"], it["metadata"]["name"]))


def test_the_overlay_of_the_readme_names_the_images(bed: Bed, tmp_path: Path) -> None:
    readme = (K8S / "README.md").read_text()
    (text,) = re.findall(r"```yaml\n(# my-tandem/kustomization\.yaml\n.*?)```", readme, re.DOTALL)
    overlay = tmp_path / "my-tandem"
    overlay.mkdir()
    (tmp_path / "k8s").symlink_to(K8S)
    (overlay / "kustomization.yaml").write_text(text)
    built = bed.kubectl("kustomize", str(overlay), "--load-restrictor=LoadRestrictionsNone")
    assert "image: registry.example.com/team/tandem-gateway:" in built
    assert not re.search(r"image: tandem-gateway", built)


# -- Karpenter ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def node_pools(bed: Bed) -> Iterator[Callable[..., None]]:
    """Applies our NodePools for AWS as they are, but for the machines: those of the bed, which has one of a card at both prices."""
    made = []

    def apply(file: str, gpus: int) -> None:
        it = one(file, "NodePool")
        spec = it["spec"]["template"]["spec"]
        spec["nodeClassRef"] = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "tandem-gpu"}
        (machines,) = [of for of in spec["requirements"] if of["key"] == "node.kubernetes.io/instance-type"]
        machines["values"] = ["gpu-1"]
        it["spec"]["disruption"]["consolidateAfter"] = "1s"
        it["spec"]["limits"]["nvidia.com/gpu"] = gpus
        bed.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(it))
        made.append(it["metadata"]["name"])

    node_class = {
        "apiVersion": "karpenter.kwok.sh/v1alpha1",
        "kind": "KWOKNodeClass",
        "metadata": {"name": "tandem-gpu"},
    }
    bed.kubectl("create", "-f", "-", stdin=json.dumps({**node_class, "spec": {"nodeRegistrationDelay": "1s"}}))
    yield apply
    bed.kubectl("delete", "nodepool", *made, "--wait=true", "--timeout=60s")
    bed.kubectl("delete", "kwoknodeclass", "tandem-gpu", "--wait=true", "--timeout=60s")


def triton(name: str) -> Object:
    """A pod that asks for what the chart's GPU pool asks for, as the structural tests say of the spare pods."""
    spec = one("spare-capacity/capacity-buffer.yaml", "PodTemplate")["template"]["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def nodes_of(bed: Bed, node_pool: str) -> list[Object]:
    return bed.api.items(f"/api/v1/nodes?labelSelector=karpenter.sh/nodepool={node_pool}")


def running(bed: Bed, namespace: str, name: str) -> str:
    """The node that the pod runs on; "" before."""
    pod = bed.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return pod["spec"].get("nodeName", "") if pod["status"].get("phase") == "Running" else ""


@pytest.mark.thorough
def test_karpenter_buys_spot_first_then_on_demand_and_both_go_when_they_are_empty(
    bed: Bed, namespace: str, node_pools: Callable[..., None]
) -> None:
    for file in NODE_POOLS:
        node_pools(file, gpus=1)  # no more spot than one: what a cloud that has run out looks like
    for number in (1, 2):
        bed.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(triton(f"triton-{number}")))
        until(lambda: running(bed, namespace, f"triton-{number}"), f"triton-{number} on a node of Karpenter's")  # noqa: B023
        assert [len(nodes_of(bed, pool)) for pool in ("tandem-gpu-spot", "tandem-gpu")] == [1, number - 1]
    for pool, price in (("tandem-gpu-spot", "spot"), ("tandem-gpu", "on-demand")):
        (node,) = nodes_of(bed, pool)
        assert node["metadata"]["labels"]["karpenter.sh/capacity-type"] == price
        assert node["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"
        assert "nvidia.com/gpu" in [taint["key"] for taint in node["spec"]["taints"]]
    bed.kubectl("delete", "pods", "-n", namespace, "--all", "--wait=false")
    until(lambda: not nodes_of(bed, "tandem-gpu-spot") and not nodes_of(bed, "tandem-gpu"), "both empty nodes gone", 90)


# -- spare capacity -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_pause_pod_gives_its_card_to_a_triton_and_waits_for_another(bed: Bed, namespace: str, nodes: Nodes) -> None:
    nodes.add("gpu-spare-0", {"nvidia.com/gpu": "1"}, taint="nvidia.com/gpu")
    pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/name=tandem-spare-gpu"
    bed.kubectl("create", "-n", namespace, "-f", str(K8S / "spare-capacity" / "pause-pods.yaml"))
    try:
        until(lambda: [it["status"].get("phase") for it in bed.api.items(pods)] == ["Running"], "the spare pod running")
        bed.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(triton("triton")))
        until(lambda: running(bed, namespace, "triton") == "gpu-spare-0", "the Triton on the spare node", 20)
        (waiting,) = until(
            lambda: [it for it in bed.api.items(pods) if it["status"].get("phase") == "Pending"], "a spare pod waiting"
        )
        assert "nodeName" not in waiting["spec"]
        nodes.add("gpu-spare-1", {"nvidia.com/gpu": "1"}, taint="nvidia.com/gpu")
        until(
            lambda: running(bed, namespace, waiting["metadata"]["name"]) == "gpu-spare-1",
            "the spare pod on the next node",
        )
        assert running(bed, namespace, "triton") == "gpu-spare-0"
    finally:
        bed.kubectl("delete", "priorityclass", "tandem-spare-capacity")
