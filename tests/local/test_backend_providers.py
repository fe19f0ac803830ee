"""Options for devices that are not on every machine: what ONNX Runtime's providers would be given, or why the load is refused."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.local.environments import Environment
from serving.local.launch import BACKEND
from tests.local import shared_library

pytestmark = pytest.mark.triton  # needs its environment, though no server

# Runs in Triton's environment, where the backend can be imported; Triton's own module exists in a stub only. Answers a line for each line.
ASK = """
import json, sys, types
stub = types.ModuleType("triton_python_backend_utils")
stub.TritonModelException = RuntimeError
sys.modules["triton_python_backend_utils"] = stub
sys.path.insert(0, sys.argv[1])
import cuda_libraries, ort_session, onnxruntime, pathlib
ort_session.ort = onnxruntime
for line in sys.stdin:
    config, kind, available, cpuinfo, libraries, driver = json.loads(line)
    ort_session.ort.get_available_providers = lambda: available
    ort_session.CPUINFO = pathlib.Path(cpuinfo)
    ort_session.provider_library = lambda name: pathlib.Path(libraries[name]) if name in libraries else None
    try:
        if driver:
            cuda_libraries.DRIVER = driver
            if driver.isdecimal():  # a card of this compute capability
                card = types.SimpleNamespace(cudaDeviceGetAttribute=lambda where, _, device: setattr(where._obj, "value", int(driver)))
                ort_session.require_tf32("0", card)
            else:
                ort_session.open_session(sys.argv[2], config, kind, "0")
        answer = ort_session.providers(config, kind, "0")
    except RuntimeError as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""
CUDA, TENSORRT, OPENVINO = "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
DIGITS = Path(__file__).parents[2] / "model_repo" / "digits-fp32" / "1" / "model.onnx"
ALL = [TENSORRT, CUDA, OPENVINO, "CPUExecutionProvider"]


Backend = subprocess.Popen[str]


@pytest.fixture(scope="module")
def backend(environment: Environment) -> Iterator[Backend]:
    command = [str(environment.python), "-c", ASK, str(Path(BACKEND).parent), str(DIGITS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asked:
        yield asked


def providers(
    backend: Backend,
    kind: str,
    *,
    available: list[str] = ALL,
    parameters: dict[str, str] | None = None,
    cpuinfo: Path = Path("/proc/cpuinfo"),
    libraries: dict[str, Path] | None = None,
    driver: str = "",
    **blocks: Any,
) -> Any:
    config = {
        "parameters": {key: {"string_value": value} for key, value in (parameters or {}).items()},
        "optimization": {"execution_accelerators": blocks},
    }
    assert backend.stdin is not None
    assert backend.stdout is not None
    files = {name: str(path) for name, path in (libraries or {}).items()}
    print(json.dumps([config, kind, available, str(cpuinfo), files, driver]), file=backend.stdin, flush=True)
    return json.loads(backend.stdout.readline())


def test_the_four_top_level_cuda_keys_win_over_the_block_as_words(backend: Backend) -> None:
    given = providers(
        backend,
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


def test_a_cuda_word_that_there_is_not_is_refused(backend: Backend) -> None:
    answer = providers(backend, "GPU", parameters={"cudnn_conv_algo_search": "3"})
    assert "'cudnn_conv_algo_search' is '3'" in answer
    assert answer.endswith("0, 1, 2")


def test_tensorrt_comes_first_with_its_own_names_and_precision(backend: Backend) -> None:
    block = {"precision_mode": "INT8", "max_workspace_size_bytes": "7", "trt_engine_cache_enable": "1"}
    given = providers(backend, "GPU", gpu_execution_accelerator=[{"name": "tensorrt", "parameters": block}])
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
    backend: Backend, kind: str, available: list[str], blocks: dict[str, Any], reason: str
) -> None:
    assert reason in providers(backend, kind, available=available, **blocks)


# -- what the installed build has ---------------------------------------------------------------------------------------


@pytest.fixture
def libraries(tmp_path: Path) -> Callable[[int], dict[str, Path]]:
    """Made-up libraries of the providers: names of options beside other texts, and the TensorRT that they are linked with."""

    def write(tensorrt: int) -> dict[str, Path]:
        texts = [
            b"",
            b"tanh",
            b"prefer_nhwc",
            b"cudnn_conv_use_max_workspace",
            b"use_tf32",
            b"device_id",
            b"fuse_conv_bias",
            b"",
        ]
        (tmp_path / "cuda.so").write_bytes(bytes(9000) + b"\0".join(texts) + bytes(9000) + b"\0far_away_option\0")
        names = ["trt_fp16_enable", "trt_int8_enable", "device_id"]
        shared_library.write(tmp_path / "tensorrt.so", [f"libnvinfer.so.{tensorrt}"], names)
        return {CUDA: tmp_path / "cuda.so", TENSORRT: tmp_path / "tensorrt.so"}

    return write


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("prefer_nhwc", ""),
        ("far_away_option", ""),  # the list that is searched for the nearest is a part of it
        ("prefer_nhcw", "has no option 'prefer_nhcw'; did you mean 'prefer_nhwc'?"),
        ("sdpa_kernel", "has no option 'sdpa_kernel'"),  # one of another build
    ],
)
def test_an_option_that_the_installed_provider_lacks_is_refused_with_the_nearest_that_it_has(
    backend: Backend, libraries: Callable[[int], dict[str, Path]], option: str, reason: str
) -> None:
    block = [{"name": "cuda", "parameters": {option: "1"}}]
    told = providers(backend, "GPU", libraries=libraries(10), gpu_execution_accelerator=block)
    assert reason in told if reason else told[0] == [CUDA, {option: "1", "device_id": "0"}]


