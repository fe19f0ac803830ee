"""Which engines there are, which pool each computes in, and which variants only one of them can compute.

An engine is a way to run an ONNX file; an engine that is installed has a Python of its own. Nothing here looks whether one is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BASELINE = "fp32"
PLAIN = {"cpu": "cpu", "gpu": "cuda"}  # pool -> ONNX Runtime's own provider there
POOL = {"cpu": "cpu", "openvino": "cpu", "cuda": "gpu", "tensorrt": "gpu"}
# Computed as what they are by one engine of a pool alone: FP32's file in BF16, and INT8 on a card.
ONLY_ENGINE = {("cpu", "bf16"): "openvino", ("gpu", "int8"): "tensorrt"}


@dataclass(frozen=True, slots=True)
class EnginePython:
    """An engine that is installed: `python` has its build of ONNX Runtime, of this version."""

    engine: str
    python: Path
    version: str
