"""What is judged depends on what the model is for: vectors, numbers, decisions; with little data, odd outputs, other engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays
from serving.export.gates import accuracy
from serving.export.gates.limits import AnswersDiffer, Limits, NonFinite, RowsDiffer
from serving.export.onnx_session import CannotRun
from serving.repository import Gate

from .nets import IDENTITY, SOFTMAX, net

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((40, 4)).astype(np.float32)
DATA = Dataset("x", {"x": X}, None)


def judge(model: bytes, reference: list[NDArray[Any]], task: str, **changes: Any) -> Gate:
    options: dict[str, Any] = {"data": DATA, "max_batch_size": 8, "limits": None, **changes}
    return accuracy.judge("m-int8", model, reference, "fp32", options.pop("data"), task, **options)


def shaken(size: float) -> list[NDArray[Any]]:
    return [(X + size * RANDOM.standard_normal(X.shape)).astype(np.float32)]


# -- embeddings -------------------------------------------------------------------------------------------------------


def test_an_embedding_is_judged_by_directions_and_neighbours() -> None:
    gate = judge(IDENTITY, [X], "embedding")
    assert [(check.metric, check.value) for check in gate.checks] == [
        ("cosine_mean", 1.0),
        ("cosine_worst", 1.0),
        ("recall_at_10", 1.0),
        ("row_difference", 0.0),
    ]
    assert gate.basis == "agreement"


def test_labels_say_nothing_about_an_embedding() -> None:
    labelled = replace(DATA, labels=np.arange(40))
    assert judge(IDENTITY, [X], "embedding", data=labelled).basis == "agreement"
    assert judge(IDENTITY, [X], "other", data=labelled).basis == "agreement"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(), "the mean cosine beside FP32 is 0.9"),
        (Limits(min_cosine_mean=0), "the worst cosine beside FP32 is 0"),
        (
            Limits(min_cosine_mean=0, min_cosine_worst=0),
            r"the ten nearest neighbours that stayed beside FP32 is 0\.\d+, below 0.9",
        ),
    ],
)
def test_vectors_that_turned_are_refused_by_each_of_their_limits(limits: Limits, says: str) -> None:
    with pytest.raises(AnswersDiffer, match=says) as caught:
        judge(IDENTITY, shaken(0.3), "embedding", limits=limits)
    assert "\n" not in str(caught.value)


def test_one_turned_vector_is_found_among_many() -> None:
    reference = X.copy()
    reference[7] = -reference[7]
    with pytest.raises(AnswersDiffer, match=r"cosine.*FP32.*-1"):
        judge(IDENTITY, [reference], "embedding", limits=Limits(min_cosine_mean=0.9))


def test_with_two_vectors_there_is_one_neighbour_and_with_one_there_is_none() -> None:
    two = judge(IDENTITY, [X[:2]], "embedding", data=Dataset("x", {"x": X[:2]}, None))
    assert two.check("recall_at_10") is not None
    one = judge(IDENTITY, [X[:1]], "embedding", data=Dataset("x", {"x": X[:1]}, None))
    assert one.check("recall_at_10") is None
    assert one.check("cosine_worst") is not None


# -- numbers and decisions --------------------------------------------------------------------------------------------


def test_other_answers_are_judged_as_numbers_and_told_in_their_unit() -> None:
    gate = judge(IDENTITY, shaken(0.001), "other")
    assert [(check.metric, check.limit) for check in gate.checks[:3]] == [
        ("noise_ratio", 0.1),
        ("relative_error", 0.5),
        ("absolute_error", None),
    ]
    with pytest.raises(AnswersDiffer, match=r"noise.*FP32"):
        judge(IDENTITY, shaken(0.3), "other")
    with pytest.raises(AnswersDiffer, match=r"difference.*FP32.*1e-06.*--max-absolute-error"):
        judge(IDENTITY, shaken(0.001), "other", limits=Limits.chosen({"max_absolute_error": 1e-6}))


SIGNS = net(
    "zero = Constant<value_float = 0.0>() above = Greater(x, zero) y = Cast<to = 7>(above)",
    "(float[batch,4] x) => (int64[batch,4] y)",
)
WORDS = net("y = Identity(x)", "(string[batch,1] x) => (string[batch,1] y)")
BOTH = net("i = Cast<to = 7>(x) y = Identity(x)", "(float[batch,4] x) => (int64[batch,4] i, float[batch,4] y)")


@pytest.mark.parametrize("task", ["classification", "embedding", "other"])
def test_answers_without_floats_are_judged_by_agreement_whatever_the_task(task: str) -> None:
    reference = (X > 0).astype(np.int64)
    assert [check.metric for check in judge(SIGNS, [reference], task).checks] == ["agreement", "row_difference"]
    reference[0, 0] = 1 - reference[0, 0]
    with pytest.raises(AnswersDiffer, match=r"answers.*FP32.*0.975.*0.99"):
        judge(SIGNS, [reference], task)


def test_text_goes_in_and_comes_out() -> None:
    words = np.array([["grüße"], ["b"], [""], ["d"]])
    data = Dataset("x", {"x": words}, None)
    assert judge(WORDS, [words.astype(object)], "other", data=data).checks[0].value == 1
    with pytest.raises(AnswersDiffer, match=r"agree beside FP32 is 0.75"):
        judge(WORDS, [np.array([["gruesse"], ["b"], [""], ["d"]], object)], "other", data=data)


def test_decisions_beside_numbers_are_judged_too() -> None:
    whole = X.astype(np.int64)
    assert [c.metric for c in judge(BOTH, [whole, X], "other").checks[:4]] == [
        "noise_ratio",
        "relative_error",
        "absolute_error",
        "agreement",
    ]
    with pytest.raises(AnswersDiffer, match=r"agree.*FP32.*0"):
        judge(BOTH, [whole + 1, X], "other")


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_model_without_a_batch_dimension_is_judged_row_by_row() -> None:
    model = net("y = Softmax<axis = 0>(x)", "(float[4] x) => (float[4] y)")
    expected = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
    gate = judge(model, [expected], "classification", max_batch_size=0)
    assert gate.batch_sizes == ()
    assert [check.metric for check in gate.checks] == ["agreement", "probability_difference"]


def test_fewer_rows_than_a_batch_are_repeated_so_that_the_record_says_what_was_run() -> None:
    sizes: list[int] = []

    def run(inputs: Arrays) -> list[NDArray[Any]]:
        sizes.append(len(inputs["x"]))
        return [inputs["x"]]

    few = Dataset("x", {"x": X[:5]}, None)
    gate = judge(IDENTITY, [X[:5]], "other", data=few, max_batch_size=16, run=run)
    assert gate.batch_sizes == (1, 3, 16)
    assert set(sizes) == {5, 1, 3, 16}


def test_a_batch_of_one_at_most_has_no_neighbours_to_leak_to() -> None:
    gate = judge(IDENTITY, [X], "other", max_batch_size=1)
    assert gate.batch_sizes == (1,)
    assert gate.checks[-1].value == 0


def test_dynamic_quantisation_may_round_by_the_batch_and_a_plain_leak_may_not() -> None:
    quantised = net(
        "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", "(float[batch,4] x) => (float[batch,4] y)"
    )
    gate = judge(quantised, [X], "other", limits=Limits(max_relative_error=1, max_noise_ratio=1))
    check = gate.checks[-1]
    assert (check.metric, check.limit) == ("row_difference", 0.1)
    assert 0.001 < check.value < 0.1
    leaking = net(
        "m = ReduceMean<keepdims = 1>(x, axis) l = Mul(m, little) y = Add(x, l)",
        "(float[batch,4] x) => (float[batch,4] y)",
        axis=np.array([0]),
        little=0.01,
    )
    with pytest.raises(RowsDiffer, match=r"changes.*0\.0\d+.*0\.001"):
        judge(leaking, [X], "other")


def test_half_precision_has_its_own_last_digit() -> None:
    half = net(
        "h = Cast<to = 10>(x) w = Mul(h, one) y = Cast<to = 1>(w)",
        "(float[batch,4] x) => (float[batch,4] y)",
        one=np.array([1], np.float16),
    )
    assert judge(half, [X], "other").checks[-1].limit == 0.01


def test_data_that_the_model_does_not_take_is_no_batch_that_fails() -> None:
    """Row 0 fails alone too: an index beyond the table, not a batch dimension that is fixed."""
    lookup = net("y = Gather(table, x)", "(int64[batch,1] x) => (float[batch,1,2] y)", table=np.zeros((3, 2)))
    data = Dataset("x", {"x": np.array([[7], [1], [2]])}, None)
    with pytest.raises(CannotRun, match=r"m-int8.*1.*indices"):
        judge(lookup, [np.zeros((3, 1, 2), np.float32)], "other", data=data)


def test_answers_that_lose_their_rows_are_refused() -> None:
    summed = net("y = ReduceSum<keepdims = 1>(x, axis)", "(float[batch,4] x) => (float[one,4] y)", axis=np.array([0]))
    with pytest.raises(RowsDiffer, match=r"8.*output.*0.*1.*8"):
        judge(summed, [X], "other")


# -- other engines, no data, random weights ---------------------------------------------------------------------------


def test_another_engine_can_stand_in_and_is_judged_like_the_rest() -> None:
    def rough(inputs: Arrays) -> list[NDArray[Any]]:
        return [(inputs["x"].view(np.uint32) & 0xFFFF0000).view(np.float32)]  # BF16 keeps the upper half

    gate = judge(IDENTITY, [X], "embedding", run=rough)
    assert 0.999 < gate.checks[1].value < 1
    assert gate.checks[-1].limit == 0.1

    def wrong(inputs: Arrays) -> list[NDArray[Any]]:
        return [-inputs["x"]]

    with pytest.raises(AnswersDiffer, match="the mean cosine"):
        judge(IDENTITY, [X], "embedding", run=wrong)


def test_an_ungated_variant_has_no_numbers_but_still_answers_row_by_row() -> None:
    gate = accuracy.ungated("m-int8", SOFTMAX, {"x": X}, 8)
    assert (gate.basis, gate.checks, gate.num_samples, gate.batch_sizes) == ("nothing", (), 0, (1, 3, 8))
    assert gate.headline is None
    logarithm = net("y = Log(x)", "(float[batch,4] x) => (float[batch,4] y)")
    with pytest.raises(NonFinite, match=r"NaN.*infinite.*made-up"):
        accuracy.ungated("m-int8", logarithm, {"x": X}, 8)


def test_random_weights_are_told_and_not_judged() -> None:
    gate = accuracy.untrained("m-int8", IDENTITY, shaken(5), {"x": X}, 8)
    assert gate.basis == "untrained: speed only"
    assert [(check.metric, check.limit) for check in gate.checks] == [
        ("noise_ratio", None),
        ("relative_error", None),
        ("absolute_error", None),
        ("row_difference", 0.001),
    ]
    with pytest.raises(NonFinite):
        accuracy.untrained("m-int8", net("y = Log(x)", "(float[batch,4] x) => (float[batch,4] y)"), [X], {"x": X}, 8)


def test_every_gate_can_be_written_into_a_record() -> None:
    for gate in (
        judge(IDENTITY, [X], "embedding"),
        accuracy.ungated("m", SOFTMAX, {"x": X}, 8),
        accuracy.untrained("m", IDENTITY, [X], {"x": X}, 8),
    ):
        assert all(type(check.value) is float for check in gate.checks)


def test_a_metric_of_the_users_comes_first_and_decides() -> None:
    def halves(reference: Any, answers: Any, labels: Any) -> dict[str, tuple[float, float, bool]]:
        return {"halves": (float((answers[0] > 0).mean() - (reference[0] > 0).mean()), 0.1, False)}

    gate = judge(IDENTITY, [X], "other", metric=halves)
    assert (gate.checks[0].metric, gate.checks[0].limit, gate.checks[0].is_default_limit) == ("halves", 0.1, False)

    def never(reference: Any, answers: Any, labels: Any) -> dict[str, tuple[float, float, bool]]:
        return {"mine": (float("nan"), 0.1, False)}

    with pytest.raises(AnswersDiffer, match=r"m-int8.*FP32.*0.1.*metric's"):
        judge(IDENTITY, [X], "other", metric=never)


def test_labels_of_a_model_that_decides_several_times_a_row_are_the_users_to_mend() -> None:
    tokens = net("y = Identity(x)", "(float[batch,3,2] x) => (float[batch,3,2] y)")
    values = RANDOM.standard_normal((4, 3, 2)).astype(np.float32)
    data = Dataset("x", {"x": values}, np.zeros(4, int))
    with pytest.raises(UserError, match=r"decides.*3"):
        judge(tokens, [values], "classification", data=data)
