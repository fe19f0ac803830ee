"""Small ONNX graphs with known answers, and spoilt ones, for the tests of sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node
from onnx.helper import make_tensor_value_info as value

FLOAT, INT64, HALF, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT16, TensorProto.STRING
RANDOM = np.random.default_rng(7)


def weights(name: str, *shape: int, dtype: str = "float32") -> onnx.TensorProto:
    return numpy_helper.from_array(RANDOM.standard_normal(shape).astype(dtype), name)


def constant(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    inits: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 18,
    domains: dict[str, int] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    made = helper.make_graph(nodes, "g", inputs, outputs, inits)
    return helper.make_model(made, opset_imports=imports, **{"ir_version": 8, **more})


def linear(batch: int | str | None = "n", *, opset: int = 18, softmax: bool = False, **more: Any) -> onnx.ModelProto:
    """x [batch, 4] -> y [batch, 3]."""
    nodes = [node("Gemm", ["x", "w", "b"], ["z" if softmax else "y"])]
    if softmax:
        nodes.append(node("Softmax", ["z"], ["y"], axis=1))
    ports = [value("x", FLOAT, [batch, 4])], [value("y", FLOAT, [batch, 3])]
    return graph(nodes, *ports, [weights("w", 4, 3), weights("b", 3)], opset=opset, **more)


def convolution(batch: int | str = 1, edge: int | str = 8) -> onnx.ModelProto:
    """image [batch, 3, edge, edge] -> scores [batch, 5], with a Reshape to [1, 4]-like constants in it."""
    nodes = [
        node("Conv", ["image", "k"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Reshape", ["p", "flat"], ["f"]),
        node("MatMul", ["f", "w"], ["scores"]),
    ]
    return graph(
        nodes,
        [value("image", FLOAT, [batch, 3, edge, edge])],
        [value("scores", FLOAT, [batch, 5])],
        [weights("k", 4, 3, 3, 3), constant("flat", 1, 4), weights("w", 4, 5)],
    )
