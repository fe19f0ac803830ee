"""How far a variant's answers may be from the reference's, and the refusal of those that go further.

The limits of this room are all here, each with its reason; a record repeats those that were used. Files that servers could not
load at all are the user's to mend, and no refusal. Rules: a metric is judged in one place, `Limits.check`, on the value as it is
recorded, so that a record never contradicts its gate; a refusal says in one line what was measured, what was allowed, and the
way out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

from serving.documents.nearest import nearest
from serving.errors import GateRefused, UserError
from serving.repository import Check

TOP1 = "top1"
ROW_DIFFERENCE = "row_difference"


class Rule(NamedTuple):
    """`limit`: the name of the limit, which the metric has to be at least where `is_minimum`, else at most. `default` None: none."""

    limit: str
    is_minimum: bool
    title: str  # of the metric, in a refusal
    default: float | None


_DROP, _AGREE = "max_drop", "min_agreement"

# What a user did not choose. The first ones, by labels, may lose one point beside FP32: the project's promise, the same for every
# task. A metric without a default has none: the absolute error has the output's unit, which is unknown, and a row's dependence
# on its batch is limited by what the file computes in, see EXACT_ROWS.
RULES: Mapping[str, Rule] = {
    TOP1: Rule(_DROP, True, TOP1, 0.01),
    "f1": Rule(_DROP, True, "F1 of the labels", 0.01),
    "r2": Rule(_DROP, True, "R² of the worst output", 0.01),
    "ndcg_at_10": Rule(_DROP, True, "nDCG@10", 0.01),
    "span_f1": Rule(_DROP, True, "F1 of the spans", 0.01),
    "exact_match": Rule(_DROP, True, "the share of exact answers", 0.01),
    "map_50": Rule(_DROP, True, "mAP at an overlap of half", 0.01),
    "miou": Rule(_DROP, True, "mIoU", 0.01),
    "roc_auc": Rule(_DROP, True, "the area under the ROC curve", 0.01),
    # Where nobody said what is right, the same promise: what agrees in 99 of 100 cannot lose more than one point.
    "agreement": Rule(_AGREE, True, "the share of answers that agree", 0.99),
    "f1_agreement": Rule(_AGREE, True, "F1 of the labels", 0.99),
    "span_agreement": Rule(_AGREE, True, "F1 of the spans", 0.99),
    "ndcg_agreement": Rule(_AGREE, True, "nDCG@10 by FP32's scores", 0.99),
    # Noise of 1 % of the answers' own variance, which costs one point of R² where it is independent.
    "r2_agreement": Rule(_AGREE, True, "R² of the worst output", 0.99),
    # What the same noise leaves of the order of scores that are normally distributed: 2/π · asin √0.99 = 0.936.
    "kendall_tau": Rule(_AGREE, True, "Kendall's tau", 0.93),
    # A contour that moves by half a pixel around a square of 40: (39/40)² = 0.951.
    "mask_agreement": Rule(_AGREE, True, "mIoU", 0.95),
    # One of twenty sure boxes lost, found twice or moved by half. A guess, not measured.
    "box_agreement": Rule(_AGREE, True, "mAP by FP32's boxes", 0.95),
    "cosine_mean": Rule("min_cosine_mean", True, "the mean cosine", 0.99),  # between the good and the bad below
    # Between the good and the bad below; one sentence may suffer more than the rest.
    "cosine_worst": Rule("min_cosine_worst", True, "the worst cosine", 0.97),
    # Between the good and the bad below: one of ten results may be another.
    "recall_at_10": Rule("min_recall_at_10", True, "the share of the ten nearest neighbours that stayed", 0.9),
    # 20 dB below the signal: as much as R² of 0.99 allows; INT8 of MiniLM that is good enough (below) has 0.13 in its vectors.
    "noise_ratio": Rule("max_noise_ratio", False, "the noise beside the numbers' own size", 0.1),
    # Five standard deviations of that noise, its largest of a million numbers; one number that is off by its own size is a fault.
    "relative_error": Rule("max_relative_error", False, "the largest relative difference", 0.5),
    "absolute_error": Rule("max_absolute_error", False, "the largest difference", None),
    # Odds that change by a factor of e, which moves a probability of a half by 0.245: what was 0.75 and surer stays the answer.
    # Seen where INT8 was good: 0.029 (digits); BF16 of EfficientNet-Lite0 0.043. A broken one showed 0.36.
    "probability_difference": Rule("max_probability_difference", False, "the largest change of a probability", 0.25),
    ROW_DIFFERENCE: Rule("max_row_difference", False, "a row's dependence on its batch", None),
}
QUALITY = frozenset(metric for metric, rule in RULES.items() if rule.limit == _DROP)  # by labels, beside FP32's own

# The limits of vectors rest on all-MiniLM-L6-v2 with dynamic INT8 on 120 sentences, AVX-512 without VNNI (2026-11-21):
# with one scale per weight channel, good enough: mean cosine 0.992, worst 0.981, recall 0.92;
# with one per tensor, not: mean 0.966, worst 0.930, recall 0.86. FP16 and BF16 stay above 0.9999.

# A row's share of the output's scale that its neighbours in a batch may change, by what the file computes in.
EXACT_ROWS = 1e-3  # FP32 and static INT8: sums in another order, 1e-6 seen; a batch that leaks shows far more
HALF_ROWS = 1e-2  # FP16: ten times its last digit
ROUGH_ROWS = 0.1  # dynamic INT8 has one scale for a whole batch, 0.04 seen in MiniLM; BF16 has two digits and a half


@dataclass(frozen=True, slots=True)
class Limits:
    """The user's own limits, and recorded as such; None: not chosen."""

    max_drop: float | None = None
    min_agreement: float | None = None
    min_cosine_mean: float | None = None
    min_cosine_worst: float | None = None
    min_recall_at_10: float | None = None
    max_noise_ratio: float | None = None
    max_absolute_error: float | None = None
    max_relative_error: float | None = None
    max_probability_difference: float | None = None
    max_row_difference: float | None = None

    def __post_init__(self) -> None:
        for limit in _names():
            value = getattr(self, limit)
            is_open = limit in ("max_noise_ratio", "max_absolute_error", "max_relative_error")  # the others are shares
            if value is not None and not 0 <= value <= (float("inf") if is_open else 1):
                raise UserError(f"{limit} is {value}, want {'0 or more' if is_open else '0..1'}")

    @classmethod
    def chosen(cls, given: Mapping[str, float]) -> Self:
        """Raises UserError for an unknown limit."""
        for name in given:
            if name not in _names():
                raise UserError(f"there is no limit {name!r}{nearest(name, _names())}")
        return cls(**given)

    def check(self, metric: str, value: float, reference: float | None = None, *, is_judged: bool = True) -> Check:
        """`is_judged` False: the number is recorded without a limit, unless the user chose one."""
        name, is_minimum, _, default = RULES[metric]
        chosen: float | None = getattr(self, name)
        limit = default if chosen is None else chosen
        if limit is not None and metric in QUALITY and reference is not None:
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


