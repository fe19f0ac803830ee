"""Is a variant good enough? Its answers on the data beside the reference's, each number with its limit.

What the numbers are is in `metrics`, how far they may go in `limits`. Speed and publishing are not here. Rule: a comparison
with NaN in it refuses, and the first number beyond its limit is the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from serving.errors import GateRefused
from serving.export.data.dataset import Dataset
from serving.export.exported_model import Arrays, Run
from serving.export.gates import rows
from serving.export.gates.custom import Metric, custom_checks
from serving.export.gates.file import row_limit
from serving.export.gates.limits import (
    ROUGH_ROWS,
    ROW_DIFFERENCE,
    TOP1,
    AccuracyLost,
    AnswersDiffer,
    AnswersMoved,
    Limits,
    NonFinite,
    RowsDiffer,
    ShapesDiffer,
    spoken,
)
from serving.export.gates.metrics import count_non_finite, measure
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
) -> Gate:
    """The gate's record, or a GateRefused.

    `reference`: all outputs of FP32, or of the framework, on the same data, [n, …] each. `run` stands in for the plain CPU
    provider where another engine computes the variant (BF16): one batch of inputs -> all outputs.
    """
    limits = limits or Limits()
    runner = run or Session(name, model).run
    found = _answers(name, runner, data.inputs, max_batch_size)
    _check_comparable(name, found, reference, reference_name)
    checks = custom_checks(metric, reference, found, data.labels) if metric else []
    measured = measure(task, found, reference, data.labels, f"{data.name}: labels")
    checks += [limits.check(m.metric, m.value, m.reference, is_judged=m.is_judged) for m in measured]
    for check in checks:
        _pass(name, check, reference_name)
    default = ROUGH_ROWS if run else row_limit(model)
    checks += _row_checks(name, runner, data.inputs, max_batch_size, partial(limits.row_check, default=default))
    return Gate(
        basis=LABELS if any(m.metric == TOP1 for m in measured) else AGREEMENT,
        reference=reference_name,
        checks=tuple(checks),
        num_samples=data.num_samples,
        dataset=data.name,
        dataset_digest=data.digest,
        batch_sizes=rows.batch_sizes(max_batch_size),
    )


def ungated(name: str, model: bytes, inputs: Arrays, max_batch_size: int, run: Run | None = None) -> Gate:
    """The record of a variant that nobody gave data for. It still has to answer, finitely and each row for itself."""
    runner = run or Session(name, model).run
    _check_finite(name, _answers(name, runner, inputs, max_batch_size), "its answers on made-up inputs")
    default = ROUGH_ROWS if run else row_limit(model)
    _row_checks(name, runner, inputs, max_batch_size, partial(Limits().row_check, default=default))
    return Gate(NOTHING, FP32, (), 0, "none", "", rows.batch_sizes(max_batch_size))


def untrained(
    name: str, model: bytes, reference: Outputs, inputs: Arrays, max_batch_size: int, run: Run | None = None
) -> Gate:
    """The record of random weights: how far from FP32, told without a limit, because nothing is right about them."""
    runner = run or Session(name, model).run
    found = _answers(name, runner, inputs, max_batch_size)
    _check_comparable(name, found, reference, FP32)
    checks = [Limits().check(m.metric, m.value, is_judged=False) for m in measure(OTHER, found, reference, None)]
    default = ROUGH_ROWS if run else row_limit(model)
    checks += _row_checks(name, runner, inputs, max_batch_size, partial(Limits().row_check, default=default))
    data = Dataset("made-up inputs", inputs, None)
    sizes = rows.batch_sizes(max_batch_size)
    return Gate(UNTRAINED, FP32, tuple(checks), data.num_samples, data.name, data.digest, sizes)


def refusal(name: str, check: Check, reference_name: str) -> GateRefused | None:
    """What a check that did not pass is called; None where it passed."""
    if check.has_passed and _is_finite(check):
        return None
    if check.metric == TOP1 and check.reference is not None and check.limit is not None:
        drop = round(check.reference - check.limit, 6)
        return AccuracyLost(name, check.value, check.reference, drop, reference_name)
    if check.metric == "probability_difference" and check.limit is not None:
        return AnswersMoved(name, check.value, check.limit, reference_name)
    return AnswersDiffer(name, check, reference_name)


def _is_finite(check: Check) -> bool:
    """A number that is only told has to be one all the same."""
    return abs(check.value) < float("inf")


def _pass(name: str, check: Check, reference_name: str) -> None:
    if problem := refusal(name, check, reference_name):
        raise problem


def _answers(name: str, run: Run, inputs: Arrays, max_batch_size: int) -> list[NDArray[Any]]:
    """RowsDiffer where a batch fails whose first row alone does not."""
    try:
        return in_batches(run, inputs, max_batch_size, name)
    except CannotRun as problem:
        if problem.num_rows > 1:
            in_batches(run, {key: values[:1] for key, values in inputs.items()}, 1, name)
            raise RowsDiffer(name, problem.num_rows, f"it fails: {problem.reason}") from None
        raise


def _check_comparable(name: str, found: Outputs, reference: Outputs, reference_name: str) -> None:
    _check_finite(name, found, "its answers on the held-out data")
    _check_finite(name, reference, f"{spoken(reference_name)}'s answers on the held-out data")
    for index in range(max(len(found), len(reference))):
        shape, wanted = (list(v[index].shape) if index < len(v) else [] for v in (found, reference))
        if shape != wanted:
            raise ShapesDiffer(name, index, shape, wanted, reference_name)


def _check_finite(name: str, outputs: Outputs, where: str) -> None:
    if count := sum(count_non_finite(values) for values in outputs):
        raise NonFinite(name, where, count)


def _row_checks(
    name: str, run: Run, inputs: Arrays, max_batch_size: int, judged: Callable[[float], Check]
) -> list[Check]:
    if not max_batch_size:
        return []
    difference, size = rows.largest_row_difference(name, run, inputs, max_batch_size)
    check = judged(difference)
    if not check.has_passed:
        raise RowsDiffer(name, size, f"a row changes by {difference:.2g} (at most {check.limit:g})")
    assert check.metric == ROW_DIFFERENCE
    return [check]
