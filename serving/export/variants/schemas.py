"""Where may an operator take and give FP16? Read from ONNX's own schemas, so that no list of operators has to be kept here.

Rule: where nothing is known (another domain, bodies, no inferred type), the answer is no.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import onnx

from serving.export.variants.cleaning import subgraphs
from serving.export.variants.graph import Graph


class Place(enum.Enum):
    OTHER = "not a float"
    FREE = "FP32 or FP16"
    FIXED = "FP32 always, whatever the rest of the operator is"  # the scales of a Resize
    NEVER = "not FP16, so that the operator cannot be FP16 either"


def may_be_fp16(graph: Graph, node: onnx.NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx") or any(subgraphs(node)):
        return False
    if any(name and name not in graph.types for name in (*node.input, *node.output)):
        return False
    if not onnx.defs.has(node.op_type, graph.opset, ""):
        return False
    inputs, outputs = places(graph, node)
    return Place.NEVER not in inputs + outputs


def places(graph: Graph, node: onnx.NodeProto) -> tuple[list[Place], list[Place]]:
    """Of each input and of each output. Only for an operator that `may_be_fp16`."""
    schema = onnx.defs.get_schema(node.op_type, graph.opset, "")
    inputs = [_place(graph, name, schema.inputs, index) for index, name in enumerate(node.input)]
    outputs = [_place(graph, name, schema.outputs, index) for index, name in enumerate(node.output)]
    return inputs, outputs


def _place(graph: Graph, name: str, formals: Sequence[onnx.defs.OpSchema.FormalParameter], index: int) -> Place:
    if not graph.is_float(name):
        return Place.OTHER
    formal = formals[min(index, len(formals) - 1)]  # the last one stands for all that follow
    if "tensor(float16)" in formal.types:
        return Place.FREE
    return Place.FIXED if formal.type_str == "tensor(float)" else Place.NEVER
