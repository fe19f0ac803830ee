"""Which numbers tell whether answers are as good as the reference's, by what the model is for.

classification: right answers where labels are known, the same decisions where not. embedding: the same directions and the
same neighbours. other: the same numbers. Computing is `metrics`', limits are `limits`'. Rule: the first number is the one
that tables show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.gates import metrics
from serving.repository import CLASSIFICATION, EMBEDDING


@dataclass(frozen=True, slots=True)
class Measurement:
    """`reference`: the same metric of the reference itself. `is_judged` False: told, because labels judge better."""

    metric: str
    value: float
    reference: float | None = None
    is_judged: bool = True


def measure(
    task: str,
    answers: Sequence[NDArray[Any]],
    reference: Sequence[NDArray[Any]],
    labels: NDArray[Any] | None,
    where: str = "labels",
) -> list[Measurement]:
    """Both are all outputs, [n, …] each, of the same shapes. Labels count for classification alone.

    `where` begins the message about labels that do not fit.
    """
    index = next((i for i, values in enumerate(reference) if values.dtype.kind == "f"), None)
    if index is None:
        return [Measurement("agreement", metrics.agreement(answers[0], reference[0]))]
    if task == CLASSIFICATION:
        return _classification(answers[index], reference[index], labels, where)
    if task == EMBEDDING:
        return _embedding(answers[index], reference[index])
    decided = next((i for i, values in enumerate(reference) if values.dtype.kind != "f"), None)
    numbers = _numbers(answers[index], reference[index])
    if decided is not None:
        numbers.append(Measurement("agreement", metrics.agreement(answers[decided], reference[decided])))
    return numbers


def _classification(
    answers: NDArray[Any], reference: NDArray[Any], labels: NDArray[Any] | None, where: str
) -> list[Measurement]:
    alike = Measurement("agreement", metrics.agreement(answers, reference), is_judged=labels is None)
    moved = Measurement("probability_difference", metrics.probability_difference(answers, reference))
    if labels is None:
        return [alike, moved]
    ours, theirs = metrics.decisions(answers, reference), metrics.decisions(reference, reference)
    _check_labels(labels, theirs, reference, where)
    return [Measurement("top1", metrics.top1(ours, labels), metrics.top1(theirs, labels)), alike, moved]


def _check_labels(labels: NDArray[Any], decided: NDArray[Any], reference: NDArray[Any], where: str) -> None:
    num_classes = max(2, reference.shape[-1] if reference.ndim > 1 else 1)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{where}: want whole numbers [n], got {labels.dtype} {list(labels.shape)}")
    if decided.shape != (len(labels), 1):
        raise UserError(f"{where}: one a row, but the model decides {decided.shape[1]} times a row; leave them off")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UserError(f"{where}: want 0..{num_classes - 1}, got {labels.min()}..{labels.max()}")


def _embedding(answers: NDArray[Any], reference: NDArray[Any]) -> list[Measurement]:
    cosines = metrics.cosines(answers, reference)
    measured = [Measurement("cosine_mean", float(cosines.mean())), Measurement("cosine_worst", float(np.min(cosines)))]
    if len(answers) > 1:
        measured.append(Measurement("recall_at_10", metrics.neighbour_recall(answers, reference)))
    return measured


def _numbers(answers: NDArray[Any], reference: NDArray[Any]) -> list[Measurement]:
    return [
        Measurement("relative_error", metrics.relative_error(answers, reference)),
        Measurement("absolute_error", metrics.absolute_error(answers, reference)),
    ]
