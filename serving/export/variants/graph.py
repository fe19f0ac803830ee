"""Reads what an FP32 graph holds: types, constants, and which values are masks, positions or otherwise not to be rounded.

Only reading: `fp16` and `int8` decide what to do about it. Rule: where nothing is known of a value (another domain, no
inferred type), it is not said to be a float, so that nobody touches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper

from serving.export.onnx_parts import captured_names, unused

MAX_FP16 = 65504.0
MIN_FP16 = 2.0**-14  # smallest that keeps all its digits

# Arithmetic worth a lower precision; everything else only goes along.
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention"})

# Their answers are small whatever goes in, so that a mask is spent there. Exp: a mask is negative.
_BOUNDED = frozenset(
    {
        "Softmax",
        "Sigmoid",
        "HardSigmoid",
        "Tanh",
        "Erf",
        "Exp",
        "Sin",
        "Cos",
        "Clip",
        "LayerNormalization",
        "SkipLayerNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "LpNormalization",
    }
)


_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A model that `opened` made, with what its values are. All sets hold names of values."""

    model: onnx.ModelProto
    types: Mapping[str, int]  # of tensors, where inference knows them
    constants: Mapping[str, TensorProto]
    largest: Mapping[str, float]  # of each float constant: the largest magnitude, NaN left out
    captured: frozenset[str]  # used inside the bodies of If, Loop and Scan
    masks: frozenset[str]  # may be beyond FP16: made with a constant beyond it, before anything that bounds them
    positions: frozenset[str]  # computed from whole numbers, booleans and constants alone: positions, counts, 0/1 masks
    ranks: Mapping[str, int]  # of tensors, where inference knows them

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        return list(self.model.graph.node)

    @property
    def opset(self) -> int:
        return max(int(entry.version) for entry in self.model.opset_import if entry.domain in ("", "ai.onnx"))

    def is_float(self, name: str) -> bool:
        return self.types.get(name) == TensorProto.FLOAT

    def floats_in(self, node: onnx.NodeProto) -> list[str]:
        return [name for name in node.input if self.is_float(name)]

    def floats_out(self, node: onnx.NodeProto) -> list[str]:
        return [name for name in node.output if self.is_float(name)]


def opened(fp32: bytes) -> onnx.ModelProto:
    """Inlines functions, makes top-level Constants initializers, and gives every node a name of its own."""
    model = onnx.load_from_string(fp32)
    if model.functions:
        model = inliner.inline_local_functions(model)
    graph = model.graph
    taken = {node.name for node in graph.node}
    seen, kept = set(), []
    for index, node in enumerate(graph.node):
        if (tensor := _constant(node)) is not None:
            graph.initializer.append(tensor)
            continue
        if not node.name or node.name in seen:
            node.name = unused(f"{node.op_type}_{index}", taken)
        seen.add(node.name)
        kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    return model


def read(model: onnx.ModelProto) -> Graph:
    types, ranks = _types(model)
    inputs = {value.name for value in model.graph.input}  # one that is also an initializer may be overridden
    constants = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in inputs}
    floats = (tensor for tensor in constants.values() if tensor.data_type == TensorProto.FLOAT)
    largest = {tensor.name: _largest(tensor) for tensor in floats}
    captured = captured_names(model.graph)
    graph = Graph(model, types, constants, largest, captured, frozenset(), frozenset(), ranks)
    return Graph(model, types, constants, largest, captured, _masks(graph), _positions(graph), ranks)


def has_beyond_fp16(graph: Graph, node: onnx.NodeProto) -> bool:
    """Says whether the node has a constant that FP16 cannot hold. The bounds of a Clip do not count: clamped, they bound the same."""
    names = node.input[:1] if node.op_type == "Clip" else node.input
    if any(graph.largest.get(name, 0) > MAX_FP16 for name in names):
        return True
    tensors = (attribute.t for attribute in node.attribute if attribute.type == onnx.AttributeProto.TENSOR)
    return any(_largest(tensor) > MAX_FP16 for tensor in tensors if tensor.data_type == TensorProto.FLOAT)


def _masks(graph: Graph) -> frozenset[str]:
    found: set[str] = set()
    for node in graph.model.graph.node:
        flows = node.op_type not in PRODUCTS and any(name in found for name in node.input)
        if (flows or has_beyond_fp16(graph, node)) and node.op_type not in _BOUNDED:
            found.update(graph.floats_out(node))
    return frozenset(found)


def _positions(graph: Graph) -> frozenset[str]:
    found: set[str] = set()
    for node in graph.model.graph.node:
        if node.op_type in _WITH_BODIES or any(name and name not in graph.types for name in node.input):
            continue
        floats = graph.floats_in(node)
        is_start = not floats  # a Cast from whole numbers, Range of them, ConstantOfShape
        is_fed = any(name in found for name in floats) or node.op_type in ("Expand", "Where")
        goes_on = is_fed and all(name in found or name in graph.constants for name in floats)
        if is_start or (goes_on and (node.op_type not in PRODUCTS or _is_outer(graph, node))):
            found.update(graph.floats_out(node))
    return frozenset(found)


def _is_outer(graph: Graph, node: onnx.NodeProto) -> bool:
    """Positions times frequencies, as in rotary embeddings: nothing is summed, unlike in the net's own products."""
    if node.op_type != "MatMul":
        return False
    left, right = (graph.constants.get(name) for name in node.input)
    if left is None and right is None:
        return True
    return (left is not None and left.dims[-1:] == [1]) or (right is not None and right.dims[-2:-1] == [1])


def _types(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, int]]:
    """Of each tensor its type, and its number of dimensions."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.value_info, *inferred.input, *inferred.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values if value.type.HasField("tensor_type")}
    types.update({tensor.name: tensor.data_type for tensor in inferred.initializer})
    shaped = (value for value in values if value.type.tensor_type.HasField("shape"))
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in shaped}
    return {name: kind for name, kind in types.items() if kind != TensorProto.UNDEFINED}, ranks


def _largest(tensor: TensorProto) -> float:
    values = numpy_helper.to_array(tensor)
    return float(np.nanmax(np.abs(values), initial=0.0))


def _constant(node: onnx.NodeProto) -> TensorProto | None:
    """Returns what a Constant holds, named as its answer; None for other nodes and for text and sparse constants."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    [attribute] = node.attribute
    value = helper.get_attribute_value(attribute)
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name == "value":
        tensor = TensorProto()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
        return tensor
    if attribute.name in kinds:
        return numpy_helper.from_array(np.array(value, kinds[attribute.name]), node.output[0])
    return None


def num_products_in(model: bytes, kind: int) -> int:
    """How many products of a file have a first factor of this type (TensorProto's)."""
    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(model)).graph
    values = (*inferred.value_info, *inferred.input, *inferred.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in inferred.initializer}
    return sum(node.op_type in PRODUCTS and types.get(node.input[0]) == kind for node in inferred.node)
