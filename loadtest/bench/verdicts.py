"""Is a measured value good enough? Judges a value against its aim and shows the verdict.

Pure. A value may miss its aim on a busy machine; only one beyond twice the aim fails the run. For a ratio that can at best be one, the
aim allows a loss, and twice the aim is twice that loss. Rule: a missing value is a failure, never a success.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from serving.documents.tables import columns
from serving.measure.rounds import Spread


class Outcome(Enum):
    MET = "met"
    MISSED = "missed"
    FAILED = "beyond twice the aim"


@dataclass(frozen=True, slots=True)
class Aim(ABC):
    """What a value should reach or keep to."""

    sign: ClassVar[str] = "≥"
    limit: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {number(self.limit)}{self.unit and ' ' + self.unit}"

    @abstractmethod
    def judge(self, value: float) -> Outcome: ...


class AtMost(Aim):
    """A time, a count or a cost."""

    __slots__ = ()
    sign = "≤"

    def judge(self, value: float) -> Outcome:
        return _judged(is_met=value <= self.limit, is_near=value <= 2 * self.limit)


class AtLeast(Aim):
    """A part of what would be possible, 0..1."""

    __slots__ = ()

    def judge(self, value: float) -> Outcome:
        return _judged(is_met=value >= self.limit, is_near=1 - value <= 2 * (1 - self.limit))


class Reach(Aim):
    """A rate, or how many times as fast as something else; less than half of it fails."""

    __slots__ = ()

    def judge(self, value: float) -> Outcome:
        return _judged(is_met=value >= self.limit, is_near=value >= self.limit / 2)


def _judged(*, is_met: bool, is_near: bool) -> Outcome:
    return Outcome.MET if is_met else Outcome.MISSED if is_near else Outcome.FAILED


@dataclass(frozen=True, slots=True)
class Verdict:
    """`value` None: it did not happen."""

    name: str
    value: float | None
    aim: Aim
    note: str = ""

    @property
    def outcome(self) -> Outcome:
        return Outcome.FAILED if self.value is None else self.aim.judge(self.value)

    def cells(self) -> tuple[str, str, str, str]:
        text = "never" if self.value is None else f"{number(self.value)}{self.aim.unit and ' ' + self.aim.unit}"
        return self.name, text, str(self.aim), self.outcome.value + (f" ({self.note})" if self.note else "")

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": self.value,
            "aim": str(self.aim),
            "outcome": self.outcome.value,
            "note": self.note,
        }


def exit_code(verdicts: Sequence[Verdict]) -> int:
    return int(any(verdict.outcome is Outcome.FAILED for verdict in verdicts))


def number(value: float) -> str:
    """Three figures, or a whole number."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the heading."""
    return columns(rows, ruled=True)


def verdict_table(verdicts: Sequence[Verdict], what: str = "verdicts") -> str:
    return table([(what, "value", "aim", "outcome"), *(verdict.cells() for verdict in verdicts)])


def spread_text(values: Spread, digits: int = 1, times: float = 1.0) -> str:
    """Median (lowest..highest)."""
    return f"{values.median * times:,.{digits}f} ({values.low * times:,.{digits}f}..{values.high * times:,.{digits}f})"


def ends_text(values: Spread) -> str:
    """For a verdict's note."""
    return f"{values.low:.2f}..{values.high:.2f}"
