"""What a machine lacks for a card: ONNX Runtime's and the loader's own words to a reason with a way out."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.local.environments import CUDA_PINS
from serving.local.launch import BACKEND
from tests.local import shared_library

SPEC = importlib.util.spec_from_file_location("cuda_libraries", BACKEND.with_name("cuda_libraries.py"))
assert SPEC is not None
assert SPEC.loader is not None
cuda_libraries = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(cuda_libraries)

# What onnxruntime-gpu 1.31.1 raised on a machine whose libcuda.so.1 was a stand-in: one that answers as CUDA 12.8, one that knows no function.
OLD_DRIVER = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider_info.cc:63 static onnxruntime::CUDAExecutionProviderInfo "
    "onnxruntime::CUDAExecutionProviderInfo::FromProviderOptions(const onnxruntime::ProviderOptions&) [ONNXRuntimeError] : 1 : FAIL : "
    'provider_options_utils.h:187 Parse Failed to parse provider option "device_id": CUDA failure {code}: {text} ; GPU=-1 ; hostname=vm ; '
    "file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider_info.cc ; line=70 ; expr=cudaGetDeviceCount(&num_devices);"
)
UNKNOWN_SYMBOL = (
    "/site/onnxruntime/capi/libonnxruntime_providers_cuda.so: undefined symbol: cuTensorMapEncodeTiled"  # the loader's
)
# In the wheel's library; whatever stands before it was not seen, because that needs a card.
NO_CUDNN = (
    "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : cuDNN is not available. Install cuDNN, update the system library search "
    "path, or set enable_cudnn=0 to force native CUDA paths where available."
)
NO_CUFFT = "cuFFT is not available. Install cuFFT or update the system library search path to enable FFT (Rfft/Irfft) operators."


def build(cuda_version: str | None, site: Path = Path("/nowhere/lib/python3.11/site-packages")) -> Any:
    """An installed `onnxruntime`, as far as it is asked."""
    return SimpleNamespace(
        __version__="1.31.1", __file__=str(site / "onnxruntime" / "__init__.py"), cuda_version=cuda_version
    )


@pytest.mark.parametrize(
    ("said", "cuda", "parts"),
    [
        (
            OLD_DRIVER.format(code=35, text="CUDA driver version is insufficient for CUDA runtime version"),
            "13.0",
            ["driver 535.104.05 is too old for CUDA 13", "install 580 or newer"],
        ),
        (
            OLD_DRIVER.format(code=36, text="API call is not supported in the installed CUDA driver"),
            "12.8",
            ["too old for CUDA 12", "install 525 or newer"],
        ),
        (UNKNOWN_SYMBOL, "13.0", ["too old for CUDA 13", "580"]),
        (UNKNOWN_SYMBOL, None, ["too old for CUDA of this build", "install a newer one"]),
        (
            OLD_DRIVER.format(code=100, text="no CUDA-capable device is detected"),
            "13.0",
            ["driver 535.104.05 shows no card", "--gpus", "CUDA_VISIBLE_DEVICES"],
        ),
        (NO_CUDNN, "13.0", ["a node that needs cuDNN: libcudnn.so.9 is missing", "'nvidia-cudnn-cu13==9.*'"]),
        (NO_CUDNN, "12.8", ["'nvidia-cudnn-cu12==9.*'"]),
        (NO_CUFFT, "13.0", ["a node that needs cuFFT: libcufft.so.12 is missing", "'nvidia-cufft==12.*'"]),
        (NO_CUFFT, "12.8", ["libcufft.so.11", "'nvidia-cufft-cu12==11.*'"]),
    ],
)
def test_what_a_machine_lacks_has_a_reason_and_a_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, cuda: str | None, parts: list[str]
) -> None:
    facts = tmp_path / "version"
    facts.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n")
    monkeypatch.setattr(cuda_libraries, "DRIVER_FACTS", facts)
    told = cuda_libraries.why_failed(build(cuda), said)
    assert [part for part in parts if part not in told] == []


@pytest.mark.parametrize(
    "said",
    [
        "Load model from m.onnx failed:Protobuf parsing failed.",
        "undefined symbol: PyExc_ValueError",
        "CUDA failure 2: out of memory",
        "CUDA failure 350",
    ],
)
def test_what_is_about_something_else_is_left_as_it_was(said: str) -> None:
    assert cuda_libraries.why_failed(build("13.0"), said) is None


@pytest.mark.parametrize(
    "linked", [[], ["libm.so.6"], ["libcublas.so.13", "libm.so.6", "libcuda.so.1", "libcudnn.so.9"]]
)
def test_what_a_library_is_linked_with_is_read_out_of_it(tmp_path: Path, linked: list[str]) -> None:
    library = shared_library.write(tmp_path / "p.so", linked, ["libnvrtc.so.12"])  # a name that it only opens
    assert cuda_libraries.linked_with(library) == linked


def test_a_library_that_loads_is_not_blamed(tmp_path: Path) -> None:
    library = shared_library.write(tmp_path / "p.so", ["libm.so.6"])
    assert cuda_libraries.why_not_started(build("13.0"), library) is None


def test_a_library_that_is_missing_for_another_reason_is_told_as_the_loader_has_it(tmp_path: Path) -> None:
    library = tmp_path / "p.so"
    library.write_text("no library at all")
    told = cuda_libraries.load_error(library)
    assert told
    assert str(library) in told


def test_wheels_go_into_the_environment_that_lacks_them(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").touch()
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    library = shared_library.write(tmp_path / "p.so", ["libcudart.so.13"])
    told = cuda_libraries.why_not_started(build("13.0", site), library)
    assert f"pip --python {tmp_path}/bin/python3 install --no-deps 'nvidia-cuda-runtime==13.*'" in told
    assert re.search("CUDA 13 .*LD_LIBRARY_PATH", told)


@pytest.mark.parametrize("pin", CUDA_PINS)
def test_the_wheels_that_are_named_are_those_of_the_environment_for_cards(pin: str) -> None:
    """But nvJitLink's, which only cuFFT is linked with."""
    name, _, version = pin.partition("==")
    libraries = {
        "nvidia-cublas": "libcublas.so.13",
        "nvidia-cuda-nvrtc": "libnvrtc.so.13",
        "nvidia-cuda-runtime": "libcudart.so.13",
        "nvidia-cudnn-cu13": "libcudnn.so.9",
        "nvidia-cufft": "libcufft.so.12",
        "nvidia-curand": "libcurand.so.10",
    }
    if name != "nvidia-nvjitlink":
        assert cuda_libraries.wheel_of(libraries[name], 13) == f"'{name}=={version.partition('.')[0]}.*'"
