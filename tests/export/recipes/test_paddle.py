"""Programs of PaddlePaddle 2 and 3 in the environments that `--yes` makes, through the gates beside PaddlePaddle and a real Triton."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from serving.repository import Repository

from ..conftest import ROOT

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(1800, func_only=True)]

MAKE = """
import paddle
def net():
    paddle.seed(0)
    inner = [paddle.nn.Conv2D(3, 4, 3), paddle.nn.ReLU(), paddle.nn.AdaptiveAvgPool2D(2), paddle.nn.Flatten()]
    made = paddle.nn.Sequential(*inner, paddle.nn.Linear(16, 5), paddle.nn.Softmax())
    made.eval()
    return made
spec = [paddle.static.InputSpec([None, 3, 8, 8], "float32", "image")]
paddle.jit.save(net(), "new/net", spec)
with paddle.pir_utils.OldIrGuard():
    paddle.disable_static()
    paddle.jit.save(net(), "old/net", spec)
"""


def export(folder: Path, source: str, *words: str) -> subprocess.CompletedProcess[str]:
    quick = ("--precision", "fp32", "--engine", "cpu", "--seconds", "0.01", "--yes", "--data", "data.npz", *words)
    return subprocess.run(
        [ROOT / ".venv" / "bin" / "tandem", "export", source, *quick, "--model-repository", folder / "models"],
        env={**os.environ, "TANDEM_CACHE": str(folder / "cache")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_program_of_paddlepaddle_is_one_command(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", image=np.random.default_rng(0).random((32, 3, 8, 8), np.float32))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "net.pdmodel").write_bytes(b"no program")
    (tmp_path / "broken" / "net.pdiparams").touch()
    done = export(tmp_path, "paddle:broken")
    assert (done.returncode, "net.pdmodel" in done.stderr.splitlines()[-1]) == (2, True), done.stderr
    [marker] = (tmp_path / "cache" / "environments").glob("paddle2-*/complete.json")
    subprocess.run([marker.parent / "bin" / "python3", "-c", MAKE], cwd=tmp_path, check=True, timeout=600)
    for name, program in (("old", "net.pdmodel"), ("new", "net.json")):
        assert (tmp_path / name / program).is_file()
        done = export(tmp_path, f"paddle:{name}", "--model", name, "--task", "classification")
        assert done.returncode == 0, done.stderr
        record = Repository(tmp_path / "models").variant(f"{name}-fp32").record
        assert record.gate.reference == "paddlepaddle"
        assert record.load_check.startswith("triton 2.")
        assert record.max_batch_size > 1
        assert record.source.startswith(f"paddle: {program}")
