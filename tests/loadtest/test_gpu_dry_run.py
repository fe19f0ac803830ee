"""What runs on a machine with a card, tried without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

ROOT = Path(__file__).parents[2]
GPU = ROOT / "loadtest" / "gpu"


@pytest.mark.thorough
@pytest.mark.triton
@pytest.mark.campaigns
@pytest.mark.timeout(300)  # a net of 102 MB is made, served and timed, on as few as two cores
def test_a_dry_run_does_all_that_needs_no_card_and_says_what_it_left_out(tmp_path: Path) -> None:
    environment = {**os.environ, "PROJECT_PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    environment.pop("TANDEM_WHEELS", None)
    out = tmp_path / "results"
    command = [str(GPU / "run.sh"), "--dry-run", "--output", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = (out / "summary.md").read_text()
    assert "not a measurement" in summary
    made, left_out = summary.split("Not done:")
    for part in (
        "untrained resnet50 made",
        "cpu pool behind the gateway",
        "campaign digits",
        "campaign resnet50",
        "untrained nets in process on cpu",
        "claims suite",
    ):
        assert part in made
    for part in (
        "environment from carried wheels",
        "gpu pool",
        "gpu arms of resnet50",
        "in process on cuda",
        "claims about a GPU",
    ):
        assert part in left_out
    told = json.loads((out / "resnet50" / "report.json").read_text())
    assert "untrained" in told["caveats"][0]
    assert {arm["name"]: arm["not_run"] for arm in told["arms"]}["fp16-gpu"] == "no GPU on this machine"
    table = json.loads((out / "nets.json").read_text())
    told_rows = {(row["model"], row["variant"]) for row in table["rows"] if row["engine"] == "cpu"}
    assert told_rows == {("resnet50", "fp32"), ("resnet50", "int8")}
    assert "| resnet50 | int8 | cpu" in summary
    claims = {one["name"]: one for one in json.loads((out / "claims" / "claims.json").read_text())["results"]}
    assert claims["served-gpu-path"]["answer"] == "not measured here"
    assert claims["served-cpu-path"]["answer"] not in ("not measured here", "not run")
    assert f"(aim: 80 %), served-cpu-path: {claims['served-cpu-path']['numbers']}" in summary
    assert "### The claims" in summary
    assert str(tmp_path) not in summary
    assert max(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 200_000
    assert [path.name for path in tmp_path.iterdir()] == ["results"]  # its working folder is gone


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--wet"], 2, "--dry-run"),
        (["--output"], 1, "--output needs a folder"),
        ([], 2, "no NVIDIA card with a driver here"),
    ],
)
def test_wrong_use_is_refused_in_a_line(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "TMPDIR": str(tmp_path),
    }  # no nvidia-smi there, also on a machine with a card
    done = subprocess.run(
        [str(GPU / "run.sh"), *arguments], env=environment, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == code
    assert words in done.stderr


def test_the_wheels_cover_the_project_and_both_of_tritons_environments() -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [str(GPU / "wheels.sh"), "--requirements"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=True)
    names = [line.split(">")[0].split("[")[0] for line in done.stdout.splitlines()]
    assert {"click", "fastapi", "locust", "psutil", "onnx", "onnxruntime", "sympy"} <= set(names)
    not_needed = {"torch", "transformers", "scikit-learn", "skl2onnx", "onnxmltools"}
    assert not {*not_needed, "tandem-serving", "kubernetes"} & set(names)
    assert len(names) == len(set(done.stdout.splitlines()))
