"""Is a variant good enough? Its answers on the data beside the reference's, each number with its limit.

What the numbers are is in `metrics`, how far they may go in `limits`. Speed and publishing are not here. Rule: a comparison
with NaN in it refuses, and the first number beyond its limit is the refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from serving.errors import GateRefused
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, Run
from serving.export.gates import rows
from serving.export.gates.custom import Metric, custom_checks
from serving.export.gates.file import probability_outputs, row_limit
from serving.export.gates.limits import (
    QUALITY,
    ROUGH_ROWS,
    AccuracyLost,
    AnswersDiffer,
    AnswersMoved,
    Limits,
    NonFinite,
    RowsDiffer,
    ShapesDiffer,
    spoken,
)
from serving.export.gates.metrics import count_non_finite
from serving.export.gates.tasks import Rows, comparable, measure
from serving.export.onnx_session import CannotRun, Session, in_batches
from serving.repository import AGREEMENT, LABELS, NOTHING, OTHER, UNTRAINED, Check, Gate

FP32 = "fp32"
Outputs = Sequence[NDArray[Any]]


def judge(
    name: str,
    model: bytes,
    reference: Outputs,
    reference_name: str,
    data: Dataset,
    task: str,
    max_batch_size: int,
    limits: Limits | None = None,
    metric: Metric | None = None,
    run: Run | None = None,
    names: tuple[str, ...] | None = None,
) -> Gate:
    """The gate's record, or a GateRefused.

    `reference`: all outputs of FP32, or of the framework, on the same data, [n, …] each. `run` stands in for the plain CPU
    provider where another engine computes the variant (BF16): one batch of inputs -> all outputs. `names`: of the classes.
    """
    limits, candidate = limits or Limits(), _Candidate(name, model, max_batch_size, run)
    answers, reference = comparable(task, candidate.answers(data.inputs), reference)
    _check_comparable(name, answers, reference, reference_name)
    checks = custom_checks(metric, reference, answers, data.labels) if metric else []
    where = f"{data.name}: labels"
    measured = measure(
        Rows(task, data.labels, names, data.inputs, where, probability_outputs(model)), answers, reference
    )
    checks += [limits.check(m.metric, m.value, m.reference, is_judged=m.is_judged) for m in measured]
    for check in checks:
        if problem := refusal(name, check, reference_name):
            raise problem
    checks += candidate.row_checks(data.inputs, limits)
    return Gate(
        basis=LABELS if any(m.metric in QUALITY for m in measured) else AGREEMENT,
        reference=reference_name,
        checks=tuple(checks),
        num_samples=data.num_samples,
        dataset=data.name,
        dataset_digest=data.digest,
        batch_sizes=rows.batch_sizes(max_batch_size),
    )


def ungated(name: str, model: bytes, inputs: Arrays, max_batch_size: int, run: Run | None = None) -> Gate:
    """The record of a variant without data. It still has to answer, finitely and each row for itself."""
    candidate = _Candidate(name, model, max_batch_size, run)
    _check_finite(name, candidate.answers(inputs), "its answers on made-up inputs")
    candidate.row_checks(inputs, Limits())
    return Gate(NOTHING, FP32, (), 0, "none", "", rows.batch_sizes(max_batch_size))


def untrained(
    name: str, model: bytes, reference: Outputs, inputs: Arrays, max_batch_size: int, run: Run | None = None
) -> Gate:
    """The record of random weights: how far from FP32, without a limit, because no answer of theirs is right."""
    candidate = _Candidate(name, model, max_batch_size, run)
    answers = candidate.answers(inputs)
    _check_comparable(name, answers, reference, FP32)
    checks = [Limits().check(m.metric, m.value, is_judged=False) for m in measure(Rows(OTHER), answers, reference)]
    checks += candidate.row_checks(inputs, Limits())
    data = Dataset("made-up inputs", inputs, None)
    sizes = rows.batch_sizes(max_batch_size)
    return Gate(UNTRAINED, FP32, tuple(checks), data.num_samples, data.name, data.digest, sizes)


def refusal(name: str, check: Check, reference_name: str) -> GateRefused | None:
    """What a check that did not pass is called; None where it passed."""
    if check.has_passed and abs(check.value) < float("inf"):  # without a limit it still has to be a number
        return None
    if check.metric in QUALITY and check.reference is not None and check.limit is not None:
        drop = round(check.reference - check.limit, 6)
        return AccuracyLost(name, check.value, check.reference, drop, reference_name, check.metric)
    if check.metric == "probability_difference" and check.limit is not None:
        return AnswersMoved(name, check.value, check.limit, reference_name)
    return AnswersDiffer(name, check, reference_name)


class _Candidate:
    """A variant as it will run. `run` None: on the plain CPU provider."""

    def __init__(self, name: str, model: bytes, max_batch_size: int, run: Run | None) -> None:
        self._name, self._max_batch_size = name, max_batch_size
        self._run = run or Session(name, model).run
        self._row_limit = ROUGH_ROWS if run else row_limit(model)

    def answers(self, inputs: Arrays) -> list[NDArray[Any]]:
        """RowsDiffer where a batch fails whose first row alone does not."""
        try:
            return in_batches(self._run, inputs, self._max_batch_size, self._name)
        except CannotRun as problem:
            if problem.num_rows > 1:
                in_batches(self._run, {key: values[:1] for key, values in inputs.items()}, 1, self._name)
                raise RowsDiffer(self._name, problem.num_rows, f"it fails: {problem.reason}") from None
            raise

    def row_checks(self, inputs: Arrays, limits: Limits) -> list[Check]:
        """RowsDiffer where a row depends on its batch by more than the limit; nothing where there are no batches."""
        if not self._max_batch_size:
            return []
        difference, size = rows.largest_row_difference(self._name, self._run, inputs, self._max_batch_size)
        check = limits.row_check(difference, self._row_limit)
        if not check.has_passed:
            raise RowsDiffer(self._name, size, f"a row changes by {difference:.2g} (at most {check.limit:g})")
        return [check]


def _check_comparable(name: str, answers: Outputs, reference: Outputs, reference_name: str) -> None:
    _check_finite(name, answers, "its answers on the held-out data")
    _check_finite(name, reference, f"{spoken(reference_name)}'s answers on the held-out data")
    for index in range(max(len(answers), len(reference))):
        shape, wanted = (list(v[index].shape) if index < len(v) else [] for v in (answers, reference))
        if shape != wanted:
            raise ShapesDiffer(name, index, shape, wanted, reference_name)


def _check_finite(name: str, outputs: Outputs, where: str) -> None:
    if count := sum(count_non_finite(values) for values in outputs):
        raise NonFinite(name, where, count)
