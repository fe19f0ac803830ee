"""Which operators of a net put out values near FP16's end? Seen on real inputs, because no graph shows it.

The net runs in FP32 with the largest magnitude of every value beside its answers. Rule: only numbers leave the net, so that
its size does not matter.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped, unused-ignore]
from onnx import TensorProto, helper

from serving.export.exported import Arrays
from serving.export.variants.calibration import Rows
from serving.export.variants.graph import MAX_FP16, Graph, opened, read
from serving.export.variants.refusals import translated

LARGE = MAX_FP16 / 8  # other inputs may well give values a few times larger than those seen; guess, not measured
_MAX_ROWS = 64  # guess, not measured: a net that overflows at all does so on some of the first rows


def large_values(fp32: bytes, inputs: Arrays) -> frozenset[str]:
    """Names of nodes, as `opened` gives them, that make or read such a value."""
    with translated("fp16", "looking for large values"):
        graph = read(opened(fp32))
        values = [value.name for value in graph.model.graph.input if graph.is_float(value.name)]
        values += [name for node in graph.nodes for name in graph.floats_out(node)]
        values = [name for name in values if name not in graph.masks]  # those stay FP32 anyway
        seen = _magnitudes(graph, values, inputs)
        large = {name for name, value in zip(values, seen, strict=True) if not value <= LARGE}
        return frozenset(node.name for node in graph.nodes if not large.isdisjoint((*node.input, *node.output)))


def _magnitudes(graph: Graph, names: list[str], inputs: Arrays) -> list[float]:
    """The largest magnitude of each value over all rows; NaN where there was one."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    del model.graph.output[:]
    for index, name in enumerate(names):
        absolute, largest = f"magnitude_{index}_all", f"magnitude_{index}"
        model.graph.node.append(helper.make_node("Abs", [name], [absolute]))
        model.graph.node.append(helper.make_node("ReduceMax", [absolute], [largest], keepdims=0))
        model.graph.output.append(helper.make_tensor_value_info(largest, TensorProto.FLOAT, []))
    options = ort.SessionOptions()
    options.log_severity_level = 3  # it warns of nodes that the shortened list of outputs leaves unused
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    runs = [session.run(None, portion) for portion in Rows(model, inputs, max_rows=min(_MAX_ROWS, _num_rows(inputs)))]
    found: list[float] = np.max(np.array(runs, np.float64), axis=0).tolist() if names else []
    return found


def _num_rows(inputs: Arrays) -> int:
    return min(len(rows) for rows in inputs.values())
