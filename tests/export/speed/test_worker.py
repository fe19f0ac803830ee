"""The worker as a process: what it answers, what it refuses, and that it needs nothing of this project."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from serving.export.speed import EnginePython
from serving.export.speed.process import SCRIPT, WorkerLost, WorkerProcess, WorkerRefusal
from serving.export.speed.worker import (
    BF16_FLAGS,
    Refusal,
    engine_options,
    processor_flags,
    reason_of,
    tensorrt_options,
)
from serving.local.environments import ENGINES
from serving.measure.machine import has_bf16
from tests.home import in_users_cache
from tests.local import shared_library

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`
LIMIT_S = 60.0
SEVENS: dict[str, list[int | str]] = {"x": ["length", 2], "mask": [3, "length"], "y": [3, 2]}


@pytest.fixture
def worker(here: EnginePython) -> Iterator[WorkerProcess]:
    started = WorkerProcess(here)
    yield started
    started.end()


def opening(file: Path, **change: Any) -> dict[str, Any]:
    how = {"engine": "cpu", "precision": "fp32", "num_threads": 1, "allow_spinning": False, "inputs": None}
    return {"name": "it", "file": str(file), **how, **change}


def identity(folder: Path, kind: int, shape: list[int | str]) -> Path:
    """A model that gives back what it gets."""
    value = [helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), folder / "it.onnx")
    return folder / "it.onnx"


def test_it_opens_prepares_runs_and_closes(worker: WorkerProcess, here: EnginePython, fp32_file: Path) -> None:
    assert worker.ask(LIMIT_S, "hello")["onnxruntime"] == here.version
    assert worker.ask(LIMIT_S, "open", **opening(fp32_file)) == {}
    assert 0 < worker.ask(LIMIT_S, "prepare", name="it", batch_size=3)["seconds"] < LIMIT_S
    assert 0 < worker.ask(LIMIT_S, "turn", name="it", num_runs=10)["seconds"] < LIMIT_S
    assert worker.ask(LIMIT_S, "close", name="it") == {}
    with pytest.raises(WorkerRefusal, match="it"):
        worker.ask(LIMIT_S, "turn", name="it", num_runs=1)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("cuda", r"has no CUDAExecutionProvider, only .*CPUExecutionProvider"),
        ("tensorrt", "has no TensorrtExecutionProvider"),
        ("openvino", "has no OpenVINOExecutionProvider"),
    ],
)
def test_an_engine_that_this_onnx_runtime_lacks_is_refused_and_never_a_slow_cpu(
    worker: WorkerProcess, fp32_file: Path, engine: str, reason: str
) -> None:
    with pytest.raises(WorkerRefusal, match=reason):
        worker.ask(LIMIT_S, "open", **opening(fp32_file, engine=engine))


@pytest.mark.parametrize("has_batch_first", [1, 8])
def test_it_times_batches_in_the_buffers_of_the_backend(
    worker: WorkerProcess, fp32_file: Path, has_batch_first: int
) -> None:
    worker.ask(LIMIT_S, "open", **opening(fp32_file, has_buffers=True))
    for batch_size in (has_batch_first, 3):
        assert worker.ask(LIMIT_S, "prepare", name="it", batch_size=batch_size)["seconds"] > 0
        assert worker.ask(LIMIT_S, "turn", name="it", num_runs=5)["seconds"] > 0


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"cuda": {"prefer_nhwc": "1"}}, "do nothing on cpu"),
        ({"engine": "cuda", "cuda": {"enable_cuda_graph": "1"}}, "enable_cuda_graph needs buffers"),
    ],
)
def test_options_of_a_card_that_would_do_nothing_are_refused(
    worker: WorkerProcess, fp32_file: Path, how: dict[str, Any], reason: str
) -> None:
    with pytest.raises(WorkerRefusal, match=reason):
        worker.ask(LIMIT_S, "open", **opening(fp32_file, **how))


def test_a_file_that_is_no_model_is_refused_in_one_line_and_the_worker_goes_on(
    worker: WorkerProcess, fp32_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "it.onnx").write_bytes(b"no model")
    with pytest.raises(WorkerRefusal) as refused:
        worker.ask(LIMIT_S, "open", **opening(tmp_path / "it.onnx"))
    assert "\n" not in str(refused.value)
    assert worker.ask(LIMIT_S, "open", **opening(fp32_file)) == {}


OF_OPENVINO = "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /onnxruntime/basic_backend.cc:136 BasicBackend(…) "


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            f"{OF_OPENVINO}[OpenVINO-EP] Exception while Loading Network for graph g: Exception from core.cpp:114:\n"
            "Check '!shape.rank().is_dynamic()' failed at node.cpp:106:\n"
            "Unexpected: CPU plug-in doesn't support Parameter operation with dynamic rank. Operation name: variable1\n\n\n",
            "OpenVINO cannot run it: CPU plug-in doesn't support Parameter operation with dynamic rank. Operation name: variable1",
        ),
        (f"{OF_OPENVINO}[OpenVINO-EP] No such device", "OpenVINO cannot run it: No such device"),
        ("the first line\nanother", "the first line"),
        ("", "ValueError"),
    ],
)
def test_a_refusal_names_its_cause_and_no_place_in_cpp(text: str, cause: str) -> None:
    assert reason_of(ValueError(text)) == cause


def test_an_input_for_which_nothing_can_be_made_up_is_refused(worker: WorkerProcess, tmp_path: Path) -> None:
    worker.ask(LIMIT_S, "open", **opening(identity(tmp_path, TensorProto.STRING, ["n"])))
    with pytest.raises(WorkerRefusal, match=r"'x'.*made-up.*numbers"):
        worker.ask(LIMIT_S, "prepare", name="it", batch_size=2)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (TensorProto.FLOAT, ["n", 3]),
        (TensorProto.FLOAT16, ["n", "length"]),
        (TensorProto.INT64, ["n", "length"]),
        (TensorProto.BOOL, ["n", 2]),
        (TensorProto.UINT8, [4, 2]),
    ],
)
def test_numbers_are_made_up_for_every_other_input(
    worker: WorkerProcess, tmp_path: Path, kind: int, shape: list[int | str]
) -> None:
    worker.ask(LIMIT_S, "open", **opening(identity(tmp_path, kind, shape)))
    assert worker.ask(LIMIT_S, "prepare", name="it", batch_size=2)["seconds"] > 0


def test_given_rows_are_repeated_to_fill_the_batch(worker: WorkerProcess, fp32_file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", image=np.zeros((3, 1, 8, 8), np.float32), labels=np.zeros(3))
    worker.ask(LIMIT_S, "open", **opening(fp32_file, inputs=str(tmp_path / "rows.npz")))
    assert worker.ask(LIMIT_S, "prepare", name="it", batch_size=32)["seconds"] > 0


def test_a_row_of_a_model_without_batches_is_a_whole_input(worker: WorkerProcess, tmp_path: Path) -> None:
    """Its first dimension is no batch, and is timed as long as the data has it."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SEVENS.items()]
    nodes = [helper.make_node("MatMul", ["mask", "x"], ["y"])]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:])
    file = tmp_path / "whole.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), file)
    np.savez(tmp_path / "rows.npz", x=np.ones((4, 7, 2), np.float32), mask=np.ones((4, 3, 7), np.float32))
    worker.ask(LIMIT_S, "open", **opening(file, inputs=str(tmp_path / "rows.npz")))
    assert worker.ask(LIMIT_S, "prepare", name="it", batch_size=1)["seconds"] > 0


