"""Models of two builds of ONNX Runtime behind one real Triton: OpenVINO's answers beside those of the plain provider."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.local.environments import Environment
from serving.local.triton_control import Control, LoadFailed
from serving.repository import Repository
from tests.local import models
from tests.local.harness import ROOT, Served, served

pytestmark = pytest.mark.triton

COMMITTED = ROOT / "model_repo"
IMAGES = ROOT / "loadtest" / "payloads" / "digits.npz"
FLAGS = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").is_file() else []
HAS_BF16 = "amx_bf16" in FLAGS or "avx512_bf16" in FLAGS


Config = dict[str, Any]


def digits(folder: Path, variant: str, engine: str) -> Config:
    """The committed file under a name that tells the engine, with the configuration that the pool would give it."""
    found = Repository(COMMITTED).variant(f"digits-{'fp32' if variant == 'bf16' else variant}")
    config: Config = json.loads(found.config("cpu", engine=engine, num_threads=2).to_json())
    config["name"] = f"{variant}-on-{engine}"
    config["output"][0].pop("label_filename", None)
    if variant == "bf16":
        block = {"name": "openvino", "parameters": {"precision": "BF16"}}
        config["optimization"] = {"execution_accelerators": {"cpu_execution_accelerator": [block]}}
    (folder / config["name"] / "1").mkdir(parents=True)
    shutil.copy(found.model_path, folder / config["name"] / "1" / "model.onnx")
    shutil.copytree(found.directory / "warmup", folder / config["name"] / "warmup")
    return config


def text(folder: Path) -> Config:
    """A model of text, of which OpenVINO computes nothing."""
    row: list[int | str] = ["n", 1]
    nodes = [models.node("Identity", ["x"], ["y"])]
    config = models.write(folder, "text", nodes, [("x", "bytes", row)], [("y", "bytes", row)])
    block = [{"name": "openvino"}]
    return {**config, "optimization": {"execution_accelerators": {"cpu_execution_accelerator": block}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("both")


@pytest.fixture(scope="module")
def configs(folder: Path) -> dict[str, Config]:
    made = [digits(folder, variant, engine) for variant in ("fp32", "int8") for engine in ("cpu", "openvino")]
    return {config["name"]: config for config in [*made, digits(folder, "bf16", "openvino"), text(folder)]}


@pytest.fixture(scope="module")
def both(environment: Environment, openvino: Environment, folder: Path, configs: dict[str, Config]) -> Iterator[Served]:
    good = {name: config for name, config in configs.items() if name not in ("text", "bf16-on-openvino")}
    with served(folder, good, openvino=openvino.site) as running:
        yield running


def answers(running: Served, name: str) -> np.ndarray[Any, Any]:
    images = np.load(IMAGES)["image"][:32].astype(np.float32)
    return running.infer(name, {"image": images})["probabilities"]


async def load(running: Served, config: Config) -> None:
    control = Control(running.grpc_url)
    try:
        await control.load(config["name"], json.dumps(config))
    finally:
        await control.close()


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_openvino_answers_as_the_plain_provider_does(both: Served, variant: str) -> None:
    plain, other = answers(both, f"{variant}-on-cpu"), answers(both, f"{variant}-on-openvino")
    assert (plain.argmax(1) == other.argmax(1)).mean() > 0.95
    # INT8 kernels may round an activation the other way, and a probability then moves by a few hundredths
    np.testing.assert_allclose(other, plain, atol={"fp32": 1e-4, "int8": 0.1}[variant])


def test_each_instance_says_which_build_of_onnx_runtime_it_runs(
    both: Served, environment: Environment, openvino: Environment
) -> None:
    for name, version in (("fp32-on-cpu", environment.engine_version), ("fp32-on-openvino", openvino.engine_version)):
        line = next(line for line in both.program.lines() if f"{name}_0" in line and "ONNX Runtime" in line)
        assert f"ONNX Runtime {version} with " in line
        assert ("OpenVINOExecutionProvider" in line) == name.endswith("openvino")


def test_bf16_is_computed_where_the_processor_has_it_and_refused_elsewhere(
    both: Served, configs: dict[str, Config]
) -> None:
    config = configs["bf16-on-openvino"]
    if not HAS_BF16:
        with pytest.raises(LoadFailed, match=r"processor.*amx_bf16.*avx512_bf16"):
            asyncio.run(load(both, config))
        return
    asyncio.run(load(both, config))
    exact, short = answers(both, "fp32-on-cpu"), answers(both, "bf16-on-openvino")
    assert (exact != short).any(), "not one bit differs: it was computed in FP32"
    np.testing.assert_allclose(short, exact, atol=0.1)


def test_a_model_of_which_openvino_computes_nothing_is_refused(both: Served, configs: dict[str, Config]) -> None:
    with pytest.raises(LoadFailed, match=r"OpenVINO.*computes"):
        asyncio.run(load(both, configs["text"]))


@pytest.mark.thorough
def test_an_environment_of_openvino_that_has_gone_is_a_refusal_of_its_models_only(
    environment: Environment, folder: Path, configs: dict[str, Config], tmp_path: Path
) -> None:
    pair = {name: configs[name] for name in ("fp32-on-cpu", "fp32-on-openvino")}
    with served(folder, pair, openvino=tmp_path / "gone") as running:
        assert running.http.is_model_ready("fp32-on-cpu")
        assert not running.http.is_model_ready("fp32-on-openvino")
        assert running.program.says("fp32-on-openvino: ")
