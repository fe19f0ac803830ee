"""docs/kubernetes.md, followed word by word: its blocks of commands, in order, in one folder, with real Helm against a real API server.

A block whose paragraph above says *Not run here* is left out; every other one must succeed as it stands. What stands for the reader's
cluster: simulated nodes, among them one with a card, and pods that run nothing. So a page that rots fails here, and one that lies about containers does not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.bed.api import Answered, until
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.conftest import Nodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "kubernetes.md"
NAMESPACE = "tandem"  # the page's
BLOCK_S = 150  # the longest, an upgrade or an uninstall with --wait, takes half a minute


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    commands: str
    is_run: bool


def blocks(page: str) -> list[Block]:
    found = []
    for match in re.finditer(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        above = page[: match.start()].rstrip().rpartition("\n\n")[2]
        found.append(Block(page[: match.start()].count("\n") + 2, match[1], "Not run here" not in above))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the page has of a clone's root."""
    for name in ("helm", "k8s", "model_repo"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def without_the_namespace(bed: Bed) -> Iterator[None]:
    yield
    with suppress(Answered):  # the page's last command did it
        bed.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
    until(lambda: not exists(bed), "the page's namespace gone", 90)


def exists(bed: Bed) -> bool:
    return any(it["metadata"]["name"] == NAMESPACE for it in bed.api.items("/api/v1/namespaces"))


def run(block: Block, bed: Bed, folder: Path) -> str:
    programs = [str(bed.layout.programs.folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        "PATH": ":".join(programs),
        "HOME": str(folder / "home"),
        "KUBECONFIG": str(bed.layout.kubeconfig),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.commands],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=BLOCK_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{PAGE.name}:{block.line}\n{block.commands}\n{done.stdout}"
    return done.stdout


@pytest.mark.usefixtures("without_the_namespace")
def test_the_install_guide_holds_from_the_first_command_to_the_last(bed: Bed, nodes: Nodes, folder: Path) -> None:
    # What the page's node pools would buy.
    nodes.add("gpu-of-the-guide", {"nvidia.com/gpu": "1"}, taint="nvidia.com/gpu")
    said = {block.commands: run(block, bed, folder) for block in blocks(PAGE.read_text()) if block.is_run}

    def of(command: str) -> str:
        (found,) = [text for commands, text in said.items() if command in commands]
        return found

    assert "Succeeded" in of("helm test tandem")
    assert "answered by pool cpu" in of("helm test tandem")
    assert re.search(r"\b2\s.*deployed", of("helm history tandem"))
    assert "Rollback was a success" in of("helm rollback tandem 1")
    assert "successfully rolled out" in of("rollout status")
    assert re.search(r"answered by .*pool gpu \(gpu\)", of("rollout status"))
    assert 'release "tandem" uninstalled' in of("helm uninstall tandem")
    values = (folder / "my-values.yaml").read_text()
    for name in ("shop-key", "api-key"):  # what the page says of what lies around
        key = (folder / name).read_text()
        assert re.fullmatch(r"tdm_[0-9a-f]{12}_[0-9a-f]{64}", key)
        assert key not in (folder / "keys.json").read_text() + values


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


def test_only_what_a_bed_cannot_do_is_left_out() -> None:
    left_out = [block.commands for block in blocks(PAGE.read_text()) if not block.is_run]
    for commands in left_out:
        assert re.search(r"^(make image|docker|kubectl (logs|port-forward))", commands, re.MULTILINE), commands
    assert len(left_out) == 2
