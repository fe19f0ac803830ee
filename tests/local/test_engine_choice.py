"""`tandem triton` on a repository whose records know two engines: what really runs, seen from outside."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton_http

from serving.local.devices import installed
from serving.local.environments import Environment
from serving.local.folders import cache_dir
from serving.measure.machine import processor_key
from serving.ports import free_ports
from tests.home import link
from tests.local.harness import ROOT, Program

pytestmark = pytest.mark.triton


@pytest.fixture
def repository(tmp_path: Path, environment: Environment, openvino: Environment) -> Path:
    """FP32 is known to be twice as fast on OpenVINO here, INT8 to be slower there."""
    link(openvino, cache_dir())
    for name, ratio in (("digits-fp32", 2.0), ("digits-int8", 0.5)):
        shutil.copytree(ROOT / "model_repo" / name, tmp_path / "repository" / name)
        file = tmp_path / "repository" / name / "tandem.json"
        record = json.loads(file.read_text())
        versions = {"cpu": environment.engine_version, "openvino": openvino.engine_version}
        record["speed"] = [
            speed(engine, versions[engine], ratio if engine == "openvino" else 1.0) for engine in versions
        ]
        file.write_text(json.dumps(record))
    return tmp_path / "repository"


def speed(engine: str, version: str, ratio: float) -> dict[str, Any]:
    interval = {"ratio": ratio, "ratio_low": ratio, "ratio_high": ratio}
    place = {"processor": processor_key(), "engine": engine, "engine_version": version, "baseline_engine": "cpu"}
    times = {"latency_s": 1e-4, "fp32_latency_s": 1e-4, "measured": "2026-11-21"}
    return {**place, **interval, **times, "batch_size": 1, "num_threads": 1}


@contextmanager
def triton(repository: Path, log: Path, cache: Path | None = None) -> Iterator[tuple[Program, dict[str, str]]]:
    """The program, and the engine by which each model says that it runs."""
    http, grpc, metrics = free_ports(3)
    command = [
        sys.executable,
        "-m",
        "serving",
        "triton",
        "--model-repository",
        str(repository),
        "--exit-timeout-s",
        "5",
    ]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    program = Program(command, log, {"TANDEM_CACHE": str(cache)} if cache else None)
    try:
        program.wait_for("ready:")
        client = triton_http.InferenceServerClient(f"127.0.0.1:{http}")
        configs = {name: client.get_model_config(name) for name in ("digits-fp32", "digits-int8")}
        client.close()
        yield program, {name: c["parameters"]["tandem_engine"]["string_value"] for name, c in configs.items()}
    finally:
        assert program.end() == 0


def test_each_variant_is_loaded_on_the_engine_that_is_faster_here(repository: Path, tmp_path: Path) -> None:
    with triton(repository, tmp_path / "log") as (program, engines):
        assert engines == {"digits-fp32": "openvino", "digits-int8": "cpu"}
        assert not program.says("timing"), "all of this place is known"
        for name, engine in engines.items():
            line = program.wait_for(f"{name}_0_0: model.onnx, ONNX Runtime ")
            assert ("OpenVINOExecutionProvider" in line) == (engine == "openvino")


@pytest.mark.thorough  # that it is chosen is in test_pool_plan.py
def test_without_openvino_all_run_on_the_plain_engine(
    repository: Path, environment: Environment, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"  # with Triton's environment in it and no other
    link(environment, cache)
    with triton(repository, tmp_path / "log", cache) as (_, engines):
        assert engines == {"digits-fp32": "cpu", "digits-int8": "cpu"}


def test_an_engine_of_tritons_environment_needs_no_onnx_runtime_here(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    assert installed()["cpu"].python.parents[1].samefile(environment.folder)
