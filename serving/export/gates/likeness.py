"""How far is each row of an answer from another one to the same request, from 0 (alike) to 1, and how far may it be on average?

The gate's own comparisons and limits, row by row, for those who watch served answers: a gateway that has a request answered twice, and a
server that answers its kept rows when it starts. Nothing of ONNX is needed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export.gates import metrics
from serving.export.gates.limits import RULES
from serving.export.gates.tasks import Rows, comparable, measure
from serving.repository import (
    CLASSIFICATION,
    DETECTION,
    EMBEDDING,
    MULTI_LABEL,
    QUESTION_ANSWERING,
    SEGMENTATION,
    TOKEN_CLASSIFICATION,
    Gate,
)

Array = NDArray[Any]
Outputs = Sequence[Array]

AGREEMENT, COSINE, NOISE = "agreement", "cosine_mean", "noise_ratio"
# Of each task the metric whose mean over rows is the gate's number; of all others, of which one row says little, the noise beside FP32's.
METRICS = {
    CLASSIFICATION: AGREEMENT,
    QUESTION_ANSWERING: AGREEMENT,
    EMBEDDING: COSINE,
    MULTI_LABEL: "f1_agreement",
    TOKEN_CLASSIFICATION: "span_agreement",
    DETECTION: "box_agreement",
    SEGMENTATION: "mask_agreement",
}


def losses(task: str, answers: Outputs, reference: Outputs) -> list[float]:
    """Of each row. Both are all outputs, [n, …]; what cannot be compared (other shapes, NaN) is 1. No outputs, no rows."""
    if not (outputs := reference or answers):
        return []
    worst = [1.0] * len(outputs[0])
    if len(answers) != len(reference):
        return worst
    answers, reference = comparable(task, answers, reference)
    if any(ours.shape != theirs.shape for ours, theirs in zip(answers, reference, strict=True)):
        return worst
    is_measured = task == QUESTION_ANSWERING  # which decides by two outputs together
    of_rows = _measured(task) if is_measured else _OF_ROWS.get(_metric(task, reference), _measured(task))
    found = of_rows(answers, reference)
    finite = np.all([_are_finite(values) for values in (*answers, *reference)], axis=0)
    return [float(value) if is_finite else 1.0 for value, is_finite in zip(np.clip(found, 0, 1), finite, strict=True)]


def most(task: str, gate: Gate | None = None) -> float:
    """That the mean of rows may be off, 0..1: by the gate's limit for all, or beyond what it recorded of this variant."""
    rule = RULES[METRICS.get(task, NOISE)]
    assert rule.default is not None
    return (1 - rule.default if rule.is_minimum else rule.default) + (recorded(task, gate) if gate else 0.0)


def recorded(task: str, gate: Gate) -> float:
    """How far a variant was from FP32 when its gate was run, 0..1; 0 where the record does not say."""
    rule = RULES[metric := METRICS.get(task, NOISE)]
    check = gate.check(metric)
    if check is None or gate.reference != "fp32":  # FP32 itself was compared with its framework
        return 0.0
    return float(np.clip(1 - check.value if rule.is_minimum else check.value, 0, 1))


def _metric(task: str, reference: Outputs) -> str:
    """Decisions are compared as such, whatever the task."""
    if all(values.dtype.kind != "f" for values in reference):
        return METRICS[task] if task in (TOKEN_CLASSIFICATION, SEGMENTATION) else AGREEMENT
    return METRICS.get(task, NOISE)


def _floats(reference: Outputs) -> int:
    return next((index for index, values in enumerate(reference) if values.dtype.kind == "f"), 0)


def _differ(answers: Outputs, reference: Outputs) -> Array:
    index = _floats(reference)
    ours, theirs = (metrics.decisions(values[index], reference[index]) for values in (answers, reference))
    return np.asarray((ours != theirs).reshape(len(ours), -1).any(axis=1), dtype=np.float64)


def _distances(answers: Outputs, reference: Outputs) -> Array:
    index = _floats(reference)
    return np.asarray(1 - metrics.cosines(answers[index], reference[index]))


def _noise(answers: Outputs, reference: Outputs) -> Array:
    """Of each row's worst output of floats, beside the numbers' own size."""
    floats = [(a, b) for a, b in zip(answers, reference, strict=True) if b.dtype.kind == "f"]
    each = [
        [metrics.noise_ratio(ours[row : row + 1], theirs[row : row + 1]) for row in range(len(theirs))]
        for ours, theirs in floats
    ]
    return np.asarray(np.max(each, axis=0))


def _measured(task: str) -> Callable[[Outputs, Outputs], Array]:
    """By the gate's first number of the task, of each row by itself."""

    def of_rows(answers: Outputs, reference: Outputs) -> Array:
        found = []
        for row in range(len(reference[0])):
            ours, theirs = ([values[row : row + 1] for values in outputs] for outputs in (answers, reference))
            try:
                found.append(1 - measure(Rows(task), ours, theirs)[0].value)
            except UserError:  # outputs that do not fit the task
                found.append(_noise(ours, theirs)[0])
        return np.asarray(found)

    return of_rows


_OF_ROWS: dict[str, Callable[[Outputs, Outputs], Array]] = {AGREEMENT: _differ, COSINE: _distances, NOISE: _noise}


def _are_finite(values: Array) -> Array:
    """bool [n]."""
    if values.dtype.kind != "f":
        return np.ones(len(values), bool)
    return np.asarray(np.isfinite(values).reshape(len(values), -1).all(axis=1))
