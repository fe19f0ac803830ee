"""Compares two reports: did something get worse? Pure: two sets of measured values in, what differs out.

Runs of two reports have no partners, so the interval is Welch's; what the machine did between the two days is in the difference and in
no interval. A share (unit `ratio`) is compared by its difference, everything else by its ratio. Each interval is one of 95 %;
`is_clearly_worse` asks for more, so that two equal reports give a false alarm in 5 % of cases at most, whatever they hold (Bonferroni).
Rule: a value of too few runs is inconclusive. Where the values come from is `report_file.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from serving.measure.intervals import FALSE_ALARM_RATIO, unpaired, welch_reach

SHARE = "ratio"  # the unit of what lies in 0..1
Outcome = Literal["worse", "better", "no_difference_seen", "inconclusive", "not_judged"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One value of a report, run by run. `is_lower_better` None: neither is; it is told and not judged."""

    name: str
    unit: str
    runs: tuple[float, ...]
    is_lower_better: bool | None
    step_ratio: float = 1.0  # of what is searched in steps: the truth lies between a run and so many times it


@dataclass(frozen=True, slots=True)
class Change:
    """`change` is after ÷ before, of a share after - before; `low` and `high` are None where it is inconclusive."""

    name: str
    unit: str
    before: float | None  # median over runs
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    outcome: Outcome
    is_clearly_worse: bool

    @property
    def is_share(self) -> bool:
        return self.unit == SHARE


@dataclass(frozen=True, slots=True)
class Comparison:
    """`only_before` and `only_after`: names of what the other report does not have."""

    values: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def is_worse(self) -> bool:
        return any(value.is_clearly_worse for value in self.values)


def compare(before: Sequence[Quantity], after: Sequence[Quantity]) -> Comparison:
    """By name. Raises ValueError where a name means two units."""
    theirs = {one.name: one for one in after}
    ours = {one.name for one in before}
    pairs = [(one, theirs[one.name]) for one in before if one.name in theirs]
    for one, other in pairs:
        if one.unit != other.unit:
            raise ValueError(f"{one.name} is in {one.unit} before and in {other.unit} after")
    strict = FALSE_ALARM_RATIO / max(1, sum(one.is_lower_better is not None for one, _ in pairs))
    return Comparison(
        tuple(_compared(one, other, strict) for one, other in pairs),
        tuple(one.name for one in before if one.name not in theirs),
        tuple(one.name for one in after if one.name not in ours),
    )


def _compared(before: Quantity, after: Quantity, strict: float) -> Change:
    change, low, high = _change(before, after, FALSE_ALARM_RATIO)
    outcome = _outcome(after, low, high)
    _, strict_low, strict_high = _change(before, after, strict)
    return Change(
        after.name,
        after.unit,
        median(before.runs) if before.runs else None,
        median(after.runs) if after.runs else None,
        change,
        low,
        high,
        outcome,
        _outcome(after, strict_low, strict_high) == "worse",
    )


def _change(before: Quantity, after: Quantity, beyond_ratio: float) -> tuple[float | None, float | None, float | None]:
    """(change, low, high); None as far as it is not known. What has no logarithm, as no energy at all, has no ratio."""
    if not before.runs or not after.runs:
        return None, None, None
    if after.unit == SHARE:
        change = sum(after.runs) / len(after.runs) - sum(before.runs) / len(before.runs)
        reach = welch_reach(after.runs, before.runs, beyond_ratio)
        return (change, None, None) if reach is None else (change, change - reach, change + reach)
    if min(*before.runs, *after.runs) <= 0:
        return None, None, None
    difference = unpaired(after.runs, before.runs, beyond_ratio)
    assert difference
    if difference.low is None or difference.high is None:
        return difference.ratio, None, None
    return difference.ratio, difference.low / before.step_ratio, difference.high * after.step_ratio


def _outcome(measured: Quantity, low: float | None, high: float | None) -> Outcome:
    if measured.is_lower_better is None:
        return "not_judged"
    if low is None or high is None:
        return "inconclusive"
    same = 0.0 if measured.unit == SHARE else 1.0
    if low <= same <= high:
        return "no_difference_seen"
    return "worse" if (low > same) == measured.is_lower_better else "better"
