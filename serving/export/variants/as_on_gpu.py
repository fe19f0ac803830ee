"""Imitates a GPU's rounding on the CPU, so that gates see what a GPU would answer: an FP32 file that rounds where the other does.

ONNX Runtime's CPU provider computes FP16 operators in FP32 and rounds nothing in between, so that a file that overflows on
every GPU looks perfect here. GPUs sum products in FP32 and round what comes out: so does the stand-in, explicitly. And 8-bit
weights, right in TensorRT, saturate in the integer kernels of processors without VNNI: the stand-in computes with rounded FP32.
It is for the gates, never for serving. Rule: every value that is rounded in the file is rounded in the same way here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from serving.export.onnx_parts import MS_DOMAIN, unused, uses
from serving.export.variants.graph import PRODUCTS, opened

TF32_SPLIT = 2.0**13 + 1  # FP32 has 24 significant bits, TF32 11: Veltkamp's way to round off the other 13
_FP32, _FP16 = TensorProto.FLOAT, TensorProto.FLOAT16


def as_on_gpu(model: bytes) -> bytes:
    """Makes the stand-in. Bodies of If, Loop and Scan are FP32 in our files, and stay as they are."""
    return bytes(_StandIn(opened(model)).made().SerializeToString(deterministic=True))


def in_tf32(model: bytes) -> bytes:
    """An FP32 file whose products round their factors to TF32, as a card does; what comes out of them is FP32 as there."""
    proto = opened(model)
    graph = onnx.shape_inference.infer_shapes(proto).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    taken = {name for node in proto.graph.node for name in (*node.input, *node.output, node.name)} | types.keys()
    split = unused("tf32_split", taken)
    rounded: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        for index in range(min(2, len(node.input))) if node.op_type in PRODUCTS else ():
            name = node.input[index]
            if types.get(name) == _FP32:
                if name not in rounded:
                    steps = [unused(f"{name}_{step}", taken) for step in ("times", "low", "tf32")]
                    nodes.append(helper.make_node("Mul", [name, split], [steps[0]]))
                    nodes.append(helper.make_node("Sub", [steps[0], name], [steps[1]]))
                    nodes.append(helper.make_node("Sub", [steps[0], steps[1]], [steps[2]]))
                    rounded[name] = steps[2]
                node.input[index] = rounded[name]
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(TF32_SPLIT, np.float32), split))
    return bytes(proto.SerializeToString(deterministic=True))


class _StandIn:
    """The graph as it grows. Quantised values are whole numbers in FP32 there."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        inferred = onnx.shape_inference.infer_shapes(model).graph
        self._halves = {value.name for value in inferred.value_info if value.type.tensor_type.elem_type == _FP16}
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._taken = {name for node in model.graph.node for name in (*node.input, *node.output, node.name)}
        self._taken.update(self._constants)
        self._nodes: list[onnx.NodeProto] = []

    def made(self) -> onnx.ModelProto:
        graph = self._model.graph
        for node in graph.node:
            if node.op_type == "DequantizeLinear" and all(name in self._constants for name in node.input):
                self._dequantised_constant(node)
            elif node.op_type == "QuantizeLinear":
                self._quantised(node)
            elif node.op_type == "DequantizeLinear":
                self._dequantised(node)
            elif node.domain == MS_DOMAIN and node.op_type == "Attention" and node.output[0] in self._halves:
                self._attention(node)
            else:
                self._rounded(node)
        for tensor in graph.initializer:
            if tensor.data_type == _FP16:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
        used = {name for node in self._nodes for name in uses(node)} | {value.name for value in graph.output}
        kept = [tensor for tensor in graph.initializer if tensor.name in used]
        del graph.node[:], graph.value_info[:], graph.initializer[:]
        graph.node.extend(self._nodes)
        graph.initializer.extend(kept)
        return self._model

    def _rounded(self, node: onnx.NodeProto) -> None:
        """Adds the node in FP32, and behind each of its FP16 answers a cast there and back."""
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == _FP16:
                attribute.i = _FP32
        self._nodes.append(node)
        for index, name in enumerate(node.output):
            if name in self._halves:
                exact, half = unused(f"{name}_exact", self._taken), unused(f"{name}_half", self._taken)
                node.output[index] = exact
                self._add("Cast", [exact], half, to=_FP16)
                self._add("Cast", [half], name, to=_FP32)

    def _attention(self, node: onnx.NodeProto) -> None:
        """Takes it apart, because a card that has no kernel for the whole rounds between its parts; others round less often."""
        set_to = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        source, weight, bias = node.input[:3]
        width, num_heads = self._constants[weight].dims[1] // 3, set_to["num_heads"]
        size = width // num_heads
        split = self._stored("split", np.array([0, 0, num_heads, size], np.int64))
        product = self._half("MatMul", [source, weight], f"{node.name}_product")
        together = self._half("Add", [product, bias], f"{node.name}_projected")
        parts = [unused(f"{node.name}_{part}", self._taken) for part in ("query", "key", "value")]
        sizes = self._stored("sizes", np.full(3, width, np.int64))
        self._nodes.append(helper.make_node("Split", [together, sizes], parts, axis=-1))
        perms = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        query, key, value = (
            self._made("Transpose", [self._made("Reshape", [part, split], f"{part}_split")], f"{part}_heads", perm=perm)
            for part, perm in zip(parts, perms, strict=True)
        )
        scale = self._stored("scale", np.array(set_to.get("scale", size**-0.5), np.float32))
        scores = self._half(
            "Mul", [self._made("MatMul", [query, key], f"{node.name}_dots"), scale], f"{node.name}_scores"
        )
        if len(node.input) > 3:
            hidden = np.array(set_to.get("mask_filter_value", -10000.0), np.float32)
            is_there = self._made("Cast", [node.input[3]], f"{node.name}_is_there", to=TensorProto.BOOL)
            is_there = self._made("Unsqueeze", [is_there, self._stored("axes", np.array([1, 2]))], f"{node.name}_rows")
            ends = [self._stored("shown", np.zeros((), np.float32)), self._stored("hidden", hidden)]
            mask = self._made("Where", [is_there, *ends], f"{node.name}_mask")
            scores = self._made("Add", [scores, mask], f"{node.name}_masked")
        shares = self._half("Softmax", [scores], f"{node.name}_shares", axis=-1)
        mixed = self._half("MatMul", [shares, value], f"{node.name}_mixed")
        flat = self._made("Transpose", [mixed], f"{node.name}_flat", perm=[0, 2, 1, 3])
        whole = self._stored("whole", np.array([0, 0, width], np.int64))
        self._nodes.append(helper.make_node("Reshape", [flat, whole], [node.output[0]]))

    def _made(self, kind: str, inputs: list[str], name: str, **settings: Any) -> str:
        output = unused(name, self._taken)
        self._nodes.append(helper.make_node(kind, inputs, [output], **settings))
        return output

    def _half(self, kind: str, inputs: list[str], name: str, **settings: Any) -> str:
        """The same, rounded to FP16."""
        half = self._made("Cast", [self._made(kind, inputs, f"{name}_exact", **settings)], f"{name}_half", to=_FP16)
        return self._made("Cast", [half], name, to=_FP32)

    def _stored(self, name: str, values: NDArray[np.generic]) -> str:
        made = unused(f"attention_{name}", self._taken)
        self._model.graph.initializer.append(numpy_helper.from_array(values, made))
        return made

    def _quantised(self, node: onnx.NodeProto) -> None:
        """Adds round(x / scale) + zero point, within the type's range. QuantizeLinear and Round both round halves to even."""
        value, scale, zero_point = node.input
        zero = numpy_helper.to_array(self._constants[zero_point])
        limits = np.iinfo(zero.dtype)
        steps, whole = unused(f"{value}_steps", self._taken), unused(f"{value}_whole", self._taken)
        moved = unused(f"{value}_moved", self._taken)
        self._add("Div", [value, scale], steps)
        self._add("Round", [steps], whole)
        self._add("Add", [whole, self._constant(zero_point, zero)], moved)
        low, high = np.array(limits.min, np.float32), np.array(limits.max, np.float32)
        self._add("Clip", [moved, self._constant("lowest", low), self._constant("highest", high)], node.output[0])

    def _dequantised(self, node: onnx.NodeProto) -> None:
        value, scale, zero_point = node.input
        centred = unused(f"{value}_centred", self._taken)
        zero = self._constant(zero_point, numpy_helper.to_array(self._constants[zero_point]))
        self._add("Sub", [value, zero], centred)
        self._add("Mul", [centred, scale], node.output[0])

    def _dequantised_constant(self, node: onnx.NodeProto) -> None:
        inputs = {name: numpy_helper.to_array(self._constants[name]) for name in node.input}
        [answer] = ReferenceEvaluator(node).run(None, inputs)
        tensor = numpy_helper.from_array(np.asarray(answer, np.float32), node.output[0])
        self._model.graph.initializer.append(tensor)

    def _constant(self, name: str, values: NDArray[np.generic]) -> str:
        made = unused(f"{name}_fp32", self._taken)
        self._model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), made))
        return made

    def _add(self, kind: str, inputs: list[str], output: str, to: int | None = None) -> None:
        node = helper.make_node(kind, inputs, [output], unused(f"{output}_{kind.lower()}", self._taken))
        if to is not None:
            node.attribute.append(helper.make_attribute("to", to))
        self._nodes.append(node)
