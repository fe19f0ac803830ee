"""FP16 answers near FP32 with its roundings shown, stays finite where masks and weights are beyond it, and casts no more than it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from serving.export.onnx_parts import MAX_IR_VERSION
from serving.export.variants import candidates
from serving.export.variants.as_on_gpu import as_on_gpu
from serving.export.variants.candidate import NothingToQuantise

from . import nets

FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def made(fp32: bytes, **inputs: NDArray[Any]) -> bytes:
    [candidate] = candidates("fp16", fp32, inputs or None)
    assert candidate.precision == "fp16"
    assert candidate.needs == frozenset()
    return candidate.model


def types(model: bytes) -> dict[str, int]:
    """Of the first answer of each node, by the node's type and name."""
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(model), strict_mode=True).graph
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output, *graph.input)}
    return {f"{node.op_type} {node.output[0]}": known[node.output[0]] for node in graph.node}


def of(model: bytes, kind: str) -> set[int]:
    return {found for name, found in types(model).items() if name.split()[0] == kind}


def num_casts(model: bytes) -> int:
    return Counter(node.op_type for node in onnx.load_from_string(model).graph.node)["Cast"]


NETS: dict[str, tuple[Callable[[], bytes], dict[str, NDArray[Any]]]] = {
    "swish": (nets.swish, {"image": nets.images()}),
    "perceptron": (nets.perceptron, {"x": nets.rows()}),
    "branching": (nets.branching, {"x": nets.rows(3)}),
    "overflowing": (nets.overflowing, {"x": nets.rows()}),
    "rotary": (nets.rotary, {"x": np.random.default_rng(0).standard_normal((2, 3000, 8)).astype(np.float32)}),
    "lstm": (lambda: nets.recurrent("LSTM"), {"x": np.random.default_rng(0).random((5, 3, 16)).astype(np.float32)}),
    "gru": (lambda: nets.recurrent("GRU"), {"x": np.random.default_rng(0).random((5, 3, 16)).astype(np.float32)}),
    **{f"encoder, {mask}": (lambda mask=mask: nets.encoder(mask), nets.texts()) for mask in nets.MASKS},
    "encoder, guarded": (lambda: nets.encoder("infinity", guard=True), nets.texts()),
}


@pytest.mark.parametrize("name", NETS)
def test_fp16_with_every_rounding_shown_is_near_fp32(name: str) -> None:
    build, inputs = NETS[name]
    fp32 = build()
    fp16 = made(fp32)
    assert nets.difference(fp32, fp16, **inputs) < 0.002
    assert 0 < nets.difference(fp32, as_on_gpu(fp16), **inputs) < 0.005


@pytest.mark.parametrize("name", NETS)
def test_the_file_keeps_its_interface_opset_and_ir_version_and_is_sorted(name: str) -> None:
    fp32 = NETS[name][0]()
    fp16 = made(fp32)
    before, after = onnx.load_from_string(fp32), onnx.load_from_string(fp16)
    onnx.checker.check_model(after, full_check=True)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert after.opset_import[0] == before.opset_import[0]
    assert after.ir_version <= MAX_IR_VERSION
    names = [node.name for node in after.graph.node]
    assert len(set(names)) == len(names)


def test_answers_are_the_same_for_a_row_alone_and_in_a_longer_batch() -> None:
    fp16 = as_on_gpu(made(nets.encoder()))
    batch = nets.texts(5, 9)
    alone = {name: values[2:3] for name, values in batch.items()}
    np.testing.assert_allclose(nets.answers(fp16, **batch)[0][2], nets.answers(fp16, **alone)[0][0], rtol=0, atol=2e-3)


@pytest.mark.parametrize("mask", [name for name in nets.MASKS if name != "infinity"])
@pytest.mark.parametrize("guard", [False, True], ids=["", "guarded"])
def test_a_row_that_is_masked_wholly_gives_numbers(mask: str, guard: bool) -> None:
    fp32 = nets.encoder(mask, guard)
    inputs = nets.texts(3, 6, is_last_empty=True)
    fp16 = made(fp32)
    assert np.isfinite(nets.answers(fp16, **inputs)[0]).all()
    assert nets.difference(fp32, as_on_gpu(fp16), **inputs) < 0.005


