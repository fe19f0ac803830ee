"""Reads the options of `tandem verdict` into values. Nothing here looks at a repository or a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.report.fail_if import Condition, parse
from serving.decisions.plan.command import LoadOptions
from serving.decisions.plan.result import Objective
from serving.decisions.prices import PriceList

# What --fail-if may ask: the first four of the check, the others of the plan.
CONDITION_NAMES = (
    "p50_s",
    "p99_s",
    "throughput_rps",
    "late_or_lost_ratio",
    "per_hour",
    "per_million",
    "break_even_rps",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictOptions(LoadOptions):
    """`command` is how it was called, for the report."""

    model: str
    model_repository: Path | None = None
    profiles: tuple[Path, ...] = ()
    data: str | None = None
    is_quick: bool = False
    may_measure: bool = True
    has_check: bool = True
    output: Path | None = None
    fail_if: tuple[str, ...] = ()
    as_json: bool = False
    command: str = "tandem verdict"


@dataclass(frozen=True, slots=True)
class Question:
    """The options as values. A wrong one has been refused by then."""

    objective: Objective
    prices: PriceList
    instances: Mapping[str, str]
    conditions: tuple[Condition, ...]


def read_question(options: VerdictOptions) -> Question:
    """Raises UserError and ConditionError, before anything is measured for minutes."""
    objective = options.objective()
    prices, instances = options.priced()
    conditions = tuple(parse(text, CONDITION_NAMES, arms=()) for text in options.fail_if)
    return Question(objective, prices, instances, conditions)
