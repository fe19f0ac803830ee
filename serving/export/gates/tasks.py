"""Which numbers judge a model of which task: first how good it is where labels say what is right, then how like FP32 it is.

The first number is the one that tables show. Where labels judge, likeness is told and not judged, except how far a probability moved.
Rules: everything is read from FP32's answers, so that both are read alike; labels that do not fit the task are the user's to mend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.exported_model import Arrays
from serving.export.gates import boxes, metrics, order, spans
from serving.repository import (
    ANOMALY,
    CLASSIFICATION,
    DETECTION,
    EMBEDDING,
    MULTI_LABEL,
    QUESTION_ANSWERING,
    REGRESSION,
    RERANKING,
    SEGMENTATION,
    TOKEN_CLASSIFICATION,
)

Array = NDArray[Any]
Outputs = Sequence[Array]


@dataclass(frozen=True, slots=True)
class Rows:
    """What the answers are about. `names`: of the classes, where they are known. `where` begins messages about labels that do not fit."""

    task: str
    labels: Array | None = None
    names: tuple[str, ...] | None = None
    inputs: Arrays = field(default_factory=dict)
    where: str = "labels"
    probabilities: frozenset[int] = frozenset()  # the outputs that come out of a sigmoid or softmax


@dataclass(frozen=True, slots=True)
class Measurement:
    """`reference`: the same metric of the reference itself. `is_judged` False: recorded without a limit, because labels judge better."""

    metric: str
    value: float
    reference: float | None = None
    is_judged: bool = True


def measure(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    """Both are all outputs, [n, …] each, as `comparable` gives them. Raises UserError for labels or outputs that do not fit the task."""
    by_task = _TASKS.get(rows.task, _other)
    if all(values.dtype.kind != "f" for values in reference) and by_task not in _DECIDED:
        return [Measurement("agreement", metrics.agreement(answers[0], reference[0]))]
    return by_task(rows, answers, reference)


def comparable(task: str, answers: Outputs, reference: Outputs) -> tuple[Outputs, Outputs]:
    """Returns both in the same shapes where only the number of boxes that were found differs: the fewer are filled up with zeros."""
    return boxes.as_many(answers, reference) if task == DETECTION else (answers, reference)


def _floats(reference: Outputs, num_dimensions: int | None = None) -> list[int]:
    """The outputs of floating-point numbers, or those of them with so many dimensions, the rows' included."""
    indices = [i for i, v in enumerate(reference) if v.dtype.kind == "f"]
    return [i for i in indices if num_dimensions in (None, reference[i].ndim)]


def _decided(reference: Outputs) -> int | None:
    return next((i for i, values in enumerate(reference) if values.dtype.kind != "f"), None)


def _unfit(rows: Rows, reference: Outputs, wanted: str) -> UserError:
    shapes = ", ".join(f"{values.dtype} {['n', *values.shape[1:]]}" for values in reference)
    return UserError(f"task {rows.task}: the model gives {shapes}; want {wanted}, or judge it as --task other")


def _check(rows: Rows, shape: Sequence[int], wanted: str, *, whole: bool = False) -> Array:
    labels = rows.labels
    assert labels is not None
    if labels.shape != tuple(shape) or (whole and labels.dtype.kind not in "iu"):
        raise UserError(
            f"{rows.where}: task {rows.task} wants {wanted}, here {list(shape)}; got {labels.dtype} {list(labels.shape)}"
        )
    return labels


# -- decisions --------------------------------------------------------------------------------------------------------


