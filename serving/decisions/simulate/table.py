"""What came of it, for eyes and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from serving.decisions.simulate.outcome import Outcome
from serving.documents.tables import columns

HEAD = (
    "policy",
    "in time",
    "late",
    "refused",
    "p50 ms",
    "p99 ms",
    "cost",
    "per 1M in time",
    "CPU h",
    "GPU h",
    "GPU starts",
    "handovers",
)


def table(outcomes: Sequence[Outcome]) -> str:
    """Requests that expired in a queue count as refused: both got no answer."""
    rows = [HEAD, *(_row(outcome) for outcome in outcomes)]
    return columns(rows, align="<".ljust(len(HEAD), ">"), ruled=True)


def _row(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.policy,
        f"{outcome.attainment_ratio:.4%}",
        f"{outcome.num_late:,}",
        f"{outcome.num_refused + outcome.num_expired:,}",
        _ms(outcome.latency_p50_s),
        _ms(outcome.latency_p99_s),
        f"{outcome.cost:.3f}",
        "-" if outcome.cost_per_million is None else f"{outcome.cost_per_million:,.2f}",
        f"{outcome.cpu_hours:.2f}",
        f"{outcome.gpu_hours:.2f}",
        str(outcome.num_gpu_starts),
        str(outcome.num_handovers),
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f}"


def as_json(outcomes: Sequence[Outcome], facts: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "is_what_if": True, **facts, "policies": [_object(outcome) for outcome in outcomes]}


def _object(outcome: Outcome) -> dict[str, Any]:
    fields = asdict(outcome)
    fields["reasons"] = dict(outcome.reasons)
    fields["attainment_ratio"] = outcome.attainment_ratio
    fields["num_violations"] = outcome.num_violations
    fields["cost_per_million_in_time"] = outcome.cost_per_million
    return fields
