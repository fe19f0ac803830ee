"""Candidates are made one by one, when they are asked for; what cannot be is an error of ours."""

from __future__ import annotations

import errno

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization.qdq_loss_debug import compute_signal_to_quantization_noice_ratio

from serving.errors import EnvironmentFault, UserError
from serving.export.variants import candidates, quantiser
from serving.export.variants.as_on_gpu import in_tf32
from serving.export.variants.candidate import NotMade, translated

from . import nets


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_some_precisions_are_the_fp32_file_itself(precision: str) -> None:
    fp32 = nets.perceptron()
    [candidate] = candidates(precision, fp32, None)
    assert candidate.model is fp32
    assert candidate.how.endswith(precision.upper())


def test_the_stand_in_for_tf32_rounds_the_factors_of_products_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 6), (6, 3)))
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", k]) for name, k in (("x", 6), ("y", 3))
    ]
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["p"]), onnx.helper.make_node("Mul", ["p", "third"], ["y"])]
    constants = [onnx.numpy_helper.from_array(v, n) for v, n in ((w, "w"), (np.array(1 / 3, np.float32), "third"))]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    [answer] = ort.InferenceSession(in_tf32(model.SerializeToString())).run(None, {"x": x})

    def rounded(values: np.ndarray) -> np.ndarray:  # to the nearest of those with 10 bits after the first
        bits = values.view(np.uint32).astype(np.uint64)
        return ((bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint64(0x1FFF)).astype(np.uint32).view(np.float32)

    expected = (rounded(x) @ rounded(w)) * np.float32(1 / 3)
    assert np.allclose(answer, expected, rtol=1e-6, atol=1e-7)
    assert not np.allclose(answer, (x @ w) / 3, rtol=1e-6, atol=1e-7)


def test_an_unknown_precision_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"precision.*'fp61'.*'fp16'\?"):
        candidates("fp61", nets.perceptron(), None)


def test_nothing_is_made_before_it_is_asked_for() -> None:
    made = candidates("int8", b"no model at all", None)
    with pytest.raises(Exception, match=r".+"):
        next(made)


def test_a_damaged_file_is_an_error_of_ours() -> None:
    for precision in ("fp16", "int8"):
        with pytest.raises(NotMade, match=rf"^{precision}: "):
            next(candidates(precision, b"no model at all", None))


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOSPC, "No space left on device"), RuntimeError("std::bad_alloc")]
)
def test_a_full_disk_or_memory_is_the_machine_s_fault(error: Exception) -> None:
    with pytest.raises(EnvironmentFault, match=r"int8.*static.*QDQ"):
        with translated("int8", "static QDQ"):
            raise error


MESSAGES = [
    (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv node. Name:'conv_3' Status Message: bad",
        "Conv 'conv_3'",
    ),
    (
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Einsum(12) node with name 'e'",
        "Einsum 'e'",
    ),
    ("Node (n4) Op (Resize) [ShapeInferenceError] no", "Resize 'n4'"),
    ("(op_type:Add, node name: a1): [ShapeInferenceError] no", "Add 'a1'"),
]


@pytest.mark.parametrize(("message", "operator"), MESSAGES)
def test_the_operator_is_found_in_what_the_libraries_say(message: str, operator: str) -> None:
    with pytest.raises(NotMade) as caught:
        with translated("int8", "static QDQ"):
            raise RuntimeError(message)
    assert caught.value.operator == operator
    assert f"failed at {operator}: " in str(caught.value)
    assert "ONNXRuntimeError" not in str(caught.value)


def test_a_long_story_is_cut_to_a_line() -> None:
    with pytest.raises(NotMade) as caught:
        with translated("int8", "static QDQ"):
            raise onnx.checker.ValidationError("first line\nsecond " + "x" * 500)
    assert "first line second" in str(caught.value)
    assert len(str(caught.value)) < 300
    assert str(caught.value).endswith("…; leave int8 out")


def test_our_own_errors_pass_and_interruptions_too() -> None:
    with pytest.raises(UserError, match=r"^mine$"):
        with translated("int8", "static QDQ"):
            raise UserError("mine")
    with pytest.raises(KeyboardInterrupt):
        with translated("int8", "static QDQ"):
            raise KeyboardInterrupt


def test_an_error_of_tandems_own_is_not_told_as_the_nets() -> None:
    with pytest.raises(NotMade, match=r"int8.*QDQ.*Tandem's") as ours:
        with translated("int8", "static QDQ"):
            bool(np.zeros(2))
    assert ours.value.fault == "tandem"
    with pytest.raises(NotMade, match=r"ONNX.*Runtime's") as theirs:
        with translated("int8", "static QDQ"):
            compute_signal_to_quantization_noice_ratio(np.zeros(1), np.float32(0))
    assert theirs.value.fault == "tool"
    with pytest.raises(NotMade) as nets_own:
        quantiser.dynamic(b"no model at all", quantiser.Dynamic(("MatMul",)))
    assert nets_own.value.fault == "net"
