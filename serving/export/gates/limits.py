"""How far a variant's answers may be from the reference's, and how a number becomes a check with its limit.

The numbers of this room are all here, each with its reason; a record repeats those that were used. Rule: a metric is judged
in one place, `Limits.check`, on the value as it is recorded, so that a record never contradicts its gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.repository import Check

TOP1 = "top1"
ROW_DIFFERENCE = "row_difference"

# metric -> (the limit's name, whether the metric has to be at least that)
RULES: Mapping[str, tuple[str, bool]] = {
    TOP1: ("max_drop", True),
    "agreement": ("min_agreement", True),
    "cosine_mean": ("min_cosine_mean", True),
    "cosine_worst": ("min_cosine_worst", True),
    "recall_at_10": ("min_recall_at_10", True),
    "absolute_error": ("max_absolute_error", False),
    "relative_error": ("max_relative_error", False),
    "probability_difference": ("max_probability_difference", False),
    ROW_DIFFERENCE: ("max_row_difference", False),
}

# The measurements below are of all-MiniLM-L6-v2 with dynamic INT8 on 120 sentences, AVX-512 without VNNI (2026-11-21):
# with one scale per weight channel, good enough: mean cosine 0.992, worst 0.981, recall 0.92;
# with one per tensor, not: mean 0.966, worst 0.930, recall 0.86. FP16 and BF16 stay above 0.9999.

# A row's share of the output's scale that its neighbours in a batch may change, by what the file computes in.
EXACT_ROWS = 1e-3  # FP32 and static INT8: sums in another order, 1e-6 seen; a batch that leaks shows far more
HALF_ROWS = 1e-2  # FP16: ten times its last digit
ROUGH_ROWS = 0.1  # dynamic INT8 has one scale for a whole batch, 0.04 seen in MiniLM; BF16 has two digits and a half


# Limits that a user did not choose. One that is not here has no default: max_absolute_error has the output's unit, which nobody
# told us, and max_row_difference is by what the file computes in, see EXACT_ROWS.
DEFAULTS: Mapping[str, float] = {
    "max_drop": 0.01,  # one point of top-1, the project's promise
    # Where nobody said what is right, the same promise: what agrees in 99 of 100 cannot lose more than one point.
    "min_agreement": 0.99,
    "min_cosine_mean": 0.99,  # between the good and the bad above
    "min_cosine_worst": 0.97,  # between the good and the bad above; one sentence may suffer more than the rest
    "min_recall_at_10": 0.9,  # between the good and the bad above: one of ten results may be another
    "max_relative_error": 0.05,  # INT8 ResNet-50 0.028 seen, BF16 0.0044; a broken layer shows 1 and more
    # Rounding moves an image on the border between two classes a long way, so that this only finds what is broken:
    # more than half of the whole probability moved, and a sure answer can turn. A guess, not measured.
    "max_probability_difference": 0.5,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Those that the user chose, which records call the user's own; None: not chosen."""

    max_drop: float | None = None
    min_agreement: float | None = None
    min_cosine_mean: float | None = None
    min_cosine_worst: float | None = None
    min_recall_at_10: float | None = None
    max_absolute_error: float | None = None
    max_relative_error: float | None = None
    max_probability_difference: float | None = None
    max_row_difference: float | None = None

    def __post_init__(self) -> None:
        for limit in _names():
            value = getattr(self, limit)
            is_open = limit in ("max_absolute_error", "max_relative_error")  # the others are shares
            if value is not None and not 0 <= value <= (float("inf") if is_open else 1):
                raise UserError(f"{limit} is {value}, want {'0 or more' if is_open else '0..1'}")

    @classmethod
    def chosen(cls, given: Mapping[str, float]) -> Self:
        """Raises UserError for a name that is no limit's."""
        for name in given:
            if name not in _names():
                raise UserError(f"there is no limit {name!r}{nearest(name, _names())}")
        return cls(**given)

    def check(self, metric: str, value: float, reference: float | None = None, *, is_judged: bool = True) -> Check:
        """`is_judged` False: the number is told, without a limit, unless the user chose one."""
        name, is_minimum = RULES[metric]
        chosen: float | None = getattr(self, name)
        limit = DEFAULTS.get(name) if chosen is None else chosen
        if limit is not None and metric == TOP1 and reference is not None:
            limit = reference - limit
        if not is_judged and chosen is None:
            limit = None
        return Check(
            metric=metric,
            value=digits(value),
            limit=None if limit is None else digits(limit),
            is_minimum=is_minimum,
            reference=None if reference is None else digits(reference),
            is_default_limit=chosen is None,
        )

    def row_check(self, value: float, default: float) -> Check:
        """`default`: one of the three above."""
        limit = self.max_row_difference
        return Check(ROW_DIFFERENCE, digits(value), default if limit is None else limit, False, None, limit is None)


def digits(value: float) -> float:
    """Six significant ones: more are noise in a record that people read, and 0.95 - 0.01 is 0.94 again."""
    return float(f"{value:.6g}")


def _names() -> list[str]:
    return [field.name for field in fields(Limits)]
