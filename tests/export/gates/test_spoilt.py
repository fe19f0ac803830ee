"""A spoilt digits variant is refused with its own reason, or is the user's to mend; a sound one passes with its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from serving.errors import TandemError, UserError, exit_code
from serving.export import onnx_session
from serving.export.data.dataset import Dataset
from serving.export.gates import accuracy, file, limits
from serving.export.gates.file import Interface
from serving.export.gates.limits import (
    AccuracyLost,
    AnswersDiffer,
    AnswersMoved,
    Limits,
    NonFinite,
    RowsDiffer,
    ShapesDiffer,
)
from serving.repository import Gate, Repository

from .. import spoil
from ..conftest import COMMITTED

LOOSE = Limits(max_drop=1, max_probability_difference=1)


@pytest.fixture(scope="session")
def reference(fp32: bytes, held_out: Dataset, interface: Interface) -> list[np.ndarray]:
    return onnx_session.answers(fp32, held_out.inputs, interface.max_batch_size)


@pytest.fixture
def judged(reference: list[np.ndarray], held_out: Dataset, interface: Interface) -> Callable[..., Gate]:
    """The whole way of a variant: its file, then its answers."""

    def judge(model: bytes, limits: Limits | None = None, data: Dataset = held_out) -> Gate:
        file.check_file("digits-int8", model, interface)
        answers = [values[: data.num_samples] for values in reference]
        size = interface.max_batch_size
        return accuracy.judge("digits-int8", model, answers, "fp32", data, "classification", size, limits)

    return judge


SPOILT: list[tuple[type[TandemError], Callable[[bytes], bytes], str]] = [
    (AccuracyLost, spoil.perturbed, r"top1 0\.\d+ is 0\.\d+ below FP32's 0\.98\d+, more than 0\.01"),
    (NonFinite, lambda model: spoil.with_weight(model, math.nan), "1 NaN or infinite values in weight '0.0.weight'"),
    (NonFinite, lambda model: spoil.with_weight(model, math.inf), "1 NaN or infinite values in weight"),
    (NonFinite, lambda model: spoil.with_weight(model, -math.inf), "1 NaN or infinite values in weight"),
    (NonFinite, spoil.with_nan_answers, "4500 NaN or infinite values in its answers on the held-out data"),
    (RowsDiffer, spoil.with_fixed_batch, "in a batch of 32 it fails"),
    (RowsDiffer, spoil.with_leaking_batch, r"in a batch of \d+ a row changes by"),
]


@pytest.mark.parametrize(
    ("refusal", "spoiler", "says"), SPOILT, ids=[f"{r.__name__}-{i}" for i, (r, _, _) in enumerate(SPOILT)]
)
def test_a_spoilt_variant_is_refused_with_its_reason(
    fp32: bytes, judged: Callable[..., Gate], refusal: type[TandemError], spoiler: Callable[[bytes], bytes], says: str
) -> None:
    with pytest.raises(refusal, match=says) as caught:
        judged(spoiler(fp32))
    assert exit_code(caught.value) == 1
    assert str(caught.value).startswith("digits-int8 refused: ")
    assert "\n" not in str(caught.value)


def test_every_refusal_of_the_gates_is_known_here() -> None:
    found = {one for one in limits.Refusal.__subclasses__() if one.__module__ == limits.__name__}
    elsewhere = {limits.FrameworkDiffers, limits.NotDynamic, limits.Degenerate}  # test_graph.py
    elsewhere |= {limits.TypeNotProven}  # of a card
    assert found == {r for r, _, _ in SPOILT} | {AnswersMoved, AnswersDiffer, ShapesDiffer} | elsewhere


@pytest.mark.parametrize(
    ("spoiler", "says"),
    [
        pytest.param(lambda _: b"", "not a sound ONNX file", id="empty"),
        pytest.param(lambda _: b"GIF89a", "not a sound ONNX file", id="no ONNX"),
        pytest.param(lambda model: model[: len(model) // 2], "not a sound ONNX file", id="cut off"),
        pytest.param(spoil.with_later_ir, "IR version 11, servers read at most 10", id="too new"),
        pytest.param(spoil.with_weights_elsewhere, "weights lie in another file", id="weights in another file"),
        pytest.param(spoil.with_renamed_input, "inputs are picture; FP32 has image", id="another name"),
        pytest.param(
            spoil.with_fp64_output, r"output 'probabilities' is tensor\(double\) \[10\] a row", id="another type"
        ),
    ],
)
def test_a_file_that_servers_could_not_load_is_the_users_to_mend(
    fp32: bytes, judged: Callable[..., Gate], spoiler: Callable[[bytes], bytes], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        judged(spoiler(fp32))
    assert exit_code(caught.value) == 2
    assert "\n" not in str(caught.value)


def test_a_sound_variant_passes_with_every_number_and_its_limit(
    fp32: bytes, judged: Callable[..., Gate], held_out: Dataset
) -> None:
    gate = judged(fp32)
    top1 = float(Repository(COMMITTED).variant("digits-fp32").record.gate.checks[0].value)
    assert [(check.metric, check.limit, check.reference) for check in gate.checks] == [
        ("top1", pytest.approx(top1 - 0.01), pytest.approx(top1)),
        ("agreement", None, None),  # labels judge better
        ("probability_difference", 0.25, None),
        ("row_difference", 0.001, None),
    ]
    assert all(check.is_default_limit and check.has_passed for check in gate.checks)
    assert (gate.basis, gate.reference, gate.num_samples, gate.batch_sizes) == ("labels", "fp32", 450, (1, 3, 32))
    assert (gate.dataset, gate.dataset_digest) == (held_out.name, held_out.digest)


def test_without_labels_agreement_decides(fp32: bytes, judged: Callable[..., Gate], held_out: Dataset) -> None:
    unlabelled = replace(held_out, labels=None)
    gate = judged(fp32, data=unlabelled)
    assert (gate.basis, gate.headline.metric if gate.headline else "") == ("agreement", "agreement")
    with pytest.raises(AnswersDiffer, match=r"answers.*FP32.*0\.\d+.*0\.99"):
        judged(spoil.perturbed(fp32), data=unlabelled)


def test_a_chosen_agreement_decides_beside_labels_too(fp32: bytes, judged: Callable[..., Gate]) -> None:
    shaken = spoil.perturbed(fp32, scale=0.3)
    gate = judged(shaken, Limits(max_drop=1, max_probability_difference=1))
    agreement = gate.check("agreement")
    assert agreement is not None
    assert agreement.limit is None
    chosen = Limits.chosen({"max_drop": 1, "max_probability_difference": 1, "min_agreement": 1})
    with pytest.raises(AnswersDiffer, match=r"below.*1.*--min-agreement"):
        judged(shaken, chosen)


def test_a_variant_whose_probabilities_moved_too_far_is_refused_though_its_top1_is_good(
    fp32: bytes, judged: Callable[..., Gate]
) -> None:
    shaken = spoil.perturbed(fp32, scale=0.1)
    with pytest.raises(AnswersMoved, match=r"probability.*0\.\d+.*FP32's.*0.001"):
        judged(shaken, Limits(max_drop=1, max_probability_difference=0.001))
    judged(shaken, LOOSE)


def test_the_allowed_drop_is_what_decides(fp32: bytes, judged: Callable[..., Gate]) -> None:
    spoilt = spoil.perturbed(fp32)
    judged(spoilt, LOOSE)
    with pytest.raises(AccuracyLost):
        judged(spoilt, replace(LOOSE, max_drop=0.01))


def test_the_allowed_row_difference_is_what_decides(fp32: bytes, judged: Callable[..., Gate]) -> None:
    leaking = spoil.with_leaking_batch(fp32)
    judged(leaking, replace(LOOSE, max_row_difference=1))
    with pytest.raises(RowsDiffer):
        judged(leaking, LOOSE)


def test_one_answer_in_a_hundred_may_be_lost_and_not_two(
    fp32: bytes, reference: list[np.ndarray], held_out: Dataset, interface: Interface
) -> None:
    """0.95 - 0.94 is 0.010000000000000009 to a computer."""
    rows = [index for index in range(450) if reference[0][index].argmax() == held_out.labels[index]]  # type: ignore[index]
    picked = np.array(rows[:100])
    inputs = {"image": held_out.inputs["image"][picked]}
    right = reference[0][picked].argmax(axis=1)

    def judge(num_wrong_of_fp32: int, num_wrong: int) -> Gate:
        """Labels that FP32 and the variant (which is FP32 again) get wrong so often."""
        labels = right.copy()
        labels[:num_wrong] = (labels[:num_wrong] + 1) % 10
        theirs = np.eye(10, dtype=np.float32)[right]
        theirs[num_wrong_of_fp32:num_wrong] = np.eye(10)[labels[num_wrong_of_fp32:num_wrong]]
        data = Dataset("x", inputs, labels)
        return accuracy.judge("digits-int8", fp32, [theirs], "fp32", data, "classification", 32, LOOSE_PROBABILITY)

    assert judge(5, 6).checks[0].value == 0.94
    with pytest.raises(AccuracyLost, match=r"top1 0\.9300.*0\.0200.*below.*FP32's 0\.9500.*0\.01"):
        judge(5, 7)


LOOSE_PROBABILITY = Limits(max_probability_difference=1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reference_of_nan_refuses_too(fp32: bytes, held_out: Dataset, interface: Interface, value: float) -> None:
    reference = [np.full((held_out.num_samples, 10), value, np.float32)]
    with pytest.raises(NonFinite, match=r"4500 NaN.*pytorch's.*held-out"):
        accuracy.judge("x", fp32, reference, "pytorch", held_out, "classification", 32)


def test_a_reference_of_another_shape_refuses(fp32: bytes, held_out: Dataset) -> None:
    reference = [np.zeros((held_out.num_samples, 9), np.float32)]
    with pytest.raises(ShapesDiffer, match=r"0.*\[450, 10\].*pytorch's.*\[450, 9\]"):
        accuracy.judge("x", fp32, reference, "pytorch", held_out, "classification", 32)
    with pytest.raises(ShapesDiffer, match=r"0.*\[450, 10\].*pytorch's"):
        accuracy.judge("x", fp32, [], "pytorch", held_out, "classification", 32)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.full(450, 10), r"labels: want 0\.\.9, got 10\.\.10"),
        (np.full(450, 0.5), r"labels: want whole numbers \[n\], got float64 \[450\]"),
        (np.zeros((450, 2), int), r"labels: want whole numbers \[n\], got int64 \[450, 2\]"),
    ],
)
def test_labels_that_are_no_classes_are_the_users_to_mend(
    fp32: bytes, judged: Callable[..., Gate], held_out: Dataset, labels: np.ndarray, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        judged(fp32, data=replace(held_out, labels=labels))
