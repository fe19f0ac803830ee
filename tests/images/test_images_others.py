"""The images that CI does not build: OpenVINO's answers, CUDA's libraries load. TEST_IMAGES=all builds and tries them.

What this cannot show: anything on a card.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from .conftest import ALL, TIMEOUT_S, Digit
from .installs import Install, install, writable
from .pods import ROOT, Image, opened, pod

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(TIMEOUT_S),
    pytest.mark.skipif(not ALL, reason="gigabytes: TEST_IMAGES=all"),
]

GPU_AIM_MB = 2500  # docs/images.md: uncompressed, 10^6 bytes
# Loads every library of CUDA's as ONNX Runtime does, and then the provider itself: prints what fails.
LOAD = """
import ctypes, pathlib, onnxruntime
onnxruntime.preload_dlls()
site = pathlib.Path(onnxruntime.__file__).parent.parent
own = [site / "onnxruntime" / "capi" / f"libonnxruntime_providers_{name}.so" for name in ("shared", "cuda")]
for library in [*sorted(site.glob("nvidia/*/lib/*.so*")), *own]:
    try:
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError as error:
        print(f"{library.name}: {error}")
"""


@pytest.fixture(scope="module")
def gpu(built: str) -> Iterator[Image]:
    with opened(f"localhost/tandem-triton-gpu:{built}") as image:
        yield image


@pytest.fixture(scope="module")
def openvino(built: str, gateway: Image, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    """An install whose Triton computes everything by OpenVINO."""
    with opened(f"localhost/tandem-triton-cpu-openvino:{built}") as image:
        print(f"{image.name}: {image.size_bytes / 1e6:.0f} MB")
        with install(gateway, image, models, tmp_path_factory.mktemp("openvino"), ["--engine=openvino"]) as it:
            yield it


def test_openvino_computes_a_digit(openvino: Install, digit: Digit) -> None:
    pixels, label = digit
    entry = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": pixels.ravel().tolist()}
    status, headers, answer = openvino.ask("/v2/models/digits/infer", {"inputs": [entry]})
    assert status == 200, answer
    assert int(np.argmax(answer["outputs"][0]["data"])) == label
    assert headers["tandem-engine"] == "openvino"


def test_every_library_of_cuda_loads_and_the_provider_waits_for_the_driver_alone(gpu: Image, tmp_path: Path) -> None:
    size_mb = gpu.size_bytes / 1e6
    print(f"{gpu.name}: {size_mb:.0f} MB, aim {GPU_AIM_MB} MB")
    assert size_mb <= GPU_AIM_MB
    (environment,) = gpu.root.glob("opt/tandem/environments/gpu-*")
    python = f"/{environment.relative_to(gpu.root)}/bin/python3"
    with (
        pod() as alone,
        alone.container(gpu, [python, "-I", "-c", LOAD], {"/tmp": writable(tmp_path / "tmp")}, tmp_path / "log") as it,
    ):
        assert it.process.wait(timeout=120) == 0, (tmp_path / "log").read_text()
    (failed,) = (tmp_path / "log").read_text().splitlines()
    assert failed.startswith("libonnxruntime_providers_cuda.so: libcuda.so.1: cannot open")


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a card here")
def test_the_gpu_image_says_where_it_lacks_a_card(gpu: Image, tmp_path: Path) -> None:
    mounts = {"/tmp": writable(tmp_path / "tmp"), "/models": f"{ROOT / 'model_repo'}:ro"}
    with pod() as alone, alone.container(gpu, gpu.command, mounts, tmp_path / "log") as container:
        assert container.process.wait(timeout=60) == 2
    assert "no NVIDIA card" in (tmp_path / "log").read_text()
