"""Measures which layers of a net lose most in INT8. A loss is noise over signal (power), 0 for none, per layer and by its own doing.

For static files each layer alone is rounded, and the net's outputs say what that does; for dynamic ones the rounding of
each product is done here on values that were seen, or on the weights alone where no inputs are given. Rule: nothing here changes a net.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from serving.export import onnx_session
from serving.export.exported_model import Arrays
from serving.export.variants.calibration import CalibrationRows
from serving.export.variants.candidate import translated
from serving.export.variants.graph import Graph, read
from serving.export.variants.quantiser import not_to_be_rounded

LAYERS = ("Conv", "Gemm", "MatMul")

# All values of all layers are in memory at once: about 4 photographs, or a whole portion of what is smaller. A guess.
_MAX_VALUES = 600_000
_MAX_ROWS = 16


def static_losses(prepared_fp32: bytes, quantised: bytes, inputs: Arrays) -> dict[str, float]:
    """Measures for each layer's node, by name, the noise at the net's outputs where that layer alone is rounded as in the file.

    FP32's answers are computed once, and each layer's on the same few rows: noise of layers adds up, so that the largest are the worst.
    """
    with translated("int8", "looking for the layers that lose most"):
        net, file = onnx.load_from_string(prepared_fp32), onnx.load_from_string(quantised)
        scores = _scores(net)
        portion = _few(net, inputs).get_next() or {}
        exact = _run(net, scores, portion)
        of_layers = [node.name for node in layers(read(net))]
        return {name: _noise(exact, _run(_with_one_rounded(net, file, name), scores, portion)) for name in of_layers}


def _scores(net: onnx.ModelProto) -> list[str]:
    """The outputs of numbers, before a softmax or sigmoid at their end, which would hide how far scores move."""
    makers = {name: node for node in net.graph.node for name in node.output}
    floats = [v.name for v in net.graph.output if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    ends = {name: makers[name] for name in floats if name in makers}
    return [ends[n].input[0] if n in ends and ends[n].op_type in ("Softmax", "Sigmoid") else n for n in floats]


def _run(net: onnx.ModelProto, names: Sequence[str], portion: Arrays) -> list[NDArray[Any]]:
    known = {value.name for value in net.graph.output}
    missing = [helper.make_empty_tensor_value_info(name) for name in names if name not in known]
    net.graph.output.extend(missing)
    session = onnx_session.opened(net.SerializeToString())
    for _ in missing:
        net.graph.output.pop()
    return list(session.run(list(names), dict(portion)))


def _with_one_rounded(net: onnx.ModelProto, file: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The net with one layer's input, weights and answers rounded by the file's scales."""
    model = onnx.ModelProto()
    model.CopyFrom(net)
    stored = {tensor.name: tensor for tensor in file.graph.initializer}
    makers = {output: node for node in file.graph.node for output in node.output}
    scales = {n.input[0]: list(n.input[1:]) for n in file.graph.node if n.op_type == "QuantizeLinear"}
    place, layer = next((i, node) for i, node in enumerate(model.graph.node) if node.name == name)
    twin = next((node for node in file.graph.node if node.name == name), None)
    weights = makers.get(twin.input[1]) if twin is not None else None
    before: list[onnx.NodeProto] = []
    if weights is not None and weights.op_type == "DequantizeLinear" and weights.input[0] in stored:
        model.graph.initializer.extend(stored[one] for one in weights.input)
        before.append(weights)
        layer.input[1] = weights.output[0]
    if layer.input[0] in scales:
        before += _rounded(layer.input[0], f"{name}_seen", scales[layer.input[0]])
        model.graph.initializer.extend(stored[one] for one in scales[layer.input[0]])
        layer.input[0] = f"{name}_seen"
    behind: list[onnx.NodeProto] = []
    if (answer := layer.output[0]) in scales:
        behind = _rounded(f"{name}_exact", answer, scales[answer])
        model.graph.initializer.extend(stored[one] for one in scales[answer])
        layer.output[0] = f"{name}_exact"
    nodes = list(model.graph.node)
    nodes[place : place + 1] = [*before, layer, *behind]
    unique = {tensor.name: tensor for tensor in model.graph.initializer}
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(unique.values())
    return model