def test_given_rows_of_another_shape_are_refused_by_the_model(
    worker: WorkerProcess, fp32_file: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", image=np.zeros((3, 1, 9, 9), np.float32))
    worker.ask(LIMIT_S, "open", **opening(fp32_file, inputs=str(tmp_path / "rows.npz")))
    with pytest.raises(WorkerRefusal, match="image"):
        worker.ask(LIMIT_S, "prepare", name="it", batch_size=2)


def test_ctrl_c_is_for_whoever_started_it(here: EnginePython) -> None:
    process = subprocess.Popen([str(here.python), "-I", str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"do": "hello"}\n')
    process.stdin.flush()
    assert b"onnxruntime" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(b'{"do": "hello"}\n', timeout=LIMIT_S)  # and the end of its input is its end
    assert json.loads(out)["numpy"]
    assert process.returncode == 0


# -- the process around it --------------------------------------------------------------------------------------------


def script(folder: Path, text: str) -> EnginePython:
    """An engine whose python is a shell script."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return EnginePython("cpu", file, "0")


def test_a_python_that_is_not_there_is_told() -> None:
    with pytest.raises(WorkerLost, match=r"/nowhere/python.*start"):
        WorkerProcess(EnginePython("cpu", Path("/nowhere/python"), "0"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo some words >&2; echo the last words >&2; exit 3", "ended: the last words"),
        ("exit 3", "ended: exit code 3"),
        ("kill -SEGV $$", "crashed (SIGSEGV)"),
        ("kill -KILL $$", "was killed, perhaps for want of memory"),
    ],
)
def test_how_a_worker_ended_is_told(tmp_path: Path, text: str, words: str) -> None:
    worker = WorkerProcess(script(tmp_path, text))
    with pytest.raises(WorkerLost) as lost:
        worker.ask(LIMIT_S, "hello")
    worker.end()
    assert str(lost.value) == words


def test_a_worker_that_does_not_answer_is_killed_when_its_time_is_up(tmp_path: Path) -> None:
    worker = WorkerProcess(script(tmp_path, "exec sleep 600"))
    began_s = time.monotonic()
    with pytest.raises(WorkerLost, match="took too long"):
        worker.ask(0.2, "hello")
    worker.end()
    assert time.monotonic() - began_s < LIMIT_S / 2


@pytest.mark.parametrize(
    ("linked", "precision", "told"),
    [
        (["libnvinfer.so.10"], "fp16", {"trt_fp16_enable": "1"}),
        (["libnvinfer.so.10"], "bf16", {"trt_bf16_enable": "1"}),
        (["libnvinfer.so.10"], "fp32", {}),
        (["libnvinfer.so.11"], "fp16", {}),  # the file says it
        (["libnvinfer.so.11"], "int8", {}),
        (["libnvinfer.so.11"], "bf16", None),  # FP32's file
        (["libm.so.6"], "int8", {"trt_int8_enable": "1"}),
    ],
)
def test_tensorrt_is_told_a_precision_as_its_version_takes_it_or_not_timed(
    tmp_path: Path, linked: list[str], precision: str, told: dict[str, str] | None
) -> None:
    library = shared_library.write(tmp_path / "provider.so", linked)
    if told is None:
        with pytest.raises(Refusal, match=r"TensorRT 11 .*precision_mode BF16"):
            tensorrt_options(precision, library)
    else:
        assert tensorrt_options(precision, library) == told


# -- what it may know -------------------------------------------------------------------------------------------------


def test_it_imports_only_the_standard_library_numpy_and_onnx_runtime() -> None:
    imported = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"numpy", "onnxruntime"}


def test_openvino_is_told_the_same_as_by_the_backend_that_serves() -> None:
    """Else a contest would time something else than what is served."""
    ask = (
        "import json, sys, types\n"
        "stub = types.ModuleType('triton_python_backend_utils'); stub.TritonModelException = RuntimeError\n"
        "sys.modules[stub.__name__] = stub; sys.path.insert(0, sys.argv[1])\n"
        "import ort_session as model\n"
        "print(json.dumps(model.openvino_options({}, model.Parameters(json.loads(sys.argv[2])))))\n"
    )
    backend = Path(SCRIPT).parents[2] / "local" / "backends" / "onnxruntime"
    config = json.dumps({"parameters": {"intra_op_thread_count": {"string_value": "2"}}})
    python = str(in_users_cache(ENGINES["cpu"]).python)
    said = subprocess.run([python, "-c", ask, str(backend), config], capture_output=True, text=True, check=True).stdout
    served, timed = json.loads(said), engine_options("OpenVINOExecutionProvider", "fp32", 2)
    for told in (served, timed):
        told["load_config"] = json.loads(told["load_config"])
    assert served == timed


@pytest.mark.parametrize("flags", ["avx512f amx_bf16", "avx512_bf16", "avx512_fp16 bf16", "avx2", ""])
def test_it_asks_the_processor_for_bf16_as_the_rest_of_tandem_does(flags: str, tmp_path: Path) -> None:
    """It may import nothing of this project, and so has a test of its own."""
    cpuinfo = f"processor\t: 0\nmodel name\t: amx_bf16\nflags\t\t: {flags}\n"
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert bool(BF16_FLAGS & processor_flags(tmp_path / "cpuinfo")) == has_bf16(cpuinfo)