def option(limit: str) -> str:
    return f"--{limit.replace('_', '-')}"


# -- refusals ---------------------------------------------------------------------------------------------------------


def _way_out(name: str, allowed: str) -> str:
    """`name`: of the variant, which ends in its precision."""
    return f"{allowed}, or give INT8 more and other rows to calibrate on" if name.endswith("-int8") else allowed


class Refusal(GateRefused):
    """Of a file that failed its gate, in one line: what was measured and allowed, and the way out."""

    def __init__(self, name: str, problem: str, way_out: str) -> None:
        super().__init__(f"{name} refused: {problem}; {way_out}")


class NonFinite(Refusal):
    """NaN or infinity in the weights or in an answer."""

    def __init__(self, name: str, where: str, count: int) -> None:
        super().__init__(name, f"{count} NaN or infinite values in {where}", "make the file again from sound weights")


class AccuracyLost(Refusal):
    """Worse by the labels than the reference, beyond the limit. Values are at most 1."""

    def __init__(
        self, name: str, value: float, fp32_value: float, max_drop: float, reference: str = "fp32", metric: str = TOP1
    ) -> None:
        lost = f"{fp32_value - value:.4f} below {spoken(reference)}'s {fp32_value:.4f}"
        way_out = _way_out(name, "allow it with --max-drop")
        super().__init__(name, f"{RULES[metric].title} {value:.4f} is {lost}, more than {max_drop:g}", way_out)


