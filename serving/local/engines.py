"""Which engines can compute here, and which Python has each? What exports and measurements run on.

Nothing is made or downloaded: an engine counts when its environment is complete. Without Triton's environment ONNX
Runtime's own provider is that of this very Python.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from serving.export.speed import EnginePython
from serving.local.devices import gpu_name
from serving.local.environments import ENGINES, find


def installed() -> dict[str, EnginePython]:
    """Engine -> its Python; `cpu` is always among them."""
    engines = {"cpu": EnginePython("cpu", Path(sys.executable), metadata.version("onnxruntime"))}
    if environment := find(ENGINES["cpu"]):
        engines["cpu"] = EnginePython("cpu", environment.python, environment.engine_version)
    if environment := find(ENGINES["openvino"]):
        engines["openvino"] = EnginePython("openvino", environment.python, environment.engine_version)
    if gpu_name() is not None and (environment := find(ENGINES["gpu"])):
        engines["cuda"] = EnginePython("cuda", environment.python, environment.engine_version)
    return engines
