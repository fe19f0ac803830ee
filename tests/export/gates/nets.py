"""Tiny graphs for one gate each, in ONNX's text form: input `x`, output `y` unless a test says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from serving.export.exported_model import ExportedModel, Run
from serving.repository import Tensor

EXAMPLE = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


def net(body: str, signature: str = "(float[batch,4] x) => (float[batch,k] y)", **weights: Any) -> bytes:
    """Weights: arrays, or floats and whole numbers as scalars."""
    text = f'<ir_version: 10, opset_import: ["" : 18]> net {signature} {{ {body} }}'
    model = parser.parse_model(text)
    for name, value in weights.items():
        array = np.asarray(value)
        wide = {"f": np.float32, "i": np.int64}.get(array.dtype.kind)
        kept = array.astype(wide) if wide and array.dtype != np.float16 else array
        model.graph.initializer.append(numpy_helper.from_array(kept, name))
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def exported(
    model: bytes,
    *,
    example: dict[str, NDArray[Any]] | None = None,
    inputs: tuple[Tensor, ...] = (Tensor("x", "FP32", (4,)),),
    outputs: tuple[Tensor, ...] = (Tensor("y", "FP32", (4,)),),
    max_batch_size: int = 8,
    task: str = "other",
    run: Run | None = None,
    framework: str = "numpy",
    **more: Any,
) -> ExportedModel:
    given = {"x": EXAMPLE} if example is None else example
    return ExportedModel(model, inputs, outputs, max_batch_size, task, "a test", framework, run, given, **more)


IDENTITY = net("y = Identity(x)", "(float[batch,4] x) => (float[batch,4] y)")
SOFTMAX = net("y = Softmax<axis = -1>(x)", "(float[batch,4] x) => (float[batch,4] y)")
