"""What the backend refuses to load, and what it says: an option that cannot be honoured is never passed over."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.local.assemble import BACKEND
from serving.local.control import Control, LoadFailed, TritonLost, plain_reason
from serving.local.environments import Environment
from tests.local import models
from tests.local.harness import Served

Change = Callable[[models.Config], None]


def parameter(key: str, value: str) -> Change:
    return lambda config: config["parameters"].update({key: {"string_value": value}})


def replaced(key: str, value: Any) -> Change:
    return lambda config: config.update({key: value})


def accelerator(group: str, **block: Any) -> Change:
    return replaced("optimization", {"execution_accelerators": {group: [block]}})


def tensor(side: str, **change: Any) -> Change:
    return lambda config: config[side][0].update(change)


REFUSED: dict[str, tuple[Change, str]] = {
    "a GPU instance where there is no GPU": (
        replaced("instance_group", [{"count": 1, "kind": "KIND_GPU"}]),
        "no GPUs are available",
    ),
    "threads in words": (
        parameter("intra_op_thread_count", "two"),
        "'intra_op_thread_count' is 'two'; it must be a whole number",
    ),
    "threads below none": (parameter("inter_op_thread_count", "-1"), "'inter_op_thread_count' is '-1'"),
    "an execution mode that there is not": (
        parameter("execution_mode", "2"),
        "'execution_mode' is '2'; it must be one of 0, 1",
    ),
    "a switch that is neither on nor off": (
        parameter("enable_mem_arena", "yes"),
        "'enable_mem_arena' is 'yes'; it must be 0 or 1",
    ),
    "a graph level that there is not": (replaced("optimization", {"graph": {"level": 7}}), "graph.level is 7"),
    "an accelerator that nobody knows": (
        accelerator("cpu_execution_accelerator", name="warp"),
        "'warp' is not known here",
    ),
    "OpenVINO in an ONNX Runtime without it": (
        accelerator("cpu_execution_accelerator", name="openvino"),
        "OpenVINOExecutionProvider is asked for, but this ONNX Runtime",
    ),
    "an OpenVINO precision that there is not": (
        accelerator("cpu_execution_accelerator", name="openvino", parameters={"precision": "INT4"}),
        "precision 'INT4' is none of FP32, BF16, FP16",
    ),
    "OpenVINO settings that are not JSON": (
        accelerator("cpu_execution_accelerator", name="openvino", parameters={"load_config": "file.json"}),
        "load_config is not JSON text",
    ),
    "an input that the model lacks": (tensor("input", name="w"), "the model has no input 'w'; it has x"),
    "an output that the model lacks": (tensor("output", name="w"), "the model has no output 'w'; it has y"),
    "an input of another type": (tensor("input", data_type="TYPE_FP64"), "'x' is TYPE_FP32 in the model but TYPE_FP64"),
    "an input of another width": (tensor("input", dims=[5]), r"'x' has shape \[-1, 4\] in the model but \[-1, 5\]"),
    "an output of another rank": (
        tensor("output", dims=[4, 1]),
        r"'y' has shape \[-1, 4\] in the model but \[-1, 4, 1\]",
    ),
    "a file that is not there": (replaced("default_model_filename", "other.onnx"), "other.onnx"),
}


async def load(url: str, name: str, config: models.Config) -> None:
    async with Control(url) as control:
        await control.load(name, json.dumps(config))


@pytest.mark.triton
@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses_and_gives_the_reason_in_one_line(small_models: Served, what: str) -> None:
    change, reason = REFUSED[what]
    row: list[int | str] = ["n", 4]
    config = models.config("victim", [("x", "fp32", row)], [("y", "fp32", row)])
    change(config)
    with pytest.raises(LoadFailed, match=reason) as failure:
        asyncio.run(load(small_models.grpc_url, "victim", config))
    assert "\n" not in str(failure.value)
    assert "Traceback" not in str(failure.value)


@pytest.mark.triton
def test_a_model_that_lacks_a_configured_input_of_several_says_which(small_models: Served) -> None:
    pair: list[models.Value] = [("x", "fp32", [-1, 4])]
    config = models.config("types", pair, [("fp32_out", "fp32", ["n", "m"])])
    with pytest.raises(LoadFailed, match="the model has no input 'x'"):
        asyncio.run(load(small_models.grpc_url, "types", config))
    assert small_models.http.is_model_ready("types"), "the version that was served before must go on"


@pytest.mark.triton
def test_a_parameter_that_looks_misspelt_is_named_in_the_log(small_models: Served) -> None:
    row: list[int | str] = ["n", 4]
    config = models.config(
        "victim", [("x", "fp32", row)], [("y", "fp32", row)], parameters={"intra_op_threads_count": "2"}
    )
    asyncio.run(load(small_models.grpc_url, "victim", config))
    small_models.program.wait_for("'intra_op_threads_count' is not read; did you mean 'intra_op_thread_count'?")


def test_a_triton_that_is_not_there_is_told_from_a_failed_load() -> None:
    with pytest.raises(TritonLost, match=r"127\.0\.0\.1:1 does not answer"):
        asyncio.run(load("127.0.0.1:1", "any", {}))


def test_a_stubs_traceback_is_cut_from_the_reason() -> None:
    message = (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: TritonModelException: no such thing\n\n"
        "At:\n  /somewhere/model.py(262): check\n;\n"
    )
    assert plain_reason(message) == "no such thing"


def test_numpy_2_is_refused_before_anything_is_read_with_it() -> None:
    """This project's own Python has NumPy 2; Triton's must not."""
    done = subprocess.run([sys.executable, str(BACKEND)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ImportError: Triton's stub needs NumPy 1, but its environment has 2." in done.stderr


# -- options for devices that are not here: what the provider would be given --------------------------------------------

# Runs in Triton's environment, where the backend can be imported; Triton's own module exists in a stub only.
ASK = """
import json, sys, types
stub = types.ModuleType("triton_python_backend_utils")
stub.TritonModelException = RuntimeError
sys.modules["triton_python_backend_utils"] = stub
sys.path.insert(0, sys.argv[1])
import model
config, kind, available = json.loads(sys.argv[2])
model.ort.get_available_providers = lambda: available
try:
    print(json.dumps(model.providers(config, kind, "0")))
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
CUDA, TENSORRT, OPENVINO = "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
ALL = [TENSORRT, CUDA, OPENVINO, "CPUExecutionProvider"]