def test_a_guard_against_infinite_masks_guards_as_it_did() -> None:
    fp32 = nets.encoder("infinity", guard=True)
    inputs = nets.texts(3, 6, is_last_empty=True)
    assert nets.difference(fp32, as_on_gpu(made(fp32)), **inputs) < 0.005


def test_a_mask_that_reaches_a_product_is_clamped_to_what_fp16_holds() -> None:
    fp32 = nets.net(
        "(float[n, 16] x, bool[n, 16] seen) => (float[n, 4] y)",
        "a = Where (seen, x, lowest) b = MatMul (a, w1) y = Tanh (b)",
        lowest=nets.FLOAT32_MIN, w1=np.full((16, 4), 0.01),
    )  # fmt: skip
    seen = np.ones((3, 16), np.bool_)
    seen[1, :2] = False
    fp16 = as_on_gpu(made(fp32))
    assert nets.difference(fp32, fp16, x=nets.rows(3), seen=seen) < 0.002
    assert "Clip" in {node.op_type for node in onnx.load_from_string(fp16).graph.node}


def test_a_limit_beyond_fp16_limits_the_same() -> None:
    fp32 = nets.net(
        "(float[n, 16] x) => (float[n, 4] y)",
        "a = MatMul (x, w1) b = Clip (a, zero, highest) y = MatMul (b, w2)",
        w1=(16, 16), w2=(16, 4), zero=0.0, highest=-nets.FLOAT32_MIN,
    )  # fmt: skip
    fp16 = made(fp32)
    assert of(fp16, "Clip") == {HALF}
    assert nets.difference(fp32, as_on_gpu(fp16), x=nets.rows()) < 0.005


@pytest.mark.parametrize("kind", ["LayerNormalization", "Softmax", "ReduceSum", "ReduceL2", "Clip", "Div"])
def test_norms_sums_and_the_tail_of_the_normalisation_stay_fp32(kind: str) -> None:
    found = types(made(nets.encoder()))
    names = [name for name in found if name.split()[0] == kind and name != "Div h1"]  # that one is inside GELU
    assert names
    assert {found[name] for name in names} == {FLOAT}


@pytest.mark.parametrize("kind", ["MatMul", "Erf", "Gather"])
def test_products_embeddings_and_activations_go_to_fp16(kind: str) -> None:
    assert of(made(nets.encoder()), kind) == {HALF}


def test_positions_stay_fp32_and_the_net_s_own_products_do_not() -> None:
    found = types(made(nets.rotary()))
    assert {found[name] for name in ("MatMul angles", "Sin s", "Cos c")} == {FLOAT}
    assert {found[name] for name in ("MatMul q", "Mul a", "Add d")} == {HALF}


def test_nodes_whose_weights_overflow_stay_fp32_and_the_others_go() -> None:
    found = types(made(nets.overflowing()))
    assert found["MatMul a"] == found["Mul c"] == FLOAT
    assert found["MatMul d"] == HALF


def test_a_tiny_bias_keeps_nobody_in_fp32_and_tiny_weights_do() -> None:
    fp32 = nets.net(
        "(float[n, 16] x) => (float[n, 4] y)",
        "a = Gemm (x, w1, b1) b = Gemm (a, w2, b1) c = Mul (b, large) y = Gemm (c, w3)",
        w1=(16, 16), b1=np.full(16, 1e-9), w2=np.full((16, 16), 1e-7), large=1e4, w3=(16, 4),
    )  # fmt: skip
    found = types(made(fp32))
    assert (found["Gemm a"], found["Gemm b"]) == (HALF, FLOAT)


