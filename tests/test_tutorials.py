"""The `sh` and `python` blocks of docs/tutorials/ run in their order, each page in a folder of its own; `text` and `html` blocks do not.

The embedder's block needs LangChain: tests/clients/test_langchain.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.readme import blocks
from serving.ports import free_ports
from tests.command import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.triton]

PAGES = ROOT / "docs" / "tutorials"
# An export of its own: half a minute; what `tandem run` does, tested in tests/local; two verdicts, tested in tests/loadtest/verdict.
THOROUGH = {"scikit-learn", "first-model", "gpu"}
PRINTED = {
    "first-model": ["(1, 10)", "tandem-request-id", "tandem-pool: cpu"],
    "images": ['"label":"7","index":7'],
    "gpu": ["1000/s: 1 × NVIDIA T4", "100000/s: "],
    "scikit-learn": ["in process: ", "served: "],
}
NEEDS_UP = {"images"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if name in THOROUGH else []) for name in PRINTED]
)
def test_what_a_tutorial_says_happens(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "model_repo", tmp_path / "model_repo")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    port, grpc_port = free_ports(2)
    state = {"TANDEM_STATE": str(tmp_path / "state"), "TANDEM_GRPC_PORT": str(grpc_port)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **state, "PATH": path, "PYTHONPATH": str(ROOT)}
    tandem = [sys.executable, "-m", "serving"]
    if name in NEEDS_UP:
        up = [*tandem, "up", "--detach", "--no-measure", "--port", str(port)]
        subprocess.run(up, cwd=tmp_path, env=environment, check=True, capture_output=True)
    printed = ""
    try:
        for block in blocks((PAGES / f"{name}.md").read_text()):
            command = {"sh": ["bash", "-euc"], "python": [sys.executable, "-c"]}.get(block.language)
            if command is None:
                continue
            text = block.text.replace("8080", str(port)).replace('export PATH="$PWD/.venv/bin:$PATH"', ":")
            done = subprocess.run(
                [*command, text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{block.first}\n{done.stdout}{done.stderr}"
            printed += done.stdout
    finally:
        subprocess.run([*tandem, "stop"], cwd=tmp_path, env=environment, check=False, capture_output=True)
    for said in PRINTED[name]:
        assert said.lower() in printed.lower()


def test_every_tutorial_is_run_somewhere() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*PRINTED, "embedder"}
