"""A source that is quantised already, as quantisation-aware training (QAT) leaves it: Q and DQ around its layers.

It is taken as the INT8 variant as it is, and judged beside the FP32 net that is left when the roundings go and their ranges stay. Rule:
what is not plain Q/DQ (fused operators, ranges made in each run) is left alone, because nobody knows its FP32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from serving.export.onnx_parts import checked, in_order
from serving.export.variants.candidate import translated
from serving.measure.machine import has_instructions

VNNI = "vnni"
_SEVEN_BITS = 64  # the largest whole number of a weight that sums rightly everywhere
_FUSED = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul")


def without_rounding(model: bytes) -> bytes | None:
    """The net in FP32; None where it is not quantised, or not by plain Q/DQ."""
    with translated("int8", "reading a file that is quantised already"):
        net = onnx.load_from_string(model)
        kinds = {node.op_type for node in net.graph.node}
        if (
            "DequantizeLinear" not in kinds
            or not kinds.isdisjoint(_FUSED)
            or any(node.domain for node in net.graph.node)
        ):
            return None
        return _exact(net)


def _exact(net: onnx.ModelProto) -> bytes | None:
    graph = net.graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    constants = [(n, a) for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    stored |= {node.output[0]: numpy_helper.to_array(attribute.t) for node, attribute in constants}
    roundings = {node.output[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            continue
        if node.op_type != "DequantizeLinear":
            nodes.append(node)
        elif {*node.input} <= stored.keys():
            weights = _dequantised(node, [stored[name] for name in node.input])
            graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
        elif (rounding := roundings.get(node.input[0])) is not None and {*rounding.input} <= stored.keys():
            weights = _in_range(rounding, [stored[name] for name in rounding.input])
            graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
        elif rounding is None or (limits := _range(rounding, stored)) is None:
            return None
        else:  # a range that was trained may stand for a Relu, so that it stays
            ends = [f"{node.output[0]}_{end}" for end in ("low", "high")]
            graph.initializer.extend(map(numpy_helper.from_array, limits, ends))
            nodes.append(
                helper.make_node("Clip", [rounding.input[0], *ends], [node.output[0]], f"{node.output[0]}_range")
            )
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input} | {output.name for output in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.ClearField("value_info")
    return checked(in_order(net))


def _range(rounding: onnx.NodeProto, stored: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """The least and the largest number that come through; None of a scale for each channel, or one that is no constant."""
    names = rounding.input[1:3]
    if not {*names} <= stored.keys() or stored[names[0]].size != 1:
        return None
    zero = stored[names[1]] if len(names) > 1 else np.zeros((), np.uint8)
    scale, types = float(stored[names[0]].ravel()[0]), np.iinfo(zero.dtype)
    ends = [(end - int(zero.ravel()[0])) * scale for end in (types.min, types.max)]
    return np.array(ends[0], np.float32), np.array(ends[1], np.float32)


def _in_range(rounding: onnx.NodeProto, values: list[NDArray[Any]]) -> NDArray[np.float32]:
    """Float weights that the file itself rounds, as torch writes them in training: what of each comes through its range."""
    weights, scale = values[:2]
    zero = values[2] if len(values) > 2 else np.zeros(scale.shape, np.uint8)
    types = np.iinfo(zero.dtype)
    ends = [
        _dequantised(rounding, [np.full(weights.shape, end, zero.dtype), scale, zero]) for end in (types.min, types.max)
    ]
    return np.clip(weights, *ends).astype(np.float32)


def _dequantised(node: onnx.NodeProto, values: list[NDArray[Any]]) -> NDArray[np.float32]:
    whole, scale = values[0].astype(np.float32), values[1].astype(np.float32)
    zero = values[2].astype(np.float32) if len(values) > 2 else np.zeros_like(scale)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    if scale.size > 1:
        shape = [-1 if place == axis % whole.ndim else 1 for place in range(whole.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return np.asarray((whole - zero) * scale, np.float32)


def needs_of(model: bytes) -> frozenset[str]:
    """Where alone a file of somebody else's was shown to be right: weights of 8 bits that were judged with VNNI are wrong without it."""
    net = onnx.load_from_string(model)
    weights = [t for t in net.graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1]
    is_wide = any(int(np.abs(numpy_helper.to_array(t).astype(np.int16)).max(initial=0)) > _SEVEN_BITS for t in weights)
    return frozenset({VNNI}) if is_wide and has_instructions(VNNI) else frozenset()
