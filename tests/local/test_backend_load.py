"""What the backend refuses to load, and what it says: an option that cannot be honoured is never passed over."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from serving.local.launch import BACKEND
from serving.local.triton_control import Control, LoadFailed, TritonLost
from serving.protocol.triton_reason import plain_reason
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
    "OpenVINO where it is not installed": (
        accelerator("cpu_execution_accelerator", name="openvino"),
        "the model asks for openvino, which is not installed here: tandem environment openvino",
    ),
    "batch buckets in words": (
        parameter("batch_buckets", "all"),
        "batch_buckets is 'all'; it must be whole numbers from 1 to 16",
    ),
    "a batch bucket that no batch fills": (parameter("batch_buckets", "1,17"), "whole numbers from 1 to 16"),
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
    control = Control(url)
    try:
        await control.load(name, json.dumps(config))
    finally:
        await control.close()


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
    with pytest.raises(LoadFailed, match=r"model.*'x'"):
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
    assert "ImportError" in done.stderr
    assert "NumPy 1" in done.stderr
    assert "environment" in done.stderr
