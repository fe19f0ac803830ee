"""Which engines can compute here, and which Python has each? What exports and measurements run on.

Nothing is made or downloaded: an engine counts when its environment is complete. Without Triton's environment ONNX
Runtime's own provider is that of this very Python.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from serving.decisions.engines import PLAIN, EnginePython
from serving.local.devices import gpu_name
from serving.local.environments import ENGINES, Environment, find


def installed() -> dict[str, EnginePython]:
    """Engine -> its Python; `cpu` is always among them. Raises PackageNotFoundError where nothing here has ONNX Runtime."""
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
