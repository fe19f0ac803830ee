"""The stopwatch: its interval, its script, and that it needs nothing of this project."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from serving.export import speed
from serving.repository import MODEL_FILE

from . import spoil
from .conftest import COMMITTED

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`

SCRIPT = Path(speed.__file__)
FP32 = COMMITTED / "digits-fp32" / MODEL_FILE


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(SCRIPT), *map(str, arguments)]  # -I: the project is out of reach
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_equal_ratios_have_an_interval_of_no_width() -> None:
    assert speed.ratio_interval([np.full(30, 1.5)] * 5) == (1.5, 1.5, 1.5)


def test_the_interval_holds_the_median_and_is_the_same_every_time() -> None:
    rounds = [np.random.default_rng(i).normal(1.2, 0.1, 40) for i in range(5)]
    ratio, low, high = speed.ratio_interval(rounds)
    assert 1.1 < low < ratio < high < 1.3
    assert speed.ratio_interval(rounds) == (ratio, low, high)


def test_one_wild_turn_does_not_move_the_ratio() -> None:
    ratios = np.full(40, 1.2)
    ratios[7] = 900.0
    assert speed.ratio_interval([ratios] * 5) == (1.2, 1.2, 1.2)


def test_rounds_that_disagree_widen_the_interval_beyond_what_their_pairs_would() -> None:
    pairs = [np.random.default_rng(i).normal(0.0, 0.001, 100) for i in range(5)]
    shifts = (0.95, 0.98, 1.0, 1.02, 1.05)
    _, low, high = speed.ratio_interval([shift + noise for shift, noise in zip(shifts, pairs, strict=True)])
    assert low < 0.99 < 1.01 < high
    _, low, high = speed.ratio_interval([1.0 + noise for noise in pairs])
    assert high - low < 0.001


def test_the_script_prints_one_json_object_per_batch_size() -> None:
    done = run(FP32, FP32, "--batch-sizes", "1,3", "--seconds", "0.05", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    measurements = json.loads(done.stdout)
    assert [m["batch_size"] for m in measurements] == [1, 3]
    for m in measurements:
        assert m.keys() == {"batch_size", "ratio", "ratio_low", "ratio_high", "latency_s", "fp32_latency_s"}
        assert 0 < m["ratio_low"] <= m["ratio"] <= m["ratio_high"]
        assert m["latency_s"] > 0


def test_the_script_prints_lines_without_json() -> None:
    done = run(FP32, FP32, "--batch-sizes", "1", "--seconds", "0.05", "--allow-spinning")
    assert done.stdout.startswith("batch 1: ratio ")


def test_a_file_that_is_not_there_is_exit_code_2() -> None:
    done = run(FP32, "nowhere.onnx")
    assert (done.returncode, done.stderr) == (2, "there is no file nowhere.onnx\n")


def test_a_provider_that_is_not_there_is_an_error_and_not_a_slow_cpu() -> None:
    with pytest.raises(RuntimeError, match="CUDAExecutionProvider"):
        speed.compare(FP32, FP32, batch_sizes=(1,), seconds=0.01, provider="CUDAExecutionProvider")


def test_real_redundant_work_is_seen_as_slower(fp32: bytes) -> None:
    [slow] = speed.compare(fp32, spoil.slowed(fp32), batch_sizes=(1,), seconds=0.1)
    assert slow.ratio_high < 1
    [fast] = speed.compare(spoil.slowed(fp32), fp32, batch_sizes=(1,), seconds=0.1)
    assert fast.ratio_low > 1


def test_it_imports_only_the_standard_library_numpy_and_onnx_runtime() -> None:
    imported = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"numpy", "onnxruntime"}