@pytest.mark.parametrize(
    ("version", "precision", "variant", "flag"),
    [
        (10, "FP16", "fp16", "trt_fp16_enable"),
        (10, "FP16", None, "trt_fp16_enable"),
        (11, "FP16", "fp16", ""),  # the file says it
        (11, "INT8", "int8", ""),
        (11, "FP32", "fp32", ""),
        (11, "FP16", "fp32", None),
        (11, "FP16", None, None),
        (11, "BF16", "bf16", None),  # FP32's file
    ],
)
def test_precision_flags_are_for_a_tensorrt_that_has_them_and_what_would_be_fp32_is_refused(
    backend: Backend,
    libraries: Callable[[int], dict[str, Path]],
    version: int,
    precision: str,
    variant: str | None,
    flag: str | None,
) -> None:
    block = [{"name": "tensorrt", "parameters": {"precision_mode": precision}}]
    parameters = {"tandem_variant": variant} if variant else {}
    told = providers(
        backend, "GPU", libraries=libraries(version), parameters=parameters, gpu_execution_accelerator=block
    )
    if flag is None:
        assert re.search(f"TensorRT {version} .*precision_mode {precision}", told)
    else:
        assert told[0] == [TENSORRT, {**({flag: "1"} if flag else {}), "device_id": "0"}]


# -- a machine that lacks something: a real session of ONNX Runtime falls back, and the real loader says why --------------------


def test_without_a_driver_the_refusal_says_so_and_what_to_do(backend: Backend) -> None:
    told = providers(backend, "GPU", driver="libnothing.so.1")
    assert "libnothing.so.1" in told
    assert "nvidia.com/gpu" in told


@pytest.mark.parametrize(
    ("provider", "linked", "missing", "ways"),
    [
        (
            CUDA,
            ["libcublasLt.so.13", "libm.so.6", "libcurand.so.10"],
            "libcublasLt.so.13, libcurand.so.10 are missing",
            ["nvidia-cublas==13.*' 'nvidia-curand==10.*", "LD_LIBRARY_PATH"],
        ),
        (CUDA, ["libcudart.so.13"], "libcudart.so.13 is missing", ["nvidia-cuda-runtime==13.*"]),
        (TENSORRT, ["libcudnn.so.9"], "libcudnn.so.9 is missing", ["nvidia-cudnn==9.*"]),
        (TENSORRT, ["libm.so.6", "libnvinfer.so.10"], "libnvinfer.so.10 is missing", ["NVIDIA's container"]),
    ],
)
def test_a_load_that_lacks_libraries_names_them_and_how_to_get_them(
    backend: Backend, tmp_path: Path, provider: str, linked: list[str], missing: str, ways: list[str]
) -> None:
    names = ["device_id", "trt_fp16_enable", "cudnn_conv_use_max_workspace"]
    library = shared_library.write(tmp_path / "provider.so", linked, names)
    blocks = {"gpu_execution_accelerator": [{"name": "tensorrt"}]} if provider == TENSORRT else {}
    told = providers(backend, "GPU", libraries={provider: library}, driver="libm.so.6", **blocks)
    assert told.startswith(f"{provider} ")
    assert missing in told
    assert all(way in told for way in ways)
    assert "CPUExecutionProvider" in told


