"""What computes here: the processor, the NVIDIA card, and the engines that are installed, each with its Python.

Not here: what the processor can do (its instruction sets), which `serving.measure.machine.processor_key` answers. A card counts
only with its driver loaded; the driver's own files are asked first, then NVML where nvidia-ml-py is installed. An engine
counts when its environment is complete; nothing is made or downloaded here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

from serving.decisions.engines import PLAIN, EnginePython
from serving.errors import UserError
from serving.local.environments import ENGINES, Environment, find


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """As the machine calls it, e.g. `Intel(R) Xeon(R) Processor @ 2.50GHz`; many Arm machines give no name."""
    return _field(cpuinfo, ("model name", "Model")) or "unnamed processor"


def gpu_name(driver: Path = Path("/proc/driver/nvidia")) -> str | None:
    """The first card's name, e.g. `NVIDIA H200`; None where there is no card or no driver."""
    for card in sorted(driver.glob("gpus/*/information")):
        if name := _field(card, ("Model",)):
            return name
    return _name_from_nvml() if importlib.util.find_spec("pynvml") else None


def device_name(pool: str) -> str:
    """What the receipt calls the device of a pool."""
    return processor_name() if pool == "cpu" else gpu_name() or "NVIDIA GPU"


def require_gpu() -> None:
    if gpu_name() is None:
        raise UserError(
            "no NVIDIA card with a driver on this machine, so no gpu pool can start here; leave --pool gpu out, "
            "or let `tandem up` use a Triton that runs elsewhere: --pool gpu=http://HOST:8000"
        )


def _field(file: Path, names: tuple[str, ...]) -> str | None:
    """The value of the first `name : value` line."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() in names and value.strip()), None)


def _name_from_nvml() -> str | None:
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        name = nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))
        return name.decode() if isinstance(name, bytes) else str(name)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def installed() -> dict[str, EnginePython]:
    """Engine -> its Python; `cpu` is always among them, from this very Python where Triton's environment is missing.

    Raises PackageNotFoundError where nothing here has ONNX Runtime.
    """
    if environment := find(ENGINES["cpu"]):
        engines = {"cpu": EnginePython("cpu", environment.python, environment.engine_version)}
    else:
        engines = {"cpu": EnginePython("cpu", Path(sys.executable), metadata.version("onnxruntime"))}
    if environment := find(ENGINES["openvino"]):
        engines["openvino"] = EnginePython("openvino", environment.python, environment.engine_version)
    if gpu_name() is not None and (environment := find(ENGINES["gpu"])):
        engines["cuda"] = EnginePython("cuda", environment.python, environment.engine_version)
    return engines


def of_pool(pool: str, environment: Environment) -> dict[str, EnginePython]:
    """Those that a pool's Triton, which is in this environment, can use: the plain one first."""
    plain = PLAIN[pool]
    engines = {plain: EnginePython(plain, environment.python, environment.engine_version)}
    if pool == "cpu" and (other := find(ENGINES["openvino"])):
        engines["openvino"] = EnginePython("openvino", other.python, other.engine_version)
    return engines
