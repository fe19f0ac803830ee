"""Is a new version of a model at least as good as the one that it would replace, on the same rows?

The old FP32 file answers the rows that judge the new one. Labels, or numbers of the user's own metric, decide: worse by more than
--max-drop is refused. Without them nobody knows which of two versions is right, so that likeness is told alone. Rule: an old version that
takes other inputs or gives other outputs is no reason to refuse a new one; that it could not be compared is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from numpy.typing import NDArray

from serving.errors import GateRefused, UserError
from serving.export import onnx_session
from serving.export.data.dataset import Dataset
from serving.export.gates.custom import Metric, custom_checks
from serving.export.gates.file import probability_outputs
from serving.export.gates.limits import QUALITY, RULES, Limits, Refusal, digits
from serving.export.gates.tasks import Rows, comparable, measure
from serving.repository import Check, Previous, Variant

Outputs = Sequence[NDArray[Any]]


class Worse(Refusal):
    """The new version is worse than the one before it, by the labels or by the user's own metric."""

    def __init__(self, name: str, check: Check, version: int) -> None:
        title = RULES[check.metric].title if check.metric in RULES else check.metric
        super().__init__(
            name,
            f"{title} {check.value:.4f} is worse than the {check.reference:.4f} of version {version} on the same rows",
            "publish it all the same with --worse-is-fine",
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """`previous` None: the two could not be compared, and `why` says why."""

    previous: Previous | None
    why: str = ""


def compare(
    old: Variant,
    model: bytes,
    answers: Outputs,
    data: Dataset,
    *,
    task: str,
    names: tuple[str, ...] | None,
    limits: Limits,
    metric: Metric | None,
) -> Comparison | None:
    """None where the old version is this very file. `answers`: of the new FP32, all outputs [n, …]. Raises what `metric` raises."""
    content = old.model_path.read_bytes()
    if content == model:
        return None
    record = old.record
    where = f"{data.name}: labels"
    rows = Rows(task, data.labels, names, data.inputs, where, probability_outputs(model))
    try:
        theirs: Outputs = onnx_session.answers(
            content, data.inputs, record.max_batch_size, f"version {record.model_version}"
        )
        answers, theirs = comparable(task, answers, theirs)
        checks = _checks(rows, answers, theirs, limits) if _are_alike(answers, theirs) else []
    except (GateRefused, UserError) as problem:
        return Comparison(None, str(problem))
    if not checks:
        return Comparison(None, f"version {record.model_version} gives other outputs")
    own = [] if metric is None else _own_checks(metric, answers, theirs, data, limits)
    return Comparison(Previous(record.model_version, sha256(content).hexdigest(), (*own, *checks)))


def _are_alike(ours: Outputs, theirs: Outputs) -> bool:
    return [values.shape for values in ours] == [values.shape for values in theirs]


def _checks(rows: Rows, ours: Outputs, theirs: Outputs, limits: Limits) -> list[Check]:
    measured = measure(rows, ours, theirs)
    return [
        limits.check(m.metric, m.value, m.reference) if m.metric in QUALITY else _told(m.metric, m.value)
        for m in measured
    ]


def _told(metric: str, value: float) -> Check:
    return Check(metric, digits(value), None, RULES[metric].is_minimum, None, True)


def _own_checks(metric: Metric, ours: Outputs, theirs: Outputs, data: Dataset, limits: Limits) -> list[Check]:
    """The user's numbers of each version by itself. One may be worse than the old one's by the share that labels may lose."""
    drop = RULES["top1"].default if limits.max_drop is None else limits.max_drop
    assert drop is not None
    old = {check.metric: check.value for check in custom_checks(metric, theirs, theirs, data.labels)}
    made = []
    for check in custom_checks(metric, ours, ours, data.labels):
        before = old.get(check.metric, check.value)
        slack = drop * abs(before)
        limit = before - slack if check.is_minimum else before + slack
        made.append(
            Check(check.metric, check.value, digits(limit), check.is_minimum, digits(before), limits.max_drop is None)
        )
    return made


def refuse_if_worse(name: str, previous: Previous) -> None:
    for check in previous.checks:
        if not check.has_passed:
            raise Worse(name, check, previous.version)