@pytest.mark.parametrize(("capability", "is_refused"), [("7", True), ("8", False), ("12", False)])
def test_a_card_without_tf32_refuses_it_because_it_would_compute_in_fp32(
    backend: Backend, capability: str, is_refused: bool
) -> None:
    told = providers(backend, "GPU", driver=capability)
    assert isinstance(told, str) == is_refused
    assert not is_refused or "compute capability 7.x" in told


# -- OpenVINO ---------------------------------------------------------------------------------------------------------


def openvino_config(backend: Backend, block: dict[str, str], **more: Any) -> Any:
    """What OpenVINO is told for a block with these parameters, or the refusal."""
    blocks = [{"name": "openvino", "parameters": block}]
    given = providers(backend, "CPU", cpu_execution_accelerator=blocks, **more)
    if isinstance(given, str):
        return given
    name, options = given[0]
    assert (name, options["device_type"]) == (OPENVINO, "CPU")
    return json.loads(options["load_config"])["CPU"]


@pytest.fixture
def processor(tmp_path: Path) -> Callable[[str], Path]:
    """A made-up /proc/cpuinfo with these flags."""

    def write(flags: str) -> Path:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: made up\nflags\t\t: fpu {flags} sse\n")
        return tmp_path / "cpuinfo"

    return write


def test_openvino_gets_its_precision_threads_and_own_settings_as_json_text(
    backend: Backend, processor: Callable[[str], Path]
) -> None:
    block = {"precision": "BF16", "load_config": '{"CPU": {"NUM_STREAMS": "1"}}'}
    told = openvino_config(backend, block, parameters={"intra_op_thread_count": "3"}, cpuinfo=processor("avx512_bf16"))
    assert told == {"NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": "3"}


def test_without_a_precision_openvino_is_told_fp32_because_it_would_choose_bf16_by_itself(
    backend: Backend,
) -> None:
    assert openvino_config(backend, {}) == {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.mark.parametrize(
    ("precision", "flags", "is_refused"),
    [
        ("BF16", "avx512f avx512_vnni", True),
        ("BF16", "", True),
        ("BF16", "amx_bf16", False),
        ("BF16", "avx512_bf16", False),
        ("FP16", "amx_bf16 avx512_bf16", True),
        ("FP16", "avx512_fp16", False),
        ("FP32", "", False),
    ],
)
def test_a_precision_that_the_processor_lacks_is_refused_because_openvino_would_not_say_so(
    backend: Backend, processor: Callable[[str], Path], precision: str, flags: str, is_refused: bool
) -> None:
    told = openvino_config(backend, {"precision": precision}, cpuinfo=processor(flags))
    assert isinstance(told, str) == is_refused
    if is_refused:
        hint = {"BF16": "bf16", "FP16": "fp16"}[precision]
        needs = f"a processor with amx_{hint} or avx512_{hint}; on this one it would compute in FP32"
        assert needs in told


def test_a_precision_that_stands_in_openvinos_own_settings_is_checked_as_well(
    backend: Backend, processor: Callable[[str], Path]
) -> None:
    block = {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}'}
    assert "needs a processor" in openvino_config(backend, block, cpuinfo=processor("avx2"))


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"precision": "INT4"}, "precision 'INT4' is none of FP32, BF16, FP16"),
        ({"load_config": "file.json"}, "load_config is not JSON text"),
    ],
)
def test_what_openvino_cannot_be_told_is_refused(backend: Backend, block: dict[str, str], reason: str) -> None:
    assert reason in openvino_config(backend, block)


def test_blocks_of_the_other_device_kind_are_left_alone(backend: Backend) -> None:
    given = providers(backend, "CPU", gpu_execution_accelerator=[{"name": "tensorrt"}])
    assert given == [["CPUExecutionProvider", {}]]
