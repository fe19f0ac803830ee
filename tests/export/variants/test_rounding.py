"""Weights rounded by what that does to answers: nearer answers, and nothing else of the file is another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from serving.export.exported_model import Arrays
from serving.export.variants import int8, quantiser, rounding
from serving.export.variants.quantiser import Static

from . import nets


def correlated(num_rows: int, seed: int) -> Arrays:
    """Images whose pixels go together, as those of photographs do."""
    random = np.random.default_rng(seed)
    coarse = random.random((num_rows, 3, 4, 4)).astype(np.float32)
    return {"image": np.kron(coarse, np.ones((4, 4), np.float32)) + 0.05 * nets.images(num_rows, seed)}


def depthwise() -> bytes:
    """Widen, each channel by itself with a stride, narrow, classify: the block of small photograph nets."""
    return nets.net(
        "(float[n, 3, 16, 16] image) => (float[n, 4] y)",
        """a = Conv <pads = [1, 1, 1, 1]> (image, w1, b1) b = Clip (a, zero, six)
        c = Conv <group = 16, pads = [0, 0, 1, 1], strides = [2, 2]> (b, w2, b2) d = Clip (c, zero, six)
        e = Conv (d, w3, b3) f = GlobalAveragePool (e) g = Flatten (f) y = Gemm (g, w4, b4)""",
        w1=(16, 3, 3, 3), b1=(16,), w2=(16, 1, 3, 3), b2=(16,), w3=(8, 16, 1, 1), b3=(8,), w4=(8, 4), b4=(4,),
        zero=0.0, six=6.0,
    )  # fmt: skip


@pytest.mark.parametrize(("is_per_channel", "most_left"), [(True, 0.95), (False, 0.7)])
def test_answers_come_nearer_with_the_same_scales_and_the_same_nodes(is_per_channel: bool, most_left: float) -> None:
    """With a scale for every channel so small a net has little noise of weights, and most is of its activations."""
    prepared, calibration, held_out = quantiser.prepared(depthwise()), correlated(32, 1), correlated(16, 2)
    settings = Static(int8.EVERYTHING, "MinMax", is_per_channel=is_per_channel)
    plain = quantiser.static(prepared, calibration, settings)
    better = quantiser.static(
        prepared, calibration, Static(int8.EVERYTHING, "MinMax", is_per_channel=is_per_channel, is_compensated=True)
    )
    exact = nets.answers(prepared, **held_out)[0]
    lost = [np.square(nets.answers(file, **held_out)[0] - exact).mean() for file in (plain, better)]
    assert lost[1] < most_left * lost[0]
    graphs = [onnx.load_from_string(file).graph for file in (plain, better)]
    assert graphs[0].node == graphs[1].node
    changed = [a for a, b in zip(*(graph.initializer for graph in graphs), strict=True) if a != b]
    assert {tensor.data_type for tensor in changed} == {onnx.TensorProto.INT8, onnx.TensorProto.INT32}
    largest = [
        max(
            np.abs(numpy_helper.to_array(t).astype(int)).max()
            for t in graph.initializer
            if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1
        )
        for graph in graphs
    ]
    assert largest[1] <= largest[0] <= 64  # 7 bits stay 7


def test_fewer_layers_in_int8_get_the_weights_and_biases_that_all_of_them_got() -> None:
    """Also where a layer now takes its values in other steps, so that its bias is counted in others."""
    prepared, calibration, held_out = quantiser.prepared(depthwise()), correlated(32, 1), correlated(16, 2)
    names = [node.name for node in onnx.load_from_string(prepared).graph.node if node.op_type in ("Conv", "Clip")]
    settings = Static(int8.EVERYTHING, is_per_channel=False, is_compensated=True)
    full = quantiser.static(prepared, calibration, settings)
    fewer = Static(int8.PRODUCTS_ONLY, is_per_channel=False)
    plain = quantiser.static(prepared, calibration, fewer, frozenset(names[:2]))
    direct = quantiser.static(
        prepared,
        calibration,
        Static(int8.PRODUCTS_ONLY, is_per_channel=False, is_compensated=True),
        frozenset(names[:2]),
    )
    merged = rounding.with_weights_of(full, plain)
    assert nets.difference(direct, merged, **held_out) < 0.2 * nets.difference(direct, plain, **held_out)


def test_a_layer_that_takes_no_values_keeps_its_plain_rounding() -> None:
    """A net whose padding is left to the runtime."""
    fp32 = nets.net(
        "(float[n, 3, 16, 16] image) => (float[n, 4, 16, 16] y)",
        'y = Conv <auto_pad = "SAME_UPPER"> (image, w)',
        w=(4, 3, 3, 3),
    )
    rows: Arrays = {"image": nets.images(16)}
    prepared = quantiser.prepared(fp32)
    plain = quantiser.static(prepared, rows, Static(int8.EVERYTHING))
    assert quantiser.static(prepared, rows, Static(int8.EVERYTHING, is_compensated=True)) == plain


def test_a_layer_that_is_left_in_fp32_is_not_rounded_by_who_loads_the_file(tmp_path: Path) -> None:
    """ONNX Runtime rounds the weights between a DQ and a Q by itself, with 8 bits and one scale for all channels."""
    prepared, calibration = quantiser.prepared(depthwise()), correlated(32, 1)
    nodes = onnx.load_from_string(prepared).graph.node
    spatial = [node for node in nodes if node.op_type == "Conv"][1]
    left = frozenset({spatial.name, *(node.name for node in nodes if node.input[0] == spatial.output[0])})
    made = quantiser.static(prepared, calibration, Static(int8.PRODUCTS_ONLY), left)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # beyond, nodes lose their names
    options.log_severity_level = 4
    ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    loaded = {node.name: node.op_type for node in onnx.load(tmp_path / "loaded.onnx").graph.node}
    assert loaded[spatial.name] in ("Conv", "FusedConv")
    assert "QLinearConv" in loaded.values()
