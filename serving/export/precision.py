"""How an FP32 ONNX file becomes FP16 or INT8. Inputs and outputs stay FP32, so that clients never see the precision.

Whether the result is any good is for `gates`. Rule: what leaves here loads in old servers: opset as it came, IR version at
most 10, one file, and no traces of the machine that made it.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

MAX_IR_VERSION = 10  # ONNX Runtime 1.19 in Triton 24.10 reads no later one

# Sums and powers overflow FP16's 65,504 or lose their small terms; Softmax and Resize are kept out of caution.
FP16_KEEPS = ["LayerNormalization", "ReduceMean", "ReduceSum", "ReduceL2", "Pow", "Softmax", "Resize"]

# What fuses into integer kernels of the CPU provider, with what merely passes values on between them. Softmax stays FP32.
INT8_TAKES = [
    "Conv",
    "Gemm",
    "MatMul",
    "Add",
    "Relu",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "Reshape",
    "Flatten",
]


def cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without stack traces, paths and notes of the exporter, at an IR version that old servers read."""
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    model.doc_string = ""
    del model.metadata_props[:]
    graphs = [model.graph, *model.functions]
    for graph in graphs:
        graph.doc_string = ""
        del graph.metadata_props[:]
        for part in (*graph.node, *graph.value_info):
            part.doc_string = ""
            del part.metadata_props[:]
    for part in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]
    used = {"", *_domains(model.graph), *(domain for function in model.functions for domain in _domains(function))}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)  # the quantiser declares domains that it does not use and old servers do not know
    return model


def _domains(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    for node in graph.node:
        yield node.domain
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _domains(inner)


def to_fp16(fp32: bytes) -> bytes:
    from onnxruntime.transformers.float16 import convert_float_to_float16  # type: ignore[import-untyped, unused-ignore]
    from onnxruntime.transformers.onnx_model import OnnxModel  # type: ignore[import-untyped, unused-ignore]

    with warnings.catch_warnings():  # it warns of every weight too small for FP16; the gate measures what that costs
        warnings.simplefilter("ignore")
        model = convert_float_to_float16(onnx.load_from_string(fp32), keep_io_types=True, op_block_list=FP16_KEEPS)
    graph = OnnxModel(model)
    graph.topological_sort()  # the converter appends its casts at the end, where a strict reader refuses them
    return _checked(graph.model)


def to_int8(fp32: bytes, calibration: Mapping[str, NDArray[Any]]) -> bytes:
    """Static QDQ with UINT8 activations and INT8 weights. `calibration`: arrays [n, …] that the gate's data is not in.

    Weights are scaled per channel and use 7 bits: on processors without VNNI, U8S8 products are summed in 16 bits and
    saturate with 8, so that a file made there would be wrong in silence and one made elsewhere wrong there.
    """
    from onnxruntime.quantization import (  # type: ignore[import-untyped, unused-ignore]
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import (  # type: ignore[import-untyped, unused-ignore]
        quant_pre_process,
    )

    with tempfile.TemporaryDirectory(prefix="tandem-int8-") as folder, _quiet():
        source, prepared, made = (Path(folder, name) for name in ("source.onnx", "prepared.onnx", "made.onnx"))
        source.write_bytes(fp32)
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)  # it fails on dynamo's exports
        quantize_static(
            str(prepared),
            str(made),
            _CalibrationRows(calibration),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=INT8_TAKES,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return _checked(onnx.load(str(made)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser logs advice on the root logger that does not apply (it was followed)."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


def _checked(model: onnx.ModelProto) -> bytes:
    onnx.checker.check_model(cleaned(model), full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


class _CalibrationRows:
    """The quantiser's reader: one dictionary of inputs per call, None at the end."""

    def __init__(self, inputs: Mapping[str, NDArray[Any]], batch_size: int = 32) -> None:
        self._batches = _batches(inputs, batch_size)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._batches, None)


def _batches(inputs: Mapping[str, NDArray[Any]], batch_size: int) -> Iterator[dict[str, NDArray[Any]]]:
    num_samples = min(len(values) for values in inputs.values())
    for start in range(0, num_samples, batch_size):
        yield {name: np.ascontiguousarray(values[start : start + batch_size]) for name, values in inputs.items()}