class AnswersMoved(Refusal):
    """A probability differs from the reference's beyond the limit."""

    def __init__(self, name: str, difference: float, allowed: float, reference: str = "fp32") -> None:
        super().__init__(
            name,
            f"a probability moved by {difference:.4f} from {spoken(reference)}'s, more than {allowed:g}",
            _way_out(name, "allow it with --max-probability-difference"),
        )


class AnswersDiffer(Refusal):
    """Answers further from the reference's than one of the limits allows. `check` has the numbers."""

    def __init__(self, name: str, check: Check, reference: str = "fp32") -> None:
        rule = RULES.get(check.metric)
        side = "below" if check.is_minimum else "above"
        beyond = f", {side} {check.limit:g}" if check.limit is not None else ", which is no number"
        way_out = f"allow it with {option(rule.limit)}" if rule else "change the metric's limit"
        super().__init__(
            name,
            f"{rule.title if rule else check.metric} beside {spoken(reference)} is {check.value:.4g}{beyond}",
            _way_out(name, way_out),
        )


class ShapesDiffer(Refusal):
    """An output of another shape than the reference's, so that nothing can be compared."""

    def __init__(self, name: str, output: int, shape: Sequence[int], wanted: Sequence[int], reference: str) -> None:
        super().__init__(
            name,
            f"output {output} is {list(shape)} where {spoken(reference)}'s is {list(wanted)}",
            "make the file from the same model",
        )


class RowsDiffer(Refusal):
    """A row's answer depends on the batch it came in."""

    def __init__(self, name: str, batch_size: int, problem: str) -> None:
        super().__init__(
            name,
            f"in a batch of {batch_size} {problem}",
            "export it with a batch dimension that is free, or allow it with --max-row-difference",
        )
        self.problem = problem


class FrameworkDiffers(Refusal):
    """The exported graph computes something else than the framework it came from."""

    def __init__(self, name: str, framework: str, difference: float, allowed: float) -> None:
        super().__init__(
            name,
            f"a row differs by {difference:.2g} from {framework}'s own answer (at most {allowed:g})",
            "the export went wrong: try another --opset, or export it to ONNX yourself",
        )


class NotDynamic(Refusal):
    """A dimension that says it takes any length does not."""

    def __init__(self, name: str, dimension: str, length: int, problem: str) -> None:
        super().__init__(
            name,
            f"{dimension} says it takes any length, but at {length} {problem}",
            "export it with that dimension free, or fixed",
        )


class Degenerate(Refusal):
    """The answer hardly depends on the input: faded activations, or a graph that lost its way."""

    def __init__(self, name: str, num_rows: int, deviation: float, scale: float) -> None:
        super().__init__(
            name,
            f"{num_rows} different inputs give the same answer (deviation {deviation:.1g} at a scale of {scale:.1g})",
            "it has lost its weights, its activations fade to nothing, or these inputs are nothing to it: give real ones with "
            "--data or --example",
        )


class TypeNotProven(Refusal):
    """A run on a card does not show that all of the file was computed there, and in its precision. `problems`: sentences."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        super().__init__(
            name,
            f"on the card {'; '.join(problems)}",
            "it would be slower than it says: leave this precision out, or change those operators",
        )


def spoken(reference: str) -> str:
    return "FP32" if reference == "fp32" else reference
