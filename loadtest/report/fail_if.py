"""Judges the conditions of `--fail-if "p99_s > 0.05"`, by which a pipeline fails. Pure: text in, sentences out.

A condition is NAME OP NUMBER, or ARM.NAME OP NUMBER. Without an arm it holds for every arm at every point of the load. Rule: an unknown
number fails like a bad one, and says so: too few requests lie beyond its percentile, or no run was valid.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.errors import CampaignError
from loadtest.report.summaries import ArmSummary, Report
from loadtest.report.wording import point_label
from serving.documents.nearest import nearest
from serving.measure.intervals import Estimate

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
FORM = re.compile(r"\s*(?P<name>[A-Za-z0-9._-]+)\s*(?P<operator>[<>=!]=|[<>])\s*(?P<number>[^\s<>=!]+)\s*")


class ConditionError(CampaignError):
    """A condition that cannot be asked. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Condition:
    """As it was written, and what it means. `arm` None: any."""

    text: str
    arm: str | None
    name: str
    operator: str
    number: float


@dataclass(frozen=True, slots=True)
class ArmNumbers:
    """Numbers of one arm at one point of the load. `where`: in words, empty if there is but one. None: not known."""

    arm: str
    where: str
    values: Mapping[str, float | None]
    not_run: str | None = None


def parse(text: str, names: Sequence[str], arms: Sequence[str] | None = None) -> Condition:
    """`names`: what may be asked. `arms` None: not known yet, any is taken. Raises ConditionError."""
    match = FORM.fullmatch(text)
    if match is None:
        raise ConditionError(f'--fail-if {text!r} is not of the form NAME OP NUMBER, such as "p99_s > 0.05".')
    prefix, _, name = match["name"].rpartition(".")
    if name not in names:
        raise ConditionError(f"--fail-if {text!r}: nothing is named {name!r}{nearest(name, names)}")
    if prefix and arms is not None and prefix not in arms:
        raise ConditionError(f"--fail-if {text!r}: no arm is named {prefix!r}{nearest(prefix, arms)}")
    try:
        number = float(match["number"])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConditionError(f"--fail-if {text!r}: {match['number']!r} is not a number.")
    return Condition(text.strip(), prefix or None, name, match["operator"], number)


def failures(condition: Condition, arms: Sequence[ArmNumbers]) -> list[str]:
    """A sentence for each arm and point where the condition holds, or is not known to be false; empty if all is well."""
    meant = [arm for arm in arms if condition.arm == arm.arm or (condition.arm is None and arm.not_run is None)]
    if not meant:
        return [f"Failed: {condition.text}: nothing was measured."]
    return [sentence for arm in meant if (sentence := _failure(condition, arm))]


def _failure(condition: Condition, arm: ArmNumbers) -> str | None:
    value = arm.values.get(condition.name)
    start = f"Failed: {condition.text}: {condition.name} of {f'{arm.arm} {arm.where}'.rstrip()} is"
    if value is None or math.isnan(value):
        reason = f"it was not run: {arm.not_run}" if arm.not_run else "too few valid runs or requests"
        return f"{start} not known ({reason})."
    return f"{start} {value:.6g}." if OPERATORS[condition.operator](value, condition.number) else None


# -- of a campaign -----------------------------------------------------------------------------------------------------

# As in report.json, of medians over the valid runs; `p99_s` for short of `latency_p99_s`.
NAMES = (
    *("p50_s", "p90_s", "p99_s", "latency_p50_s", "latency_p90_s", "latency_p99_s"),
    *("throughput_rps", "within_objective_ratio", "errors", "error_ratio", "accuracy"),
)


def check(conditions: Sequence[str], arms: Sequence[str] | None = None) -> None:
    """Before hours of measuring. Raises ConditionError."""
    for text in conditions:
        parse(text, NAMES, arms)


def broken_conditions(conditions: Sequence[str], report: Report) -> list[str]:
    """Sentences; empty if all is well. Raises ConditionError."""
    arms = [arm.name for arm in report.manifest.arms]
    return [sentence for text in conditions for sentence in failures(parse(text, NAMES, arms), arm_numbers(report))]


def arm_numbers(report: Report) -> list[ArmNumbers]:
    """Of every arm at every point, those without a run too: what is missing must not pass for good."""
    load = report.manifest.load
    wheres = {point: f"at {point_label(load, point)}" if len(load.points) > 1 else "" for point in load.points}
    return [ArmNumbers(arm.name, wheres[arm.point], _values(arm), arm.not_run) for arm in report.arms]


def _values(arm: ArmSummary) -> dict[str, float | None]:
    latencies = {"p50_s": arm.latency_p50_s, "p90_s": arm.latency_p90_s, "p99_s": arm.latency_p99_s}
    others = {"throughput_rps": arm.throughput_rps, "within_objective_ratio": arm.within_objective_ratio}
    values = {name: _median(value) for name, value in (latencies | others).items()}
    values |= {f"latency_{name}": values[name] for name in latencies}
    num = arm.num_ok + arm.num_errors
    errors = float(arm.num_errors) if arm.num_runs else None
    return values | {"errors": errors, "error_ratio": arm.num_errors / num if num else None, "accuracy": arm.accuracy}


def _median(value: Estimate | None) -> float | None:
    return None if value is None else value.median
