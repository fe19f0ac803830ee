"""The exported graph itself: the framework's rows in every batch, dimensions that are free, answers that depend on inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.errors import UserError, exit_code
from serving.export.exported_model import Arrays
from serving.export.gates.graph import check_graph
from serving.export.gates.limits import Degenerate, FrameworkDiffers, Limits, NonFinite, NotDynamic, RowsDiffer
from serving.export.onnx_session import Session
from serving.repository import Tensor
from serving.repository.preprocessing import TextPreprocessing

from .nets import EXAMPLE, IDENTITY, SOFTMAX, exported, net


def same(inputs: Arrays) -> list[NDArray[Any]]:
    return [inputs["x"]]


def test_a_sound_graph_passes_beside_its_framework_and_alone() -> None:
    check_graph("m-fp32", exported(IDENTITY, run=same))
    check_graph("m-fp32", exported(IDENTITY))
    check_graph("m-fp32", exported(SOFTMAX, max_batch_size=1))


def test_a_graph_that_computes_something_else_than_its_framework_is_refused() -> None:
    with pytest.raises(FrameworkDiffers, match=r"m-fp32.*0.82.*pytorch's.*0.001") as caught:
        check_graph("m-fp32", exported(IDENTITY, run=lambda inputs: [inputs["x"] + 1], framework="pytorch"))
    assert exit_code(caught.value) == 1


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda inputs: [inputs["x"][:, :2]], id="another shape"),
        pytest.param(lambda inputs: [inputs["x"], inputs["x"]], id="another number of outputs"),
        pytest.param(lambda inputs: [inputs["x"] * np.nan], id="NaN"),
    ],
)
def test_a_framework_whose_answers_cannot_be_compared_is_refused(run: Any) -> None:
    with pytest.raises(FrameworkDiffers):
        check_graph("m-fp32", exported(IDENTITY, run=run))


def test_the_limit_is_what_decides() -> None:
    def near(inputs: Arrays) -> list[NDArray[Any]]:
        return [inputs["x"] + 0.01]

    with pytest.raises(FrameworkDiffers):
        check_graph("m-fp32", exported(IDENTITY, run=near))
    check_graph("m-fp32", exported(IDENTITY, run=near), Limits.chosen({"max_row_difference": 0.02}))


def test_no_limit_on_rows_lets_another_model_pass_for_the_frameworks() -> None:
    backwards = exported(IDENTITY, run=lambda inputs: [inputs["x"][:, ::-1]])
    with pytest.raises(FrameworkDiffers):
        check_graph("m-fp32", backwards, Limits.chosen({"max_row_difference": 1.0}))


def test_large_answers_may_differ_by_their_share() -> None:
    large = net("y = Mul(x, k)", "(float[batch,4] x) => (float[batch,4] y)", k=1e6)
    check_graph("m-fp32", exported(large, run=lambda inputs: [inputs["x"] * np.float32(1e6) + 50]))


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_dimension_that_became_a_constant_is_refused() -> None:
    fixed = net("y = Reshape(x, shape)", "(float[batch,4] x) => (float[batch,4] y)", shape=np.array([1, 4]))
    with pytest.raises(NotDynamic, match=r"m-fp32.*dimension.*3"):
        check_graph("m-fp32", exported(fixed))


@pytest.mark.parametrize(("fill", "is_sound"), [(-1.0, True), (0.0, True), (0.5, False)])
def test_a_detector_that_fills_a_batch_up_to_its_fullest_image_is_sound(fill: float, is_sound: bool) -> None:
    """x [n, 64] -> [n, k, 6]: corners, score and class of what is above a half, k of the image that has most of them."""
    detector = net(
        """is = Greater(x, half)  one = Cast<to = 7>(is)  each = ReduceSum<keepdims = 0>(one, last)  most = ReduceMax<keepdims = 0>(each)
           k = Reshape(most, single)  score, place = TopK(x, k)  at = Cast<to = 1>(place)  high = Add(at, two)  none = Mul(at, zero)
           is_found = Greater(score, half)  a = Unsqueeze(at, end)  b = Unsqueeze(high, end)  s = Unsqueeze(score, end)
           c = Unsqueeze(none, end)  on = Unsqueeze(is_found, end)  all = Concat<axis = 2>(a, a, b, b, s, c)  y = Where(on, all, fill)""",
        "(float[batch, 64] x) => (float[batch, k, 6] y)",
        half=0.5,
        two=2.0,
        zero=0.0,
        fill=fill,
        last=[1],
        end=[2],
        single=[1],
    )
    images = np.zeros((6, 64), np.float32)
    for number in range(6):
        images[number, : number % 4] = np.arange(9, 9 - number % 4, -1) / 10
    found = exported(
        detector,
        example={"x": images},
        inputs=(Tensor("x", "FP32", (64,)),),
        outputs=(Tensor("y", "FP32", (-1, 6)),),
        task="detection",
    )
    if is_sound:
        check_graph("m-fp32", found)
        check_graph("m-fp32", replace(found, run=lambda inputs: Session("m", detector).run(inputs)))
    else:
        with pytest.raises(RowsDiffer):
            check_graph("m-fp32", found)


def test_a_batch_that_leaks_into_its_rows_is_refused() -> None:
    leaking = net(
        "m = ReduceMean<keepdims = 1>(x, axis) y = Add(x, m)",
        "(float[batch,4] x) => (float[batch,4] y)",
        axis=np.array([0]),
    )
    with pytest.raises(RowsDiffer, match=r"batch.*changes"):
        check_graph("m-fp32", exported(leaking))


def test_rows_that_come_back_in_another_order_are_refused() -> None:
    turned = net(
        "start = Constant<value_ints = [-1]>() end = Constant<value_ints = [-1000]>() axis = Constant<value_ints = [0]>() "
        "step = Constant<value_ints = [-1]>() y = Slice(x, start, end, axis, step)",
        "(float[batch,4] x) => (float[batch,4] y)",
    )
    with pytest.raises(RowsDiffer):
        check_graph("m-fp32", exported(turned))


def test_a_graph_without_a_batch_dimension_is_checked_row_by_row() -> None:
    plain = net("y = Softmax<axis = 0>(x)", "(float[4] x) => (float[4] y)")

    def softmax(inputs: Arrays) -> list[NDArray[Any]]:
        e = np.exp(inputs["x"])
        return [e / e.sum()]

    check_graph("m-fp32", exported(plain, max_batch_size=0, run=softmax))


# -- dimensions of any length -----------------------------------------------------------------------------------------

IDS, MASK = Tensor("ids", "INT64", (-1,)), Tensor("mask", "INT64", (-1,))
SENTENCES = {
    "ids": np.random.default_rng(0).integers(1, 9, (4, 6)),
    "mask": np.ones((4, 6), np.int64),
}
SUM = "w = Mul(ids, mask) f = Cast<to = 1>(w) y = ReduceSum<keepdims = 1>(f, one)"
SIGNATURE = "(int64[batch,length] ids, int64[batch,length] mask) => (float[batch,1] y)"
ONE = np.array([1])


def text(model: bytes, **changes: Any) -> Any:
    options = {"example": SENTENCES, "inputs": (IDS, MASK), "outputs": (Tensor("y", "FP32", (1,)),), **changes}
    return exported(model, **options)


def total(inputs: Arrays) -> list[NDArray[Any]]:
    return [(inputs["ids"] * inputs["mask"]).sum(axis=1, keepdims=True).astype(np.float32)]


def test_inputs_that_share_a_dimension_get_the_same_length() -> None:
    seen: list[tuple[int, ...]] = []

    def run(inputs: Arrays) -> list[NDArray[Any]]:
        assert inputs["ids"].shape == inputs["mask"].shape
        seen.append(inputs["ids"].shape)
        return total(inputs)

    check_graph("m-fp32", text(net(SUM, SIGNATURE, one=ONE), run=run))
    assert seen == [(4, 6), (2, 3), (2, 12)]


def test_dimensions_without_a_name_go_with_those_of_their_length() -> None:
    unnamed = net(SUM, SIGNATURE.replace("length", "?"), one=ONE)
    check_graph("m-fp32", text(unnamed, run=total))


def test_no_text_gets_longer_than_its_model_reads() -> None:
    seen: list[int] = []

    def run(inputs: Arrays) -> list[NDArray[Any]]:
        seen.append(inputs["ids"].shape[1])
        return total(inputs)

    how = TextPreprocessing("tokenizer.json", {}, 8, 0, "none", False)
    check_graph("m-fp32", text(net(SUM, SIGNATURE, one=ONE), run=run, preprocessing=how))
    assert seen == [6, 3, 8]


FIXED_LENGTH = net(
    "r = Reshape(ids, shape) w = Mul(r, mask) f = Cast<to = 1>(w) y = ReduceSum<keepdims = 1>(f, one)",
    SIGNATURE,
    shape=np.array([-1, 6]),
    one=ONE,
)


@pytest.mark.parametrize("run", [total, None])
def test_a_length_that_became_a_constant_is_refused(run: Any) -> None:
    with pytest.raises(NotDynamic, match=r"m-fp32.*dimension.*1.*'ids'.*3"):
        check_graph("m-fp32", text(FIXED_LENGTH, run=run))


def test_a_graph_that_is_right_at_one_length_alone_is_refused() -> None:
    first_six = net(
        "n = Constant<value_ints = [6]>() zero = Constant<value_ints = [0]>() "
        "i = Slice(ids, zero, n, one) m = Slice(mask, zero, n, one) "
        "w = Mul(i, m) f = Cast<to = 1>(w) y = ReduceSum<keepdims = 1>(f, one)",
        SIGNATURE,
        one=ONE,
    )
    with pytest.raises(NotDynamic, match=r"\b12\b.* \d+(\.\d+)? "):
        check_graph("m-fp32", text(first_six, run=total))


def test_a_length_that_the_framework_does_not_take_either_is_passed_over() -> None:
    def six_at_most(inputs: Arrays) -> list[NDArray[Any]]:
        if inputs["ids"].shape[1] > 6:
            raise IndexError("index out of range in self")
        return total(inputs)

    up_to_six = net(
        "p = Gather(positions, ids) s = Squeeze(p, two) m = Cast<to = 1>(mask) w = Mul(s, m) "
        "y = ReduceSum<keepdims = 1>(w, one)",
        SIGNATURE,
        positions=np.arange(9.0)[:, None],
        one=ONE,
        two=np.array([2]),
    )
    check_graph("m-fp32", text(up_to_six, run=six_at_most))


# -- answers that mean nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("z = Mul(x, tiny) c = Add(z, seven) y = Identity(c)", "6 different inputs give the same answer"),
        ("z = Mul(x, tiny) y = Softmax<axis = -1>(z)", r"deviation [\d.e-]+ at a scale of 0.2"),
        ("z = Mul(x, tiny) y = Mul(z, tiny)", "deviation 0 at a scale of 0"),
    ],
)
def test_answers_that_do_not_depend_on_the_input_are_refused(body: str, says: str) -> None:
    faded = net(body, "(float[batch,4] x) => (float[batch,4] y)", tiny=1e-30, seven=7.0)
    with pytest.raises(Degenerate, match=says):
        check_graph("m-fp32", exported(faded))


def test_a_detector_that_finds_nothing_in_any_row_is_refused_until_rows_show_something() -> None:
    """As on noise: `[0]` scores of each input."""
    rows = EXAMPLE[:, None]
    found = net(
        "a = ReduceMax(x, axis) f = Reshape(a, flat) g = Greater(f, k) y = Compress<axis = 0>(f, g)",
        "(float[1,4] x) => (float[found] y)",
        k=1000.0,
        axis=np.array([1]),
        flat=np.array([-1]),
    )
    detector = exported(
        found,
        example={"x": rows},
        inputs=(Tensor("x", "FP32", (1, 4)),),
        outputs=(Tensor("y", "FP32", (-1,)),),
        max_batch_size=0,
    )
    with pytest.raises(Degenerate, match=r"--data.*--example"):
        check_graph("m-fp32", detector, inputs={"x": rows})
    check_graph("m-fp32", detector, inputs={"x": rows * 10_000})


def test_small_answers_that_do_depend_on_the_input_pass() -> None:
    small = net("y = Mul(x, tiny)", "(float[batch,4] x) => (float[batch,4] y)", tiny=1e-6)
    check_graph("m-fp32", exported(small))


def test_equal_inputs_and_plain_decisions_say_nothing_about_that() -> None:
    check_graph("m-fp32", exported(IDENTITY, example={"x": np.ones((4, 4), np.float32)}))
    signs = net("f = Floor(x) z = Sub(f, f) y = Cast<to = 7>(z)", "(float[batch,4] x) => (int64[batch,4] y)")
    check_graph("m-fp32", exported(signs, outputs=(Tensor("y", "INT64", (4,)),)))


def test_real_inputs_show_what_made_up_ones_do_not() -> None:
    """A tree asks whether a feature is above a thousand: made-up inputs never are."""
    step = net("d = Sub(x, k) y = Relu(d)", "(float[batch,4] x) => (float[batch,4] y)", k=1000.0)
    with pytest.raises(Degenerate, match=r"real.*--data.*--example"):
        check_graph("m-fp32", exported(step))
    check_graph("m-fp32", exported(step), inputs={"x": EXAMPLE * 10_000})


STEP = net("d = Sub(x, k) y = Relu(d)", "(float[batch,4] x) => (float[batch,4] y)", k=1000.0)


@pytest.mark.parametrize(
    ("num_small", "num_large"),
    [(100, 100), pytest.param(250, 2, id="rare"), pytest.param(5000, 5000, id="many")],
)
def test_rows_that_are_sorted_by_their_answer_are_told_apart(num_small: int, num_large: int) -> None:
    """As data sets come: all of the first class, then all of the next."""
    rows = np.concatenate([np.zeros((num_small, 4)), np.full((num_large, 4), 2000.0)]).astype(np.float32)
    rows += np.arange(len(rows), dtype=np.float32)[:, None] / 1e6
    check_graph("m-fp32", exported(STEP), inputs={"x": rows})


def test_real_inputs_that_are_all_answered_alike_do_not_condemn_a_net_that_answers_its_example_differently() -> None:
    check_graph("m-fp32", exported(STEP, example={"x": EXAMPLE * 10_000}), inputs={"x": EXAMPLE})


def test_one_output_that_varies_is_enough() -> None:
    two = net(
        "z = Mul(x, zero) y = Identity(x)", "(float[batch,4] x) => (float[batch,4] z, float[batch,4] y)", zero=0.0
    )
    check_graph("m-fp32", exported(two, outputs=(Tensor("z", "FP32", (4,)), Tensor("y", "FP32", (4,)))))


def test_nan_on_the_example_is_refused() -> None:
    logarithm = net("y = Log(x)", "(float[batch,4] x) => (float[batch,4] y)")
    with pytest.raises(NonFinite, match=r"NaN.*infinite"):
        check_graph("m-fp32", exported(logarithm))


def test_a_source_that_names_other_outputs_than_the_graph_has_is_told() -> None:
    with pytest.raises(UserError, match=r"graph's.*outputs"):
        check_graph("m-fp32", exported(IDENTITY, outputs=(Tensor("z", "FP32", (4,)),)))


def test_a_long_example_is_not_run_as_a_whole() -> None:
    seen: list[int] = []

    def run(inputs: Arrays) -> list[NDArray[Any]]:
        seen.append(len(inputs["x"]))
        return [inputs["x"]]

    check_graph("m-fp32", exported(IDENTITY, run=run, example={"x": np.repeat(EXAMPLE, 100, axis=0)}))
    assert max(seen) == 8
