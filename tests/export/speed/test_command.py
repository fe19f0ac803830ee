"""`python -m serving.export.speed` as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.export.speed import EnginePython
from serving.export.speed.__main__ import main

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """In this process, which has imported it."""

    def done(*arguments: object) -> Done:
        code = main([str(it) for it in arguments])
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return done


def test_it_prints_one_json_object_per_batch_size(fp32_file: Path) -> None:
    words = [str(fp32_file), str(fp32_file), "--batch-sizes", "1,3", "--seconds", "0.05", "--json"]
    command = [sys.executable, "-m", "serving.export.speed", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    speeds = json.loads(done.stdout)
    assert [s["batch_size"] for s in speeds] == [1, 3]
    assert all(0 < s["ratio_low"] <= s["ratio"] <= s["ratio_high"] for s in speeds)


def test_it_prints_lines_without_json(run: Run, fp32_file: Path) -> None:
    done = run(fp32_file, fp32_file, "--batch-sizes", "1", "--seconds", "0.05", "--allow-spinning", "--buffers")
    assert done.stdout.startswith("batch 1: ratio ")


@pytest.mark.thorough
def test_the_candidate_may_run_on_another_engine(run: Run, both: dict[str, EnginePython], fp32_file: Path) -> None:
    there = ("--engine", "openvino", "--python", both["openvino"].python)
    done = run(fp32_file, fp32_file, "--batch-sizes", "1", "--seconds", "0.05", "--json", *there)
    assert {s["engine"] for s in json.loads(done.stdout)} == {"openvino"}


def test_a_file_that_is_not_there_is_exit_code_2(run: Run, fp32_file: Path) -> None:
    done = run(fp32_file, "nowhere.onnx")
    assert done.returncode == 2
    assert "nowhere.onnx" in done.stderr


def test_an_option_that_no_card_has_is_exit_code_2_and_one_of_a_card_does_nothing_here(
    run: Run, fp32_file: Path
) -> None:
    done = run(fp32_file, fp32_file, "--cuda-option", "prefer_nhcw=1")
    assert done.returncode == 2
    assert "'prefer_nhwc'" in done.stderr
    done = run(fp32_file, fp32_file, "--cuda-option", "prefer_nhwc=1", "--batch-sizes", "1")
    assert done.returncode == 1
    assert " cpu" in done.stderr


def test_an_engine_that_is_not_there_is_an_error_and_not_a_slow_cpu(run: Run, fp32_file: Path) -> None:
    done = run(fp32_file, fp32_file, "--engine", "openvino", "--batch-sizes", "1", "--seconds", "0.05")
    assert done.returncode == 1
    assert "candidate on openvino" in done.stderr
    assert "ONNX Runtime" in done.stderr
    assert "has no OpenVINOExecutionProvider" in done.stderr
