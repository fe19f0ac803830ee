"""Fusing swallows attention, sums before norms and GELU where the answers stay, and nothing that would answer otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serving.export.speed_nets import bert
from serving.export.variants import candidates
from serving.export.variants.as_on_gpu import as_on_gpu
from serving.export.variants.fusion import fused

from . import nets

SHAPE = bert.BertShape("small", num_layers=2, width=32, num_heads=4, is_pooled=True, vocabulary=60)
WHOLE = {"Attention": 2, "BiasGelu": 2, "SkipLayerNormalization": 4}
WITHOUT_ATTENTION = {
    "BiasGelu": 2,
    "SkipLayerNormalization": 2,
}  # the sums behind attention have no shape that is known
ROWS = [nets.texts(), nets.texts(1, 5), nets.texts(7, 30, seed=2), nets.texts(3, 6, is_last_empty=False, seed=3)]


@pytest.fixture(scope="module")
def encoder() -> bytes:
    return bert.build(SHAPE, seed=3, opset=18)


def operators(model: bytes) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load_from_string(model).graph.node)


def changed(model: bytes, change: Callable[[onnx.GraphProto], None]) -> bytes:
    proto = onnx.load_from_string(model)
    change(proto.graph)
    return bytes(proto.SerializeToString())


def constant(graph: onnx.GraphProto, name: str, values: NDArray[Any]) -> None:
    [tensor] = [tensor for tensor in graph.initializer if tensor.name == name]
    tensor.CopyFrom(numpy_helper.from_array(values, name))


def test_an_encoder_is_fused_whole_and_answers_as_before(encoder: bytes) -> None:
    found = fused(encoder)
    assert found is not None
    assert found.operators == WHOLE
    kinds = operators(found.model)
    assert {name: kinds[name] for name in WHOLE} == WHOLE
    assert (kinds["Softmax"], kinds["Erf"], kinds["LayerNormalization"], kinds["MatMul"]) == (0, 0, 1, 6)
    before, after = onnx.load_from_string(encoder), onnx.load_from_string(found.model)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    for rows in ROWS:
        assert nets.difference(encoder, found.model, **rows) < 1e-5


def test_what_is_fused_already_is_left_to_its_maker_and_nets_without_any_of_it_are_left_alone(encoder: bytes) -> None:
    found = fused(encoder)
    assert found is not None
    assert fused(found.model) is None
    assert fused(nets.perceptron()) is None
    assert fused(nets.swish()) is None


def test_the_scale_is_the_nets_own(encoder: bytes) -> None:
    flat = changed(encoder, lambda graph: constant(graph, "attention.scale", np.array(0.05, np.float32)))
    assert nets.difference(encoder, flat, **ROWS[0]) > 1e-3
    found = fused(flat)
    assert found is not None
    assert found.operators == WHOLE
    assert nets.difference(flat, found.model, **ROWS[0]) < 1e-5


def is_causal(graph: onnx.GraphProto) -> None:
    """No token sees those after it, beside the padding."""
    place = next(index for index, node in enumerate(graph.node) if "mask" in node.output)
    graph.node[place].output[0] = "padding"
    for name, values in (("low", np.array(-1e4, np.float32)), ("one", np.array(1))):
        graph.initializer.append(numpy_helper.from_array(values, f"causal.{name}"))
    added = [
        helper.make_node("Concat", ["tokens", "tokens"], ["causal.shape"], axis=0),
        helper.make_node("Expand", ["causal.low", "causal.shape"], ["causal.all"]),
        helper.make_node("Trilu", ["causal.all", "causal.one"], ["causal"], upper=1),
        helper.make_node("Add", ["padding", "causal"], ["mask"]),
    ]
    nodes = list(graph.node)
    nodes[place + 1 : place + 1] = added
    del graph.node[:]
    graph.node.extend(nodes)


def is_inverted(graph: onnx.GraphProto) -> None:
    """Hides the tokens whose mask is one."""
    [mask] = [node for node in graph.node if "mask" in node.output]
    mask.input[1], mask.input[2] = mask.input[2], mask.input[1]


def is_soft(graph: onnx.GraphProto) -> None:
    """What is hidden counts a little all the same."""
    constant(graph, "mask.lowest", np.array(-1.0, np.float32))


def is_infinite(graph: onnx.GraphProto) -> None:
    constant(graph, "mask.lowest", np.array(-np.inf, np.float32))


def is_read(graph: onnx.GraphProto) -> None:
    """Who attends to whom is an output, too."""
    names = [node.output[0] for node in graph.node if node.op_type == "Softmax"]
    dims = ["batch", SHAPE.num_heads, "tokens", "tokens"]
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in names)


@pytest.mark.parametrize("change", [is_causal, is_inverted, is_soft, is_infinite, is_read])
def test_attention_that_the_operator_does_not_compute_stays_and_the_rest_is_fused(
    encoder: bytes, change: Callable[[onnx.GraphProto], None]
) -> None:
    other = changed(encoder, change)
    found = fused(other)
    assert found is not None
    assert found.operators == WITHOUT_ATTENTION
    for rows in ROWS:
        assert nets.difference(other, found.model, **rows) < 1e-5


def test_fp16_is_made_of_the_fused_net_first_and_of_the_plain_one_second(encoder: bytes) -> None:
    first, second = candidates("fp16", encoder, ROWS[0], fuses=True)
    assert (dict(first.fused), dict(second.fused)) == (WHOLE, {})
    assert "2 Attention, 2 BiasGelu, 4 SkipLayerNormalization" in first.how
    [plain] = candidates("fp16", encoder, ROWS[0])
    assert (second.model, second.how) == (plain.model, plain.how)
    onnx.checker.check_model(onnx.load_from_string(first.model), full_check=True)
    assert operators(first.model)["Cast"] <= operators(plain.model)["Cast"]
    assert len(first.model) < 0.6 * len(encoder)


def test_a_fused_fp16_computes_attention_and_gelu_in_fp16_and_norms_in_fp32(encoder: bytes) -> None:
    model = onnx.load_from_string(next(candidates("fp16", encoder, None, fuses=True)).model)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    made: dict[str, set[int]] = {}
    for node in model.graph.node:
        if node.domain:
            made.setdefault(node.op_type, set()).add(types[node.output[0]])
    half, whole = TensorProto.FLOAT16, TensorProto.FLOAT
    assert made == {"Attention": {half}, "BiasGelu": {half}, "SkipLayerNormalization": {whole}}


def test_the_stand_in_for_a_gpu_takes_attention_apart_and_rounds_between(encoder: bytes) -> None:
    fp16 = next(candidates("fp16", encoder, None, fuses=True)).model
    stand_in = as_on_gpu(fp16)
    assert operators(stand_in)["Attention"] == 0
    assert operators(stand_in)["Softmax"] == 2
    for rows in ROWS:
        assert 0 < nets.difference(encoder, stand_in, **rows) < 0.01


def has_large_scores(graph: onnx.GraphProto) -> None:
    """Queries and keys of a hundred: their products are beyond FP16 before they are scaled down, and after."""
    for tensor in graph.initializer:
        if tensor.name.endswith((".query.weight", ".key.weight")):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 300, tensor.name))


def test_scores_beyond_fp16_are_seen_on_the_stand_in_and_kept_out_where_inputs_show_them(encoder: bytes) -> None:
    large = changed(encoder, has_large_scores)
    blind = next(candidates("fp16", large, None, fuses=True))
    assert np.isfinite(nets.answers(blind.model, **ROWS[0])[0]).all()  # this processor computes it in FP32
    assert not np.isfinite(nets.answers(as_on_gpu(blind.model), **ROWS[0])[0]).all()
    seeing = next(candidates("fp16", large, ROWS[0], fuses=True))
    assert seeing.fused == WITHOUT_ATTENTION
    assert np.isfinite(nets.answers(as_on_gpu(seeing.model), **ROWS[0])[0]).all()


def test_a_tool_that_fails_leaves_a_plain_fp16_that_says_so(encoder: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("it broke")

    monkeypatch.setattr("onnxruntime.transformers.optimizer.optimize_by_fusion", failing)
    [plain] = candidates("fp16", encoder, None, fuses=True)
    assert plain.fused == {}
    assert plain.not_fused == "it broke"
