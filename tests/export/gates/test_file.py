"""A file beside the interface that all variants share, and what its operators say about rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from serving.errors import EnvironmentFault, UserError
from serving.export.exported_model import Arrays
from serving.export.gates import rows
from serving.export.gates.file import Interface, check_file, row_limit
from serving.export.gates.limits import NonFinite
from serving.export.onnx_session import CannotRun, Session, answers, in_batches
from serving.repository import Tensor

from .nets import EXAMPLE, IDENTITY, exported, net

ROW = Interface((Tensor("x", "FP32", (4,)),), (Tensor("y", "FP32", (4,)),), 8)
TWO = net("y = Identity(x) z = Neg(x)", "(float[batch,4] x) => (float[batch,4] y, float[batch,4] z)")


def test_a_file_with_the_interface_of_its_model_passes() -> None:
    check_file("m-fp16", IDENTITY, ROW)
    check_file("m-fp16", IDENTITY, Interface.of(exported(IDENTITY)))
    without_batch = net("y = Neg(x)", "(float[4] x) => (float[4] y)")
    check_file("m-fp16", without_batch, Interface(ROW.inputs, ROW.outputs, 0))


@pytest.mark.parametrize(
    ("interface", "says"),
    [
        (
            Interface(ROW.inputs, (Tensor("y", "FP32", (5,)),), 8),
            r"output 'y' is tensor\(float\) \[4\] a row; FP32 has .* \[5\]",
        ),
        (Interface(ROW.inputs, (Tensor("y", "FP32", (-1,)),), 8), r".*; FP32 has tensor\(float\) \[-1\]"),
        (
            Interface((Tensor("x", "FP16", (4,)),), ROW.outputs, 8),
            r"input 'x' is tensor\(float\) \[4\] a row; FP32 has tensor\(float16\)",
        ),
        (
            Interface((*ROW.inputs, Tensor("m", "INT64", (4,))), ROW.outputs, 8),
            "inputs are x; FP32 has x, m, and variants share them",
        ),
        (
            Interface(ROW.inputs, ROW.outputs, 0),
            r"input 'x' is tensor\(float\) \[-1, 4\] a row; FP32 has tensor\(float\) \[4\]",
        ),
    ],
)
def test_another_interface_is_the_users_to_mend(interface: Interface, says: str) -> None:
    with pytest.raises(UserError, match=f"m-int8: {says}"):
        check_file("m-int8", IDENTITY, interface)


def test_outputs_in_another_order_would_be_compared_with_each_other() -> None:
    outputs = (Tensor("z", "FP32", (4,)), Tensor("y", "FP32", (4,)))
    with pytest.raises(UserError, match=r"y, z.* z, y"):
        check_file("m-int8", TWO, Interface(ROW.inputs, outputs, 8))
    check_file("m-int8", TWO, Interface(ROW.inputs, outputs[::-1], 8))


def test_a_causal_mask_of_minus_infinity_is_no_broken_weight() -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    masked = net("y = Add(x, mask)", "(float[batch,4,4] x) => (float[batch,4,4] y)", mask=mask)
    interface = Interface((Tensor("x", "FP32", (4, 4)),), (Tensor("y", "FP32", (4, 4)),), 8)
    check_file("m-fp32", masked, interface)
    broken = net("y = Add(x, mask)", "(float[batch,4,4] x) => (float[batch,4,4] y)", mask=mask + 1)
    with pytest.raises(NonFinite, match=r"6 NaN.*infinite.*'mask'"):
        check_file("m-fp32", broken, interface)


@pytest.mark.parametrize(
    ("body", "weights", "limit"),
    [
        ("y = Identity(x)", {}, 1e-3),
        ("h = Cast<to = 10>(x) m = Mul(h, w) y = Cast<to = 1>(m)", {"w": np.ones(1, np.float16)}, 1e-2),
        ("q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", {}, 0.1),
    ],
)
def test_how_much_a_row_may_depend_on_its_batch_is_read_from_the_file(
    body: str, weights: dict[str, np.ndarray], limit: float
) -> None:
    assert row_limit(net(body, "(float[batch,4] x) => (float[batch,4] y)", **weights)) == limit


# -- running it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 4, 6, 100])
def test_every_batch_size_gives_every_row_once(batch_size: int) -> None:
    [y, z] = answers(TWO, {"x": EXAMPLE}, batch_size)
    np.testing.assert_array_equal(y, EXAMPLE)
    np.testing.assert_array_equal(z, -EXAMPLE)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"x": EXAMPLE.astype(np.float64)}, "m does not run on a batch of 6: .*Unexpected input data type"),
        ({"x": EXAMPLE[:, :3]}, "m does not run on a batch of 6: .*invalid dimensions|Got: 3 Expected: 4"),
        ({"z": EXAMPLE}, "m does not run on a batch of 6: .*input"),
    ],
)
def test_what_onnx_runtime_says_becomes_one_line_of_ours(inputs: Arrays, says: str) -> None:
    with pytest.raises(CannotRun, match=says) as caught:
        Session("m", IDENTITY).run(inputs)
    assert "\n" not in str(caught.value)


def test_bytes_that_do_not_load_are_told() -> None:
    with pytest.raises(UserError, match="m: ONNX Runtime"):
        Session("m", b"GIF89a")


def counting(inputs: Arrays) -> list[np.ndarray]:
    """x [n, 1] -> 1 to x [n, the largest x], filled up with zeros within a batch; without a batch the same of one."""
    up_to = np.arange(1, int(inputs["x"].max()) + 1)
    return [np.where(up_to <= inputs["x"], up_to, 0)]


COUNTS = {"x": np.array([[1], [2], [0], [3]])}


@pytest.mark.parametrize("batch_size", [0, 1, 2])
def test_rows_of_different_lengths_are_filled_up_with_zeros(batch_size: int) -> None:
    [found] = in_batches(counting, COUNTS, batch_size)
    assert found.tolist() == [[1, 0, 0], [1, 2, 0], [0, 0, 0], [1, 2, 3]]


def filled_up_with(fill: float, of_one: float, dtype: type) -> Callable[[Arrays], list[np.ndarray]]:
    """`counting`, from `of_one` on, filled up with something else."""

    def run(inputs: Arrays) -> list[np.ndarray]:
        [counts] = counting(inputs)
        return [np.where(counts > 0, counts - 1 + of_one, fill).astype(dtype)]

    return run


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize(
    ("fill", "of_one", "is_same"),
    [(0, 1, True), (-1, 1, True), (-1, -1, True), (-2, 1, False), (1, 1, False)],
)
def test_a_row_that_its_batch_fills_up_with_zeros_or_minus_one_is_the_same_row(
    fill: float, of_one: float, dtype: type, is_same: bool
) -> None:
    difference, _ = rows.largest_row_difference("m", filled_up_with(fill, of_one, dtype), COUNTS, 4)
    assert (difference == 0) == is_same


def test_an_answer_of_minus_one_is_no_filling_where_rows_are_of_one_length() -> None:
    def leaking(inputs: Arrays) -> list[np.ndarray]:
        return [np.full((len(inputs["x"]), 1), -1.0 if len(inputs["x"]) > 1 else 0.0)]

    assert rows.largest_row_difference("m", leaking, COUNTS, 4)[0] == 1


def test_rows_of_different_ranks_are_told() -> None:
    def odd(inputs: Arrays) -> list[np.ndarray]:
        return [np.zeros((1, *[2] * int(inputs["x"].max())))]

    for batch_size in (0, 1):
        with pytest.raises(UserError, match=r"output 0.*dimensions"):
            in_batches(odd, {"x": np.array([[1], [2]])}, batch_size)


def test_one_number_for_a_whole_batch_is_told() -> None:
    with pytest.raises(CannotRun, match=r"output.*0.*2"):
        in_batches(lambda inputs: [np.float32(1)], {"x": np.ones((2, 2))}, 2)


def test_a_machine_without_enough_memory_is_at_fault() -> None:
    huge = net(
        "s = Constant<value_ints = [1, 100000, 100000, 1000]>() e = Expand(x, s) y = ReduceSum<keepdims = 0>(e)",
        "(float[batch,1,1,1] x) => (float y)",
    )
    with pytest.raises(EnvironmentFault, match=r"2.*smaller.*--max-batch"):
        Session("m", huge).run({"x": np.ones((2, 1, 1, 1), np.float32)})