def _rounded(source: str, target: str, scale: Sequence[str]) -> list[onnx.NodeProto]:
    whole = f"{target}_whole"
    return [
        helper.make_node("QuantizeLinear", [source, *scale], [whole], f"{target}_q"),
        helper.make_node("DequantizeLinear", [whole, *scale], [target], f"{target}_dq"),
    ]


def dynamic_losses(graph: Graph, inputs: Arrays | None, is_full_range: bool) -> dict[str, float]:
    """Measures the loss of each product with constant weights, by its node's name. `graph`: of the net as `opened`."""
    nodes = [node for node in layers(graph) if node.op_type != "Conv" and node.input[1] in graph.constants]
    with translated("int8", "looking for the layers that lose most"):
        values_by_name = _read_values(graph, [node.input[0] for node in nodes], inputs) if inputs is not None else {}
        levels = 127 if is_full_range else 64
        return {node.name: _product_loss(graph, node, values_by_name.get(node.input[0]), levels) for node in nodes}


def layers(graph: Graph) -> list[onnx.NodeProto]:
    stays = not_to_be_rounded(graph)
    return [node for node in graph.nodes if node.op_type in LAYERS and node.name not in stays]


def _few(model: onnx.ModelProto, inputs: Arrays) -> CalibrationRows:
    largest = max(int(np.prod(rows.shape[1:])) for rows in inputs.values())
    max_rows = max(1, min(_MAX_ROWS, _MAX_VALUES // max(1, largest)))
    return CalibrationRows(model, {name: rows[:max_rows] for name, rows in inputs.items()}, max_rows)


def _noise(exact: Sequence[Any], rough: Sequence[Any]) -> float:
    """Noise over signal of some portions. Computed here, because the tool's own measure fails on arrays without dimensions."""
    of_exact, of_rough = (np.concatenate([np.ravel(one) for one in part]).astype(np.float64) for part in (exact, rough))
    if of_exact.shape != of_rough.shape or not np.isfinite(of_exact).all():
        return 1.0
    found = _power(of_exact - of_rough) / (_power(of_exact) or 1.0)
    return found if math.isfinite(found) else 1.0


def _read_values(graph: Graph, names: Sequence[str], inputs: Arrays) -> dict[str, NDArray[Any]]:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    known = {value.name for value in (*model.graph.output, *model.graph.input)}
    for name in sorted(set(names) - known):
        model.graph.output.append(helper.make_empty_tensor_value_info(name))
    session = onnx_session.opened(model.SerializeToString())
    portion = _few(model, inputs).get_next() or {}
    wanted = [output.name for output in session.get_outputs() if output.name in names]
    values = dict(zip(wanted, session.run(wanted, portion), strict=True))
    return {name: np.asarray(values.get(name, portion.get(name))) for name in names}


def _product_loss(graph: Graph, node: onnx.NodeProto, values: NDArray[Any] | None, levels: int) -> float:
    weights = numpy_helper.to_array(graph.constants[node.input[1]]).astype(np.float64)
    if any(attribute.name == "transB" and attribute.i for attribute in node.attribute):
        weights = weights.T
    rough_weights = _round(weights, np.abs(weights).max(axis=-2, keepdims=True) / levels)
    if values is None:
        return _power(weights - rough_weights) / (_power(weights) or 1)
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    rough_values = _round(values.astype(np.float64), np.array((high - low) / 255))
    exact = values @ weights
    return _power(exact - rough_values @ rough_weights) / (_power(exact) or 1)


def _round(values: NDArray[Any], step: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.round(values / np.where(step > 0, step, 1)) * step)


def _power(values: NDArray[Any]) -> float:
    return float(np.square(values).sum())
