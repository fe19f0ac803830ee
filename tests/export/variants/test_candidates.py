"""Candidates are made one by one, when they are asked for; what cannot be is an error of ours."""

from __future__ import annotations

import errno

import numpy as np
import onnx
import pytest
from onnxruntime.quantization.qdq_loss_debug import compute_signal_to_quantization_noice_ratio

from serving.errors import EnvironmentFault, UserError
from serving.export.variants import candidates, quantiser
from serving.export.variants.candidate import NotMade, translated

from . import nets


def test_bf16_is_the_fp32_file_itself() -> None:
    fp32 = nets.perceptron()
    [candidate] = candidates("bf16", fp32, None)
    assert candidate.model is fp32
    assert candidate.how == "FP32's file; the engine computes in BF16"


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
