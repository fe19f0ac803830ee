"""Reads the options of `tandem verdict` into values. Nothing here looks at a repository or a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.report.fail_if import Condition, parse
from serving.decisions.files.prices import read_price_lists
from serving.decisions.plan import objective as load
from serving.decisions.plan.command import SHIPPED_WORD, read_instances
from serving.decisions.plan.result import Objective
from serving.decisions.prices import PriceList
from serving.errors import UserError

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


@dataclass(frozen=True, slots=True)
class VerdictOptions:
    """`rate_rps` or `rates`; `instances` are POOL=NAME; `command` is how it was called, for the report."""

    model: str
    p99: str
    rate_rps: float | None = None
    rates: Path | None = None
    model_repository: Path | None = None
    profiles: tuple[Path, ...] = ()
    prices: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    data: str | None = None
    batch_size: int = 1
    min_replicas: int = 1
    max_replicas: int | None = None
    headroom_ratio: float = 0.7
    max_price_per_hour: float | None = None
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
    if (options.rate_rps is None) == (options.rates is None):
        raise UserError("say one of --rate (requests per second) and --rates FILE (lines of hours a day,rate)")
    rates = load.read_rates(options.rates) if options.rates is not None else load.constant(options.rate_rps or 0.0)
    objective = Objective(
        latency_p99_s=load.seconds(options.p99, "--p99"),
        rates=rates,
        max_price_per_hour=options.max_price_per_hour,
        min_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        headroom_ratio=options.headroom_ratio,
        batch_size=options.batch_size,
    )
    prices = read_price_lists([None if name == SHIPPED_WORD else Path(name) for name in options.prices])
    conditions = tuple(parse(text, CONDITION_NAMES, arms=()) for text in options.fail_if)
    return Question(objective, prices, read_instances(options.instances, prices), conditions)
