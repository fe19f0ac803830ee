"""Files that are quantised already: their FP32 comes back, and what is not plain Q/DQ is left alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from serving.export.exported_model import Arrays
from serving.export.variants import candidates, given

from . import nets

ROWS: Arrays = {"x": nets.rows()}
IMAGES: Arrays = {"image": nets.images(32)}


@pytest.mark.parametrize(
    ("fp32", "calibration", "held_out"),
    [(nets.perceptron(), ROWS, {"x": nets.rows(8, 1)}), (nets.swish(), IMAGES, {"image": nets.images(8, 1)})],
)
def test_without_roundings_a_file_is_nearer_to_its_fp32_than_with_them(
    fp32: bytes, calibration: Arrays, held_out: Arrays
) -> None:
    made = next(candidates("int8", fp32, calibration, is_for_tensorrt=True)).model
    exact = given.without_rounding(made)
    assert exact is not None
    assert nets.difference(fp32, exact, **held_out) < nets.difference(fp32, made, is_fused=False, **held_out)
    assert given.without_rounding(exact) is None


def test_nodes_of_such_a_file_need_no_names() -> None:
    made = onnx.load_from_string(next(candidates("int8", nets.perceptron(), ROWS, is_for_tensorrt=True)).model)
    named = given.without_rounding(made.SerializeToString())
    for node in made.graph.node:
        node.name = ""
    nameless = given.without_rounding(made.SerializeToString())
    assert named is not None
    assert nameless is not None
    assert nets.difference(named, nameless, x=nets.rows(8, 1)) == 0


def test_what_is_no_plain_quantisation_is_left_alone() -> None:
    dynamic = next(candidates("int8", nets.encoder(), None)).model
    assert given.without_rounding(dynamic) is None
    assert given.without_rounding(nets.swish()) is None
    assert given.needs_of(dynamic) == frozenset()  # 7 bits


def test_float_weights_that_the_file_rounds_itself_keep_their_range_for_each_channel() -> None:
    """As torch writes a net in quantisation-aware training."""
    weights = np.array([[0.5, 9.0], [-3.0, 1.0], [0.25, -9.0]], np.float32)
    scales = np.array([0.01, 0.05], np.float32)
    values = {
        "w": weights, "ws": scales, "wz": np.zeros(2, np.int8), "xs": np.float32(0.02), "xz": np.int8(0)
    }  # fmt: skip
    pairs = (("x", "xs", "xz"), ("w", "ws", "wz"))
    nodes = [
        node
        for name, scale, zero in pairs
        for node in (
            helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}q"]),
            helper.make_node("DequantizeLinear", [f"{name}q", scale, zero], [f"{name}d"]),
        )
    ]
    made = helper.make_graph(
        [*nodes, helper.make_node("MatMul", ["xd", "wd"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    net = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    exact = given.without_rounding(net.SerializeToString())
    assert exact is not None
    x = np.array([[1.003, -7.0, 0.5], [0.1, 0.2, 0.3]], np.float32)
    kept = np.clip(weights, -128 * scales, 127 * scales)
    assert np.allclose(nets.answers(exact, x=x)[0], np.clip(x, -2.56, 2.54) @ kept, atol=1e-5)
