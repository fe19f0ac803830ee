"""A mean over height and width is a GlobalAveragePool, which has an INT8 kernel; ReduceMean has none.

Exporters write either. Rule: the numbers are the same, and whatever is not surely such a mean stays as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from serving.export.onnx_parts import unused
from serving.export.variants.graph import Graph

_RANK = 4  # [n, channels, height, width]


def with_pools(graph: Graph) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    ranks = _ranks(model)
    taken = set(graph.types) | {node.name for node in model.graph.node}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes.extend(_pool(node, taken) if _is_spatial_mean(graph, node, ranks) else [node])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _pool(node: onnx.NodeProto, taken: set[str]) -> list[onnx.NodeProto]:
    if _attribute(node, "keepdims", 1):
        return [helper.make_node("GlobalAveragePool", [node.input[0]], [node.output[0]], node.name)]
    pooled = unused(f"{node.output[0]}_pooled", taken)
    return [
        helper.make_node("GlobalAveragePool", [node.input[0]], [pooled], node.name),
        helper.make_node("Flatten", [pooled], [node.output[0]], unused(f"{node.name}_flat", taken), axis=1),
    ]


def _is_spatial_mean(graph: Graph, node: onnx.NodeProto, ranks: dict[str, int]) -> bool:
    if node.op_type != "ReduceMean" or ranks.get(node.input[0]) != _RANK or not graph.is_float(node.input[0]):
        return False
    axes = _attribute(node, "axes", [])
    if len(node.input) > 1:
        tensor = graph.constants.get(node.input[1])
        axes = [] if tensor is None else np.ravel(numpy_helper.to_array(tensor)).tolist()
    return {axis % _RANK for axis in axes} == {2, 3}


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return values.get(name, default)


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.value_info, *inferred.input, *inferred.output)
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}
