"""What a part of this bench is given, and what it hands back.

Values only. Rule: a part that could not be measured says so in a note and has no verdict; it is never counted as good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.verdicts import Verdict, table
from serving.measure.rounds import Spread

NUM_THREADS = 2  # of Triton's one instance, and of ONNX Runtime in process: what these figures are told for


@dataclass(frozen=True, slots=True)
class Plan:
    """How long what is measured: all parts in about five minutes. `QUICK` shows that they work, and no more."""

    num_rounds: int = 5
    burst_s: int = 2  # of wrk, which takes whole seconds, and of calls of gRPC
    round_s: float = 3.0  # a request with 32 texts takes 0.2 s, so each round has enough of them
    warmup_s: float = 1.0


QUICK = Plan(num_rounds=1, burst_s=1, round_s=1.0, warmup_s=0.2)


@dataclass(frozen=True, slots=True)
class Setting:
    """`folder` is the part's own, for logs and whatever it makes; `models` is the repository that has the trained models."""

    plan: Plan
    folder: Path
    models: Path


@dataclass(frozen=True, slots=True)
class Part:
    """`rows`: a table with its head; `values`: every round, for --json."""

    title: str
    rows: Sequence[Sequence[str]] = ()
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    values: Mapping[str, object] = field(default_factory=dict)

    def describe(self) -> str:
        return "\n".join([f"== {self.title}", *([table(self.rows)] if self.rows else []), *self.notes])

    def to_json(self) -> dict[str, object]:
        return {
            "title": self.title,
            "notes": list(self.notes),
            "values": dict(self.values),
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
        }


def told(values: Spread, digits: int = 1, times: float = 1.0) -> str:
    """Median (lowest..highest)."""
    return f"{values.median * times:,.{digits}f} ({values.low * times:,.{digits}f}..{values.high * times:,.{digits}f})"


def ends(values: Spread) -> str:
    """For a verdict's note."""
    return f"{values.low:.2f}..{values.high:.2f}"