def _classification(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    index, labels = _floats(reference)[0], rows.labels
    ours, theirs = answers[index], reference[index]
    alike = Measurement("agreement", metrics.agreement(ours, theirs), is_judged=labels is None)
    moved = Measurement("probability_difference", metrics.probability_difference(ours, theirs))
    if labels is None:
        return [alike, moved]
    decided = metrics.decisions(theirs, theirs)
    _check_classes(labels, decided, theirs, rows.where)
    top1 = metrics.top1(metrics.decisions(ours, theirs), labels)
    return [Measurement("top1", top1, metrics.top1(decided, labels)), alike, moved]


def _check_classes(labels: Array, decided: Array, reference: Array, where: str) -> None:
    num_classes = max(2, reference.shape[-1] if reference.ndim > 1 else 1)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{where}: want whole numbers [n], got {labels.dtype} {list(labels.shape)}")
    if decided.shape != (len(labels), 1):
        raise UserError(f"{where}: one a row, but the model decides {decided.shape[1]} times a row; leave them off")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UserError(f"{where}: want 0..{num_classes - 1}, got {labels.min()}..{labels.max()}")


def _multi_label(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    index = _floats(reference)[0]
    theirs = metrics.positives(reference[index], reference[index])
    ours = metrics.positives(answers[index], reference[index])
    each = [values[index].reshape(-1, 1) for values in (answers, reference)]  # every label is a probability of its own
    alike = Measurement("f1_agreement", metrics.micro_f1(ours, theirs), is_judged=rows.labels is None)
    found = [alike, Measurement("probability_difference", metrics.probability_difference(*each))]
    if rows.labels is None:
        return found
    labels = _check(rows, theirs.shape, "0 or 1 for every label, [n, labels]") > 0
    return [Measurement("f1", metrics.micro_f1(ours, labels), metrics.micro_f1(theirs, labels)), *found]


def _token_classification(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    index = next((i for i, v in enumerate(reference) if v.ndim == (3 if v.dtype.kind == "f" else 2)), None)
    if index is None:
        raise _unfit(rows, reference, "scores float [n, length, classes], or classes int [n, length]")
    ours, theirs = (_classes(values[index]) for values in (answers, reference))
    keep, labels = _seen(rows.inputs, theirs.shape), rows.labels
    if labels is not None:
        keep = _check(rows, theirs.shape, "a class for every token, negative where none counts", whole=True) >= 0
    background = int(np.bincount(theirs[keep]).argmax()) if keep.any() else 0
    if labels is not None and keep.any():
        background = int(np.bincount(labels[keep]).argmax())
    a, b = (spans.tagged(tags, rows.names, background, keep) for tags in (ours, theirs))
    alike = Measurement("span_agreement", spans.f1(a, b), is_judged=labels is None)
    if labels is None:
        return [alike]
    true = spans.tagged(labels, rows.names, background, keep)
    return [Measurement("span_f1", spans.f1(a, true), spans.f1(b, true)), alike]


def _classes(values: Array) -> Array:
    return values.argmax(axis=-1) if values.dtype.kind == "f" else values.astype(np.int64)


def _seen(inputs: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    """bool [n, length]: what the attention mask shows."""
    mask = next((values for name, values in inputs.items() if "mask" in name and values.shape == shape), None)
    return np.ones(shape, bool) if mask is None else mask > 0


def _question_answering(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    pair = _floats(reference, 2)[:2]
    both = next((i for i in _floats(reference, 3) if reference[i].shape[2] == 2), None)
    if len(pair) < 2 and both is None:
        raise _unfit(rows, reference, "scores of starts and of ends, float [n, length] each")

    def found(outputs: Outputs) -> Array:
        start, end = (outputs[i] for i in pair) if len(pair) == 2 else np.moveaxis(outputs[both or 0], 2, 0)
        may = _seen(rows.inputs, start.shape)
        kinds = next((v for name, v in rows.inputs.items() if "type" in name and v.shape == start.shape), None)
        return spans.best_answers(start, end, may & (kinds == 1) if kinds is not None and kinds.any() else may)

    ours, theirs = found(answers), found(reference)
    alike = Measurement("agreement", float((ours == theirs).all(axis=1).mean()), is_judged=rows.labels is None)
    if rows.labels is None:
        return [alike]
    true = _check(rows, (len(ours), 2), "the first and the last token of the answer, [n, 2]", whole=True)
    exact = [float((mine == true).all(axis=1).mean()) for mine in (ours, theirs)]
    return [Measurement("exact_match", exact[0], exact[1]), alike]


def _detection(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    layout = boxes.Layout.of(reference)
    ours, theirs = layout.read(answers), layout.read(reference)
    alike = boxes.mean_average_precision(ours, boxes.sure(theirs))
    found = [Measurement("box_agreement", alike, is_judged=rows.labels is None)]
    if rows.labels is None:
        return found
    true = boxes.of_labels(rows.labels, rows.where)
    right = [boxes.mean_average_precision(mine, true) for mine in (ours, theirs)]
    return [Measurement("map_50", right[0], right[1]), *found]


def _segmentation(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    index = next((i for i, v in enumerate(reference) if v.ndim >= 3), None)
    if index is None:
        raise _unfit(rows, reference, "scores float [n, classes, height, width], or classes int [n, height, width]")
    like = reference[index]
    ours, theirs = (_mask(values[index], like) for values in (answers, reference))
    labels = rows.labels
    true = None if labels is None else _check(rows, theirs.shape, "a class for every pixel (255: none)", whole=True)
    seen = [theirs, ours] if true is None else [theirs, ours, np.where(true == _NO_CLASS, 0, true)]
    num_classes = 1 + max(1, *(int(values.max(initial=0)) for values in seen))
    alike = Measurement("mask_agreement", metrics.mean_iou(ours, theirs, num_classes), is_judged=true is None)
    if true is None:
        return [alike]
    true = np.where(true == _NO_CLASS, -1, true.astype(np.int64))
    right = [metrics.mean_iou(mine, true, num_classes) for mine in (ours, theirs)]
    return [Measurement("miou", right[0], right[1]), alike]


_NO_CLASS = 255  # of a pixel that nobody labelled, PASCAL VOC's


def _mask(values: Array, like: Array) -> Array:
    """int [n, height, width]. Classes are in dimension 1, or in the last where that is the smaller one."""
    if like.dtype.kind != "f":
        return np.squeeze(values, 1) if values.ndim == 4 and values.shape[1] == 1 else values.astype(np.int64)
    if like.ndim == 3:
        return metrics.positives(values, like).astype(np.int64)
    axis = -1 if like.shape[-1] < like.shape[1] else 1
    if like.shape[axis] == 1:
        return metrics.positives(np.squeeze(values, axis), like).astype(np.int64)
    return np.asarray(values.argmax(axis=axis))


# -- numbers and orders -----------------------------------------------------------------------------------------------


def _regression(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    indices = _floats(reference)
    worst = min(metrics.r2(answers[i], reference[i]) for i in indices)
    error = max(metrics.relative_error(answers[i], reference[i]) for i in indices)
    alike = [Measurement("r2_agreement", worst), Measurement("relative_error", error)]
    if rows.labels is None:
        return alike
    ours, theirs = answers[indices[0]], reference[indices[0]]
    shape = theirs.shape[:1] if rows.labels.ndim == 1 and theirs[0].size == 1 else theirs.shape
    labels = _check(rows, shape, "the right number of every output").reshape(theirs.shape)
    told = [Measurement(one.metric, one.value, is_judged=False) for one in alike]
    return [Measurement("r2", metrics.r2(ours, labels), metrics.r2(theirs, labels)), *told]


def _reranking(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    ours, theirs = (_column(rows, values[_floats(reference)[0]], reference) for values in (answers, reference))
    labels, queries = rows.labels, np.zeros(len(theirs), np.int64)
    if labels is not None:
        _check(rows, (len(theirs), 2)[: labels.ndim], "[n], how relevant, or [n, 2], which query and how relevant")
        queries, relevance = (labels[:, 0], labels[:, 1]) if labels.ndim == 2 else (queries, labels)
    is_judged = labels is None
    gains = order.gains(theirs, queries)
    alike = [
        Measurement("kendall_tau", order.kendall_tau(ours, theirs, queries), is_judged=is_judged),
        Measurement("ndcg_agreement", order.ndcg(ours, gains, queries), is_judged=is_judged),
    ]
    if labels is None:
        return alike
    if relevance.min() < 0:
        raise UserError(f"{rows.where}: a relevance is {relevance.min():g}, want 0 or more")
    right = [order.ndcg(scores, relevance, queries) for scores in (ours, theirs)]
    return [Measurement("ndcg_at_10", right[0], right[1]), *alike]


def _anomaly(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    ours, theirs = (_column(rows, values[_floats(reference)[0]], reference) for values in (answers, reference))
    labels, index = rows.labels, _decided(reference)
    queries = np.zeros(len(theirs), np.int64)
    alike = [Measurement("kendall_tau", order.kendall_tau(ours, theirs, queries), is_judged=labels is None)]
    if index is not None:
        same = metrics.agreement(answers[index], reference[index])
        alike.append(Measurement("agreement", same, is_judged=labels is None))
    if labels is None:
        return alike
    is_odd = _check(rows, theirs.shape, "1 for what is odd and 0 for what is not, [n]") > 0
    if is_odd.all() or not is_odd.any():
        raise UserError(f"{rows.where}: task anomaly wants rows that are odd (1) and rows that are not (0)")
    sign = (
        1.0 if order.roc_auc(theirs, is_odd) >= 0.5 else -1.0
    )  # scikit-learn's scores are small where something is odd
    right = [order.roc_auc(scores, is_odd, sign) for scores in (ours, theirs)]
    return [Measurement("roc_auc", right[0], right[1]), *alike]


def _column(rows: Rows, values: Array, reference: Outputs) -> Array:
    if values.size != len(values):
        raise _unfit(rows, reference, "one score a row, float [n] or [n, 1]")
    return values.reshape(-1)


def _embedding(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:  # noqa: ARG001  # as every task
    index = _floats(reference)[0]
    found = metrics.cosines(answers[index], reference[index])
    measured = [Measurement("cosine_mean", float(found.mean())), Measurement("cosine_worst", float(np.min(found)))]
    if len(found) > 1:
        measured.append(Measurement("recall_at_10", metrics.neighbour_recall(answers[index], reference[index])))
    return measured


def _other(rows: Rows, answers: Outputs, reference: Outputs) -> list[Measurement]:
    """Probabilities by how far one moved, all other numbers beside what is usual in their output: the worst output counts."""
    numbers, moved, absolute = [], [], []
    for index in _floats(reference):
        ours, theirs = answers[index], reference[index]
        absolute.append(metrics.absolute_error(ours, theirs))
        if index in rows.probabilities:
            is_share, ours, theirs = _share_columns(ours, theirs)
            if is_share.any():
                moved.append(metrics.absolute_error(ours[..., is_share], theirs[..., is_share]))
            if is_share.all():
                continue
            ours, theirs = ours[..., ~is_share], theirs[..., ~is_share]
        error = metrics.relative_error(ours, theirs, is_one_quantity=True)
        numbers.append((metrics.noise_ratio(ours, theirs), error))
    found = [Measurement("noise_ratio", _largest(n for n, _ in numbers))] if numbers else []
    found += [Measurement("relative_error", _largest(e for _, e in numbers))] if numbers else []
    found += [Measurement("probability_difference", _largest(moved))] if moved else []
    found.append(Measurement("absolute_error", _largest(absolute)))
    if (index_of := _decided(reference)) is not None:
        found.append(Measurement("agreement", metrics.agreement(answers[index_of], reference[index_of])))
    return found


def _largest(values: Any) -> float:
    """NaN stays."""
    return float(np.max(list(values)))


def _share_columns(ours: Array, theirs: Array) -> tuple[Array, Array, Array]:
    """(bool [columns]: all of FP32's numbers between 0 and 1, so that they can be probabilities; both with columns last).

    Columns are the last dimension, or the first of a row where none of those is a share: [n, 4 + classes, anchors] of a detector.
    """
    found = np.zeros(1, bool)
    for axis in (-1, 1)[: max(1, theirs.ndim - 1)]:
        a, b = (values[:, None] if values.ndim == 1 else np.moveaxis(values, axis, -1) for values in (ours, theirs))
        flat = b.reshape(-1, b.shape[-1])
        found = np.asarray((flat.min(axis=0) >= 0) & (flat.max(axis=0) <= 1))
        if found.any():
            break
    return found, a, b


_Measure = Callable[[Rows, Outputs, Outputs], list[Measurement]]
_DECIDED: tuple[_Measure, ...] = (_token_classification, _segmentation)  # that also judge classes without scores
_TASKS: Mapping[str, _Measure] = {
    CLASSIFICATION: _classification,
    MULTI_LABEL: _multi_label,
    REGRESSION: _regression,
    EMBEDDING: _embedding,
    RERANKING: _reranking,
    TOKEN_CLASSIFICATION: _token_classification,
    QUESTION_ANSWERING: _question_answering,
    DETECTION: _detection,
    SEGMENTATION: _segmentation,
    ANOMALY: _anomaly,
}
