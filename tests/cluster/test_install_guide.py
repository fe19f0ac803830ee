"""docs/kubernetes.md and the commands of k8s/, followed word by word with real Helm against a real API server.

Nodes are simulated, among them one with a card, and pods run nothing: a page that rots fails here, one that lies about containers does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.bed.api import Answered, until
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.conftest import Nodes
from tests.cluster.guide import ROOT, Reader, blocks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

GUIDE, PLAIN, SCALING = (
    ROOT / "docs" / "kubernetes.md",
    ROOT / "k8s" / "README.md",
    ROOT / "k8s" / "scaling" / "README.md",
)
NAMESPACE = "tandem"  # the pages'


@pytest.fixture
def reader(bed: Bed, tmp_path: Path) -> Iterator[Reader]:
    yield Reader(bed, tmp_path)
    with suppress(Answered):  # the guide's last command did it
        bed.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
    until(lambda: not exists(bed), "the pages' namespace gone", 90)


def exists(bed: Bed) -> bool:
    return any(it["metadata"]["name"] == NAMESPACE for it in bed.api.items("/api/v1/namespaces"))


@pytest.mark.thorough
def test_the_install_guide_holds_from_the_first_command_to_the_last(bed: Bed, nodes: Nodes, reader: Reader) -> None:
    # What the page's node pools would buy.
    nodes.add("gpu-of-the-guide", {"nvidia.com/gpu": "1"}, taint="nvidia.com/gpu")
    reader.follow(GUIDE)
    assert "Succeeded" in reader.heard("helm test tandem")
    assert "answered by pool cpu" in reader.heard("helm test tandem")
    assert re.search(r"\b2\s.*deployed", reader.heard("helm history tandem"))
    assert "Rollback was a success" in reader.heard("helm rollback tandem 1")
    assert "successfully rolled out" in reader.heard("rollout status")
    assert re.search(r"answered by .*pool gpu \(gpu\)", reader.heard("rollout status"))
    assert 'release "tandem" uninstalled' in reader.heard("helm uninstall tandem")
    values = (reader.folder / "my-values.yaml").read_text()
    for name in ("shop-key", "api-key"):  # what the page says of what lies around
        key = (reader.folder / name).read_text()
        assert re.fullmatch(r"tdm_[0-9a-f]{12}_[0-9a-f]{64}", key)
        assert key not in (reader.folder / "keys.json").read_text() + values


@pytest.mark.thorough
def test_a_release_whose_gpu_node_is_not_there_in_time_is_called_failed_and_a_second_upgrade_mends_it(
    bed: Bed, namespace: str
) -> None:
    words = ("upgrade", "--install", "tandem", str(ROOT / "helm" / "tandem"), f"--namespace={namespace}")
    values = ("--set=auth.insecureNoAuth=true", "--set=pools.gpu.enabled=true")
    with pytest.raises(Failed, match="context deadline exceeded"):
        bed.helm(*words, *values, "--wait", "--timeout=15s")
    assert "STATUS: failed" in bed.helm("status", "tandem", f"--namespace={namespace}")
    bed.helm(*words, *values)
    assert "STATUS: deployed" in bed.helm("status", "tandem", f"--namespace={namespace}")
    bed.helm("uninstall", "tandem", f"--namespace={namespace}")


def test_the_plain_rendering_starts_by_its_pages_commands(bed: Bed, reader: Reader) -> None:
    reader.follow(PLAIN)
    for name in ("gateway", "cpu"):
        bed.kubectl("rollout", "status", f"deployment/tandem-{name}", "-n", NAMESPACE, "--timeout=60s")


@pytest.mark.thorough
def test_the_size_that_keda_gives_a_pool_outlives_an_upgrade(bed: Bed, reader: Reader) -> None:
    reader.run(f"kubectl create namespace {NAMESPACE}")
    reader.run("echo 'auth: {insecureNoAuth: true}' > my-values.yaml")
    chart = "helm/tandem --namespace tandem --values helm/tandem/values-keda.yaml --values my-values.yaml"
    reader.run(f"helm install tandem {chart}")
    bed.kubectl("scale", "deployment/tandem-gpu", "-n", NAMESPACE, "--replicas=3")  # as KEDA would
    reader.follow(SCALING)
    deployment = bed.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/tandem-gpu")
    assert deployment["spec"]["replicas"] == 3
    scaled = bed.api.get(f"/apis/keda.sh/v1alpha1/namespaces/{NAMESPACE}/scaledobjects/tandem-gpu")
    assert "autoscaling.keda.sh/paused" not in str(
        scaled["metadata"].get("annotations")
    )  # the last command took it off
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"] == {"scalerAddress": f"tandem-scaler.{NAMESPACE}.svc:9092", "pool": "gpu"}
    bed.helm("uninstall", "tandem", f"--namespace={NAMESPACE}")  # what is cluster-wide does not go with a namespace


@pytest.mark.parametrize(
    ("page", "left_out"),
    [(GUIDE, ["make image", "kubectl logs"]), (PLAIN, []), (SCALING, ["helm repo add prometheus-community"])],
)
def test_only_what_a_bed_cannot_do_is_left_out(page: Path, left_out: list[str]) -> None:
    found = [block.commands for block in blocks(page) if not block.is_run]
    assert len(found) == len(left_out), found
    assert all(commands.startswith(start) for commands, start in zip(found, left_out, strict=True))
