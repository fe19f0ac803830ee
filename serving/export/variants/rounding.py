"""What would this FP16 file answer on a GPU? Its CPU stand-in: an FP32 file that rounds where the other does.

ONNX Runtime's CPU provider computes FP16 operators in FP32 and rounds nothing in between, so that a file that overflows on
every GPU looks perfect here. GPUs sum products in FP32 and round what comes out, which is what this file does explicitly.
It is for the gates, never for serving. Rule: every value that is FP16 in the file passes through FP16 here.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serving.export.variants.graph import opened, unused

_FP32, _FP16 = TensorProto.FLOAT, TensorProto.FLOAT16


def rounded(model: bytes) -> bytes:
    """The stand-in; the very same bytes if nothing in the file is FP16. Bodies of If, Loop and Scan are FP32 in our files."""
    proto = opened(model)
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    halves = {value.name for value in inferred.value_info if value.type.tensor_type.elem_type == _FP16}
    constants = [tensor for tensor in proto.graph.initializer if tensor.data_type == _FP16]
    if not halves and not constants:
        return model
    for tensor in constants:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    taken = {name for node in proto.graph.node for name in (*node.input, *node.output, node.name)}
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        nodes.extend(_rounding(node, halves, taken))
    del proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.node.extend(nodes)
    return bytes(proto.SerializeToString(deterministic=True))


def _rounding(node: onnx.NodeProto, halves: set[str], taken: set[str]) -> list[onnx.NodeProto]:
    """The node in FP32, and behind each of its FP16 answers a cast there and back."""
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == _FP16:
            attribute.i = _FP32
    nodes = [node]
    for index, name in enumerate(node.output):
        if name in halves:
            exact, half = unused(f"{name}_exact", taken), unused(f"{name}_half", taken)
            node.output[index] = exact
            nodes.append(helper.make_node("Cast", [exact], [half], unused(f"{half}_cast", taken), to=_FP16))
            nodes.append(helper.make_node("Cast", [half], [name], unused(f"{name}_back", taken), to=_FP32))
    return nodes
