"""Every task has numbers of its own: right where a reference library says so, best where nothing changed, refused where labels do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as sklearn_metrics

from serving.errors import GateRefused, UserError
from serving.export import onnx_session
from serving.export.data.dataset import Dataset
from serving.export.gates import accuracy, boxes, metrics, spans
from serving.export.gates.limits import QUALITY, AccuracyLost, AnswersDiffer, Limits, ShapesDiffer
from serving.export.gates.tasks import Rows, comparable, measure
from serving.repository import TASKS, Gate

from .nets import net

Array = NDArray[Any]
N = 24
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


BOXES = np.concatenate(
    [
        np.tile([[0, 0, 10, 10], [20, 20, 40, 30], [50, 5, 60, 25]], (N, 1, 1)) + normal(N, 3, 1),
        np.tile([[[0.9], [0.8], [0.1]]], (N, 1, 1)),
        np.tile([[[0.0], [1.0], [1.0]]], (N, 1, 1)),
    ],
    axis=2,
).astype(np.float32)
LABELLED = np.concatenate([BOXES[..., :4], BOXES[..., 5:]], axis=2)[:, :2]

# task -> (FP32's answers, the right labels for them: FP32's own answers, labels of a shape that does not fit)
CASES: dict[str, tuple[list[Array], Any, Any]] = {
    "classification": ([normal(N, 5)], normal(N, 5).argmax(1), np.zeros((N, 2), int)),
    "multi-label": ([normal(N, 4)], (normal(N, 4) > 0).astype(int), np.zeros(N, int)),
    "regression": ([normal(N, 2)], normal(N, 2), normal(N, 3)),
    "reranking": ([normal(N, 1)], normal(N, 1).ravel() - normal(N, 1).min(), normal(N, 3)),
    "token-classification": ([normal(N, 6, 3)], normal(N, 6, 3).argmax(2), np.zeros((N, 5), int)),
    "question-answering": (
        [normal(N, 9), normal(N, 9)[::-1].copy()],
        spans.best_answers(normal(N, 9), normal(N, 9)[::-1], np.ones((N, 9), bool)),
        np.zeros(N, int),
    ),
    "detection": ([BOXES], LABELLED, np.zeros((N, 5))),
    "segmentation": ([normal(N, 3, 8, 8)], normal(N, 3, 8, 8).argmax(1), np.zeros((N, 8), int)),
    "anomaly": ([normal(N, 1)], (normal(N, 1).ravel() < 0).astype(int), np.zeros((N, 2), int)),
}


def test_every_task_is_here_or_older() -> None:
    assert {*CASES, "embedding", "other"} == set(TASKS)


@pytest.mark.parametrize("task", CASES)
def test_what_did_not_change_is_the_best_of_its_task_and_noise_is_not(task: str) -> None:
    reference, labels, _ = CASES[task]
    for given in (None, labels):
        found = measure(Rows(task, given), reference, reference)
        first = found[0]
        assert first.value == pytest.approx(1)
        assert (first.metric in QUALITY) is (given is not None)
        assert first.reference == (pytest.approx(1) if given is not None else None)
        assert all(Limits().check(m.metric, m.value, m.reference, is_judged=m.is_judged).has_passed for m in found)
        spoilt = [values + 3 * RANDOM.standard_normal(values.shape).astype(np.float32) for values in reference]
        worse = measure(Rows(task, given), spoilt, reference)
        assert worse[0].value < 0.9
        assert not Limits().check(worse[0].metric, worse[0].value, worse[0].reference).has_passed


@pytest.mark.parametrize("task", CASES)
def test_labels_that_do_not_fit_the_task_are_the_users_to_mend(task: str) -> None:
    reference, _, wrong = CASES[task]
    with pytest.raises(UserError, match="labels"):
        measure(Rows(task, wrong), reference, reference)


@pytest.mark.parametrize("task", ["token-classification", "question-answering", "detection", "segmentation", "anomaly"])
def test_outputs_that_do_not_fit_the_task_are_named_with_the_way_out(task: str) -> None:
    with pytest.raises(UserError, match=rf"{task}.*float32 \['n', 7\].*--task other"):
        measure(Rows(task), [normal(N, 7)], [normal(N, 7)])


# -- against a reference library, and by hand -------------------------------------------------------------------------


def test_f1_r2_and_iou_are_scikit_learns() -> None:
    true, ours = RANDOM.random((50, 4)) > 0.6, RANDOM.random((50, 4)) > 0.5
    assert metrics.micro_f1(ours, true) == pytest.approx(sklearn_metrics.f1_score(true, ours, average="micro"))
    a, b = normal(50, 3), normal(50, 3) + 0.3 * normal(3, 50).T
    each = sklearn_metrics.r2_score(b, a, multioutput="raw_values")
    assert metrics.r2(a, b) == pytest.approx(each.min())
    classes, masks = RANDOM.integers(0, 4, (3, 9, 9)), RANDOM.integers(0, 4, (3, 9, 9))
    jaccard = sklearn_metrics.jaccard_score(classes.ravel(), masks.ravel(), average="macro")
    assert metrics.mean_iou(masks, classes, 4) == pytest.approx(jaccard)


def test_precision_over_recall_is_averaged_as_in_voc() -> None:
    """Two true boxes; the detections, by score: right, a second one on the same box, wrong, right."""

    def of(*rows: tuple[float, ...]) -> boxes.Boxes:
        table = np.array(rows, np.float64)
        return boxes.Boxes(table[:, :4], table[:, 4], table[:, 5].astype(int))

    true = [of((0, 0, 10, 10, 1, 0), (20, 20, 30, 30, 1, 0))]
    found = [
        of((0, 0, 10, 9, 0.9, 0), (0, 0, 9, 10, 0.8, 0), (50, 50, 60, 60, 0.7, 0), (20, 20, 30, 30, 0.6, 0)),
    ]
    assert boxes.mean_average_precision(found, true) == pytest.approx(0.5 * 1 + 0.5 * 2 / 4)
    assert boxes.mean_average_precision([of((0, 0, 10, 4, 0.9, 0))], true) == 0  # an overlap of 0.4
    apart = [values for part in (BOXES[..., :4], BOXES[..., 5], BOXES[..., 4]) for values in (part,)]
    assert [one.classes.tolist() for one in boxes.Layout.of(apart).read(apart)] == [[0, 1, 1]] * N


PADDLE = [5, 4, 0, 1, 2, 3]  # class, score, corners
FILLED = np.concatenate([BOXES, np.full((N, 2, 6), -1.0), np.zeros((N, 1, 6))], axis=1).astype(np.float32)
OTHER_FILLED = np.concatenate([BOXES, np.tile([0.0, 0, 0, 0, 0, -1], (N, 2, 1))], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    "output",
    [given[..., order] for order in (slice(None), PADDLE) for given in (BOXES, FILLED, OTHER_FILLED)],
    ids=[
        f"{order}, {fill}" for order in ("Ultralytics", "PaddleDetection") for fill in ("whole", "-1 and 0", "class -1")
    ],
)
def test_the_order_of_columns_is_read_from_what_they_hold(output: Array) -> None:
    read = boxes.Layout.of([output]).read([output])
    for one, wanted in zip(read, BOXES.astype(np.float64), strict=True):
        assert one.corners.tolist() == wanted[:, :4].tolist()
        assert (one.scores.tolist(), one.classes.tolist()) == (wanted[:, 4].tolist(), wanted[:, 5].tolist())


@pytest.mark.parametrize("least", [0.5, 0.75])
def test_a_detector_that_writes_class_and_score_first_is_judged_by_its_boxes(least: float) -> None:
    """As PaddleDetection does, with the number of boxes of each image beside them; the labels are corners and classes as always."""

    def paddle(above: float) -> bytes:
        return net(
            """is = Greater(x, least)  on = NonZero(is)  place = Transpose<perm = [1, 0]>(on)  low = Cast<to = 1>(place)
               high = Add(low, two)  scores = GatherND(x, place)  column = Unsqueeze(scores, axes)  none = Mul(column, zero)
               boxes = Concat<axis = 1>(none, column, low, high)  shape = Shape(scores)  number = Cast<to = 6>(shape)""",
            "(float[8, 8] x) => (float[k, 6] boxes, int32[1] number)",
            least=above,
            two=2.0,
            zero=0.0,
            axes=[1],
        )

    images, labels = spotted(N)
    data = Dataset("images", {"x": images}, labels)
    reference = onnx_session.answers(paddle(0.5), data.inputs, 0)
    if least == 0.5:
        check = accuracy.judge("m-int8", paddle(least), reference, "fp32", data, "detection", 0).checks[0]
        assert (check.metric, check.value, check.reference) == ("map_50", 1, 1)
        return
    with pytest.raises(AccuracyLost, match="mAP"):
        accuracy.judge("m-int8", paddle(least), reference, "fp32", data, "detection", 0)


def test_six_columns_without_scores_and_classes_are_no_boxes() -> None:
    with pytest.raises(UserError, match="score"):
        boxes.Layout.of([np.abs(normal(N, 3, 6)) * 3])


def finder(least: float) -> bytes:
    """x [8, 8] -> a box of 2 × 2 for each pixel above `least`, its score and class 0: as many as there are."""
    return net(
        """is = Greater(x, least)  on = NonZero(is)  place = Transpose<perm = [1, 0]>(on)  low = Cast<to = 1>(place)
           high = Add(low, two)  boxes = Concat<axis = 1>(low, high)  scores = GatherND(x, place)
           none = Mul(scores, zero)  classes = Cast<to = 7>(none)""",
        "(float[8, 8] x) => (float[k, 4] boxes, float[k] scores, int64[k] classes)",
        least=least,
        two=2.0,
        zero=0.0,
    )


def spotted(num_images: int) -> tuple[Array, Array]:
    """Images with 0 to 3 spots of 0.9, 0.8 and 0.7, all with a weak one of 0.1; labels [n, 3, 5] of the three."""
    images, labels = np.zeros((num_images, 8, 8), np.float32), np.full((num_images, 3, 5), -1.0)
    for number in range(num_images):
        images[number, 1, 5] = 0.1
        for spot, (row, column) in enumerate([(1, 1), (5, 1), (5, 5)][: number % 4]):
            images[number, row, column] = 0.9 - 0.1 * spot
            labels[number, spot] = row, column, row + 2, column + 2, 0
    return images, labels


@pytest.mark.parametrize("has_labels", [False, True])
@pytest.mark.parametrize(
    ("least", "passes"),
    [(0.5, True), (0.05, True), (0.75, False), (0.95, False)],
    ids=["the same", "a weak one more", "one less", "none at all"],
)
def test_a_model_that_finds_another_number_of_boxes_is_judged_by_them(
    least: float, passes: bool, has_labels: bool
) -> None:
    images, labels = spotted(N)
    data = Dataset("images", {"x": images}, labels if has_labels else None)
    reference = onnx_session.answers(finder(0.5), data.inputs, 0)
    assert reference[0].shape == (N, 3, 4)

    def gate() -> Gate:
        return accuracy.judge("m-int8", finder(least), reference, "fp32", data, "detection", 0)

    if passes:
        first = gate().checks[0]
        assert (first.metric, first.value) == ("map_50" if has_labels else "box_agreement", 1)
        return
    with pytest.raises((AccuracyLost, AnswersDiffer), match=r"mAP|boxes"):
        gate()
    with pytest.raises(ShapesDiffer):  # of another task nobody knows that the rows are boxes
        accuracy.judge("m-int8", finder(least), reference, "fp32", data, "other", 0)


@pytest.mark.parametrize("num_classes", [1, 4])
def test_rows_that_are_no_boxes_are_never_filled_up(num_classes: int) -> None:
    boxes_of, scores = normal(N, 3, 4), np.abs(normal(N, 3, num_classes))
    other = [boxes_of, scores[..., :1] if num_classes > 1 else np.abs(normal(N, 3, 2))]
    with_others = comparable("detection", other, [boxes_of, scores])
    assert [values.shape for values in with_others[0]] != [values.shape for values in with_others[1]]


def test_where_nothing_was_found_there_is_nothing_to_find() -> None:
    nothing = [np.zeros((N, 0, 4), np.float32), np.zeros((N, 0), np.float32), np.zeros((N, 0), np.int64)]
    assert measure(Rows("detection"), nothing, nothing)[0].value == 1
    found = onnx_session.answers(finder(0.5), {"x": spotted(N)[0]}, 0)
    assert measure(Rows("detection"), *comparable("detection", found, nothing))[0].value == 0


NAMES = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG")


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ([0, 1, 2, 0], {(1, 3, "PER")}),
        ([1, 1, 2, 4], {(0, 1, "PER"), (1, 3, "PER"), (3, 4, "ORG")}),
        ([2, 2, 0, 4], {(0, 2, "PER"), (3, 4, "ORG")}),  # I- without a beginning, as CoNLL-2000 reads it
        ([0, 0, 0, 0], set()),
    ],
)
def test_spans_begin_and_end_as_conll_reads_them(tags: list[int], found: set[Any]) -> None:
    row = np.array([tags])
    assert spans.tagged(row, NAMES, 0, np.ones_like(row, bool)) == {(0, *span) for span in found}


def test_what_the_mask_hides_is_no_answer() -> None:
    inputs = {"attention_mask": np.array([[1, 1, 1, 0]]), "token_type_ids": np.array([[0, 1, 1, 1]])}
    start, end = np.array([[9.0, 1, 0, 8]]), np.array([[0.0, 1, 2, 9]])
    labels = np.array([[1, 2]])
    found = measure(Rows("question-answering", labels, inputs=inputs), [start, end], [start, end])
    assert (found[0].metric, found[0].value) == ("exact_match", 1)


def test_documents_of_different_queries_are_never_compared() -> None:
    reference = [np.array([3.0, 2, 1, 30, 20, 10])[:, None]]
    answers = [np.array([30.0, 20, 10, 3, 2, 1])[:, None]]
    labels = np.array([[0, 2], [0, 1], [0, 0], [1, 2], [1, 1], [1, 0]])
    assert [m.value for m in measure(Rows("reranking", labels), answers, reference)] == [1, 1, 1]
    assert measure(Rows("reranking"), answers, reference)[0].value < 0


# -- the defaults -----------------------------------------------------------------------------------------------------


def judged(task: str, answers: Array, reference: Array, *, ends_in_sigmoid: bool = False) -> Gate:
    """The gate of a net that gives its input back, through a sigmoid or not."""
    shape = ", ".join(["batch", *map(str, reference.shape[1:])])
    body, values = "y = Identity(x)", answers
    if ends_in_sigmoid:
        body, values = "y = Sigmoid(x)", np.log(answers / (1 - answers))
    model = net(body, f"(float[{shape}] x) => (float[{shape}] y)")
    data = Dataset("rows", {"x": values.astype(np.float32)}, None)
    return accuracy.judge("m-int8", model, [reference.astype(np.float32)], "fp32", data, task, 8)


TINY = 1e-4 * (1 + RANDOM.random((N, 3)))


@pytest.mark.parametrize(
    ("task", "answers", "reference", "ends_in_sigmoid", "passes"),
    [
        pytest.param("other", TINY + 0.03, TINY, True, True, id="probabilities of 1e-4 that moved by 0.03 (311 times)"),
        pytest.param("other", TINY + 0.36, TINY, True, False, id="probabilities that moved by 0.36"),
        pytest.param("other", TINY * 1.02, TINY, False, True, id="numbers of 1e-4 that are off by a fiftieth"),
        pytest.param("other", TINY + 0.03, TINY, False, False, id="numbers of 1e-4 that are off by 0.03"),
        pytest.param("regression", TINY + 1e-6, TINY, False, True, id="a regression of 1e-4 within its spread"),
        pytest.param("regression", TINY + 1e-4, TINY, False, False, id="a regression of 1e-4 off by itself"),
    ],
)
def test_defaults_judge_by_the_size_of_numbers_and_by_how_far_a_probability_moved(
    task: str, answers: Array, reference: Array, ends_in_sigmoid: bool, passes: bool
) -> None:
    if passes:
        judged(task, answers, reference, ends_in_sigmoid=ends_in_sigmoid)
        return
    with pytest.raises(GateRefused):
        judged(task, answers, reference, ends_in_sigmoid=ends_in_sigmoid)


def test_a_channel_that_is_nearly_off_is_judged_by_its_output_and_in_regression_by_itself() -> None:
    reference = np.concatenate([normal(N, 3), 1e-4 * normal(N, 1)], axis=1)
    answers = reference + 0.03 * normal(N, 4)
    judged("other", answers, reference)
    with pytest.raises(GateRefused, match="R²"):
        judged("regression", answers, reference)


@pytest.mark.parametrize("task", ["classification", "multi-label"])
def test_a_probability_that_moved_by_a_third_is_refused(task: str) -> None:
    reference = np.full((N, 2), [0.95, 0.05])
    answers = reference.copy()
    answers[3] = [0.59, 0.41]
    with pytest.raises(GateRefused, match=r"0\.36"):
        judged(task, answers, reference)
