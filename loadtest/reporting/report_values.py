"""Which numbers of a campaign's report may `--fail-if` ask for? Pure. The conditions themselves are `reporting/conditions.py`'s."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.reporting.conditions import Place, failures, parse
from loadtest.reporting.summaries import ArmSummary, Report
from loadtest.reporting.wording import point_label
from loadtest.statistics.estimates import Estimate

# As in report.json, of medians over the valid runs; `p99_s` for short of `latency_p99_s`.
NAMES = (
    *("p50_s", "p90_s", "p99_s", "latency_p50_s", "latency_p90_s", "latency_p99_s"),
    *("throughput_rps", "within_objective_ratio", "errors", "error_ratio", "accuracy"),
)


def check(conditions: Sequence[str], arms: Sequence[str] | None = None) -> None:
    """Before hours of measuring. Raises ConditionError."""
    for text in conditions:
        parse(text, NAMES, arms)


def failed(conditions: Sequence[str], report: Report) -> list[str]:
    """Sentences; empty if all is well. Raises ConditionError."""
    arms = [arm.name for arm in report.manifest.arms]
    asked = [parse(text, NAMES, arms) for text in conditions]
    return [sentence for condition in asked for sentence in failures(condition, places(report))]


def places(report: Report) -> list[Place]:
    """Every arm at every point, those without a run too: nobody shall take what is missing for good."""
    load = report.manifest.load
    wheres = {point: f"at {point_label(load, point)}" if len(load.points) > 1 else "" for point in load.points}
    return [Place(arm.name, wheres[arm.point], _values(arm), arm.not_run) for arm in report.arms]


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
