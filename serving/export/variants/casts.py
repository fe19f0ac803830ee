"""Writes the FP16 file, once `fp16` has decided which nodes stay FP32: changes types of nodes and constants, adds casts.

One cast per value and direction, made before its first reader, so that the graph stays sorted. Bodies of If, Loop and Scan
stay FP32 and find their values in FP32 under the old names. Rule: graph inputs and outputs keep name and type.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serving.export.onnx_parts import MS_DOMAIN, subgraphs, unused
from serving.export.variants.graph import MAX_FP16, Graph


class Slot(enum.Enum):
    OTHER = "not a float"
    FREE = "FP32 or FP16"
    FIXED = "FP32 always, whatever the rest of the operator is"  # the scales of a Resize
    NEVER = "not FP16, so that the operator cannot be FP16 either"


# ONNX Runtime's own operators whose floats are all of one type, with the attributes under which `as_on_gpu` can compute them.
_FUSED = {
    "Attention": frozenset({"num_heads", "scale", "mask_filter_value"}),
    "Gelu": frozenset[str](),
    "BiasGelu": frozenset[str](),
    "FastGelu": frozenset[str](),
    "QuickGelu": frozenset({"alpha"}),
}
_RAW_MASK = 2  # dimensions, [batch, length]: others mean other things


def may_be_fp16(graph: Graph, node: onnx.NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx", MS_DOMAIN) or any(subgraphs(node)):
        return False
    if any(name and name not in graph.types for name in (*node.input, *node.output)):
        return False
    if node.domain == MS_DOMAIN:
        return _may_be_fused_fp16(graph, node)
    if not onnx.defs.has(node.op_type, graph.opset, ""):
        return False
    inputs, outputs = slots(graph, node)
    return Slot.NEVER not in inputs + outputs


def _may_be_fused_fp16(graph: Graph, node: onnx.NodeProto) -> bool:
    if not {attribute.name for attribute in node.attribute} <= _FUSED.get(node.op_type, frozenset()):
        return False
    if node.op_type != "Attention":
        return node.op_type in _FUSED
    is_plain = len(node.input) in (3, 4) and len(node.output) == 1 and all(node.input)
    return is_plain and all(graph.ranks.get(name) == _RAW_MASK for name in node.input[3:])


def slots(graph: Graph, node: onnx.NodeProto) -> tuple[list[Slot], list[Slot]]:
    """The slots of each input and of each output. Only for an operator that `may_be_fp16`."""
    if node.domain == MS_DOMAIN:
        kinds = (
            [Slot.FREE if graph.is_float(name) else Slot.OTHER for name in names] for names in (node.input, node.output)
        )
        return next(kinds), next(kinds)
    schema = onnx.defs.get_schema(node.op_type, graph.opset, "")
    inputs = [_slot(graph, name, schema.inputs, index) for index, name in enumerate(node.input)]
    outputs = [_slot(graph, name, schema.outputs, index) for index, name in enumerate(node.output)]
    return inputs, outputs


def _slot(graph: Graph, name: str, formals: Sequence[onnx.defs.OpSchema.FormalParameter], index: int) -> Slot:
    if not graph.is_float(name):
        return Slot.OTHER
    formal = formals[min(index, len(formals) - 1)]  # the last one stands for all that follow
    if "tensor(float16)" in formal.types:
        return Slot.FREE
    return Slot.FIXED if formal.type_str == "tensor(float)" else Slot.NEVER


_FP32, _FP16 = TensorProto.FLOAT, TensorProto.FLOAT16


def rewritten(graph: Graph, in_fp32: frozenset[str]) -> onnx.ModelProto:
    return _Rewriting(graph, in_fp32).model()


class _Rewriting:
    """The graph as it grows. `_at`: (value, type) -> the name under which it is found so far."""

    def __init__(self, graph: Graph, in_fp32: frozenset[str]) -> None:
        self._graph, self._in_fp32 = graph, in_fp32
        proto = graph.model.graph
        self._taken = {*graph.types, *(name for node in proto.node for name in (*node.input, *node.output, node.name))}
        self._stays = {
            value.name for value in (*proto.input, *proto.output)
        } | graph.captured  # FP32 under its own name
        self._nodes: list[onnx.NodeProto] = []
        self._at: dict[tuple[str, int], str] = {(value.name, _FP32): value.name for value in proto.input}
        self._new: list[TensorProto] = []
        self._bounds: list[str] = []
        self._of_fused: list[onnx.ValueInfoProto] = []  # types that nobody else can infer
        self._whole = set(self._stays)  # constants that are needed in FP32

    def model(self) -> onnx.ModelProto:
        for node in self._graph.nodes:
            self._add(node)
        model = onnx.ModelProto()
        model.CopyFrom(self._graph.model)
        graph = model.graph
        kept = [t for t in graph.initializer if t.data_type != _FP32 or t.name in self._whole]
        del (
            graph.node[:],
            graph.initializer[:],
            graph.value_info[:],
        )  # types and shapes are inferred anew by who reads it
        graph.node.extend(self._nodes)
        graph.initializer.extend([*kept, *self._new])
        graph.value_info.extend(self._of_fused)
        return model

    def _add(self, original: onnx.NodeProto) -> None:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        is_half = node.name not in self._in_fp32
        inputs, outputs = slots(self._graph, original) if is_half else ([], [])
        for index, name in enumerate(original.input):
            if self._graph.is_float(name):
                node.input[index] = self._find(name, _kind(inputs, index))
        self._nodes.append(node)
        for index, name in enumerate(original.output):
            if self._graph.is_float(name):
                node.output[index] = self._made(name, _kind(outputs, index))
                if node.domain == MS_DOMAIN:
                    kind = _kind(outputs, index)
                    self._of_fused.append(helper.make_tensor_value_info(node.output[index], kind, None))
        if is_half and node.op_type == "Cast":
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == _FP32:
                    attribute.i = _FP16

    def _made(self, name: str, kind: int) -> str:
        """Returns the name under which a node puts out a value; what others need in FP32 under its own name is cast at once."""
        if kind == _FP32 or name not in self._stays:
            self._at[name, kind] = name
            return name
        half = self._at[name, _FP16] = unused(f"{name}_fp16", self._taken)
        self._at[name, _FP32] = name
        self._nodes.append(helper.make_node("Cast", [half], [name], unused(f"{name}_cast", self._taken), to=_FP32))
        return half

    def _find(self, name: str, kind: int) -> str:
        if (name, kind) not in self._at:
            make = self._constant if name in self._graph.constants else self._cast
            self._at[name, kind] = make(name, kind)
        return self._at[name, kind]

    def _constant(self, name: str, kind: int) -> str:
        if kind == _FP32:
            self._whole.add(name)
            return name
        values = numpy_helper.to_array(self._graph.constants[name])
        made = unused(f"{name}_fp16", self._taken)
        self._new.append(numpy_helper.from_array(np.clip(values, -MAX_FP16, MAX_FP16).astype(np.float16), made))
        return made

    def _cast(self, name: str, kind: int) -> str:
        source = self._at[name, _FP16 if kind == _FP32 else _FP32]
        if kind == _FP16 and name in self._graph.masks:
            source = self._clamped(source)
        made = unused(f"{name}_{'fp16' if kind == _FP16 else 'fp32'}", self._taken)
        self._nodes.append(helper.make_node("Cast", [source], [made], unused(f"{made}_cast", self._taken), to=kind))
        return made

    def _clamped(self, source: str) -> str:
        if not self._bounds:
            for value in (-MAX_FP16, MAX_FP16):
                self._bounds.append(unused("fp16_bound", self._taken))
                self._new.append(numpy_helper.from_array(np.array(value, np.float32), self._bounds[-1]))
        made = unused(f"{source}_clamped", self._taken)
        self._nodes.append(
            helper.make_node("Clip", [source, *self._bounds], [made], unused(f"{made}_clip", self._taken))
        )
        return made


def _kind(slots_of_node: list[Slot], index: int) -> int:
    return _FP16 if slots_of_node and slots_of_node[index] is Slot.FREE else _FP32