def providers(
    environment: Environment,
    kind: str,
    *,
    available: list[str] = ALL,
    parameters: dict[str, str] | None = None,
    **blocks: Any,
) -> Any:
    config = {
        "parameters": {key: {"string_value": value} for key, value in (parameters or {}).items()},
        "optimization": {"execution_accelerators": blocks},
    }
    command = [str(environment.python), "-c", ASK, str(Path(BACKEND).parent), json.dumps([config, kind, available])]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_four_top_level_cuda_keys_win_over_the_block_as_words(environment: Environment) -> None:
    given = providers(
        environment,
        "GPU",
        parameters={
            "cudnn_conv_algo_search": "1",
            "gpu_mem_limit": "1024",
            "arena_extend_strategy": "1",
            "do_copy_in_default_stream": "0",
        },
        gpu_execution_accelerator=[
            {"name": "cuda", "parameters": {"cudnn_conv_algo_search": "DEFAULT", "prefer_nhwc": "1"}}
        ],
    )
    options = {
        "cudnn_conv_algo_search": "HEURISTIC",
        "prefer_nhwc": "1",
        "gpu_mem_limit": "1024",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "0",
        "device_id": "0",
    }
    assert given == [[CUDA, options], ["CPUExecutionProvider", {}]]


def test_a_cuda_word_that_there_is_not_is_refused(environment: Environment) -> None:
    answer = providers(environment, "GPU", parameters={"cudnn_conv_algo_search": "3"})
    assert answer == "parameter 'cudnn_conv_algo_search' is '3'; it must be one of 0, 1, 2"


def test_tensorrt_comes_first_with_its_own_names_and_precision(environment: Environment) -> None:
    block = {"precision_mode": "INT8", "max_workspace_size_bytes": "7", "trt_engine_cache_enable": "1"}
    given = providers(environment, "GPU", gpu_execution_accelerator=[{"name": "tensorrt", "parameters": block}])
    expected = {"trt_max_workspace_size": "7", "trt_engine_cache_enable": "1", "trt_int8_enable": "1", "device_id": "0"}
    assert given[0] == [TENSORRT, expected]
    assert given[1][0] == CUDA


@pytest.mark.parametrize(
    ("kind", "available", "blocks", "reason"),
    [
        ("GPU", ["CPUExecutionProvider"], {}, f"{CUDA} is asked for"),
        (
            "GPU",
            [CUDA, "CPUExecutionProvider"],
            {"gpu_execution_accelerator": [{"name": "tensorrt"}]},
            f"{TENSORRT} is asked for",
        ),
        (
            "GPU",
            ALL,
            {"gpu_execution_accelerator": [{"name": "openvino"}]},
            "'openvino' is not known here; known: tensorrt, cuda",
        ),
        (
            "GPU",
            ALL,
            {"gpu_execution_accelerator": [{"name": "tensorrt", "parameters": {"precision_mode": "FP8"}}]},
            "precision_mode 'FP8'",
        ),
    ],
)
def test_a_provider_that_cannot_be_had_is_refused(
    environment: Environment, kind: str, available: list[str], blocks: dict[str, Any], reason: str
) -> None:
    assert reason in providers(environment, kind, available=available, **blocks)


def test_openvino_gets_its_precision_threads_and_own_settings_as_json_text(environment: Environment) -> None:
    block = {"precision": "BF16", "load_config": '{"CPU": {"NUM_STREAMS": "1"}}', "cache_dir": "/x"}
    given = providers(
        environment,
        "CPU",
        parameters={"intra_op_thread_count": "3"},
        cpu_execution_accelerator=[{"name": "openvino", "parameters": block}],
    )
    name, options = given[0]
    assert name == OPENVINO
    assert options["device_type"] == "CPU"
    assert options["cache_dir"] == "/x"
    expected = {"NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": "3"}
    assert json.loads(options["load_config"]) == {"CPU": expected}


def test_blocks_of_the_other_device_kind_are_left_alone(environment: Environment) -> None:
    given = providers(environment, "CPU", gpu_execution_accelerator=[{"name": "tensorrt"}])
    assert given == [["CPUExecutionProvider", {}]]