def test_values_that_overflow_are_seen_on_inputs_and_only_there() -> None:
    fp32, x = nets.swelling(), nets.rows()
    blind, seeing = made(fp32), made(fp32, x=x)
    assert not np.isfinite(nets.answers(as_on_gpu(blind), x=x)[0]).all()
    assert nets.difference(fp32, as_on_gpu(seeing), x=x) < 0.005
    assert of(seeing, "MatMul") == {FLOAT, HALF}
    [candidate] = candidates("fp16", fp32, {"x": x})
    assert "values over 8188" in candidate.how
    [candidate] = candidates("fp16", fp32, None)
    assert "was not seen" in candidate.how


def test_the_cpu_provider_alone_would_have_hidden_the_overflow() -> None:
    """Why `as_on_gpu` is there. If this fails, the provider computes FP16 in FP16, and gates can do without."""
    fp32, x = nets.swelling(), nets.rows()
    assert nets.difference(fp32, made(fp32), x=x) < 0.005


def test_bodies_keep_their_types_and_find_their_values() -> None:
    fp16 = onnx.load_from_string(made(nets.branching()))
    [branch] = [node for node in fp16.graph.node if node.op_type == "If"]
    inner = [node for attribute in branch.attribute for node in attribute.g.node]
    assert "Cast" not in {node.op_type for node in inner}
    assert {"w1", "w1_fp16"} <= {tensor.name for tensor in fp16.graph.initializer}


@pytest.mark.parametrize(
    ("build", "most"),
    [
        (nets.perceptron, 2),  # in and out
        (nets.swish, 6),  # in and out, and two for each mean
        (nets.encoder, 9),  # two for each norm and Softmax less one at the end, and the two of the mask that were there
        (nets.rotary, 5),
    ],
)
def test_casts_do_not_explode(build: Callable[[], bytes], most: int) -> None:
    assert num_casts(made(build())) <= most


def test_a_value_that_two_read_is_cast_once() -> None:
    fp32 = nets.net(
        "(float[n, 16] x) => (float[n, 16] y)",
        "a = MatMul (x, w) b = Softmax (a) c = Exp (a) d = Add (b, c) e = Log (d) y = MatMul (e, w)",
        w=(16, 16),
    )
    assert num_casts(made(fp32)) == 4


def test_file_is_about_half_as_large() -> None:
    fp32 = nets.net("(float[n, 256] x) => (float[n, 256] y)", "y = MatMul (x, w)", w=(256, 256))
    assert len(made(fp32)) < 0.51 * len(fp32)


def test_constants_written_as_nodes_are_found() -> None:
    fp32 = nets.net(
        "(float[n, 2] x) => (float[n, 2] y)",
        """w = Constant <value = float[2, 2] {1.0, 2.0, 3.0, 4.0}> () half = Constant <value_float = 0.5> ()
        a = MatMul (x, w) y = Mul (a, half)""",
    )
    fp16 = made(fp32)
    assert of(fp16, "MatMul") == {HALF}
    assert nets.difference(fp32, as_on_gpu(fp16), x=np.ones((3, 2), np.float32)) < 0.002


def test_an_operator_of_another_domain_stays_as_it_is() -> None:
    fp32 = nets.net("(float[n, 16] x) => (float[n, 4] y)", "a = MatMul (x, w1) b = com.microsoft.Gelu (a) y = MatMul (b, w2)", w1=(16, 16), w2=(16, 4), others=("com.microsoft",))  # fmt: skip
    assert nets.difference(fp32, made(fp32), x=nets.rows()) < 0.005


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (nets.arithmetic, r"no convolution or matrix product \(Mul, Tanh\)"),
        (nets.looping, "inside the bodies of If, Loop or Scan"),
    ],
)
def test_a_net_without_products_is_refused_with_its_reason(build: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(NothingToQuantise, match=rf"^fp16: .*{reason}.*; leave fp16 out$"):
        made(build())


def test_there_is_no_second_try_for_fp16() -> None:
    assert list(candidates("fp16", nets.swish(), None, second_try=True)) == []
