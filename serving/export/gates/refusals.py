"""Every way in which a gate refuses a file, as exceptions that carry their numbers.

Exit code 1 each. Files that servers could not load at all are the user's to mend, and no refusal. Rule: a message says what
was measured, what was allowed, and the way out, in one line.
"""

from __future__ import annotations

from collections.abc import Sequence

from serving.errors import GateRefused
from serving.repository import Check

# metric -> (what it is in words, the option that allows more or less)
WORDS = {
    "agreement": ("the share of answers that agree", "--min-agreement"),
    "cosine_mean": ("the mean cosine", "--min-cosine-mean"),
    "cosine_worst": ("the worst cosine", "--min-cosine-worst"),
    "recall_at_10": ("the share of the ten nearest neighbours that stayed", "--min-recall-at-10"),
    "absolute_error": ("the largest difference", "--max-absolute-error"),
    "relative_error": ("the largest relative difference", "--max-relative-error"),
}

_BETTER = "or give INT8 more and other rows to calibrate on"


class NonFinite(GateRefused):
    """NaN or infinity in the weights or in an answer."""

    def __init__(self, name: str, where: str, count: int) -> None:
        super().__init__(
            f"{name} refused: {count} NaN or infinite values in {where}; make the file again from sound weights"
        )
        self.name, self.where, self.count = name, where, count


class AccuracyLost(GateRefused):
    """Fewer right answers than the reference, beyond the limit. Values are 0..1."""

    def __init__(self, name: str, value: float, fp32_value: float, max_drop: float, reference: str = "fp32") -> None:
        super().__init__(
            f"{name} refused: top1 {value:.4f} is {fp32_value - value:.4f} below {spoken(reference)}'s "
            f"{fp32_value:.4f}, more than {max_drop:g}; allow it with --max-drop, {_BETTER}"
        )
        self.name, self.value, self.fp32_value, self.max_drop = name, value, fp32_value, max_drop


class AnswersMoved(GateRefused):
    """A probability differs from the reference's beyond the limit."""

    def __init__(self, name: str, difference: float, allowed: float, reference: str = "fp32") -> None:
        super().__init__(
            f"{name} refused: a probability moved by {difference:.4f} from {spoken(reference)}'s, more than {allowed:g}; "
            f"allow it with --max-probability-difference, {_BETTER}"
        )
        self.name, self.difference, self.allowed = name, difference, allowed


class AnswersDiffer(GateRefused):
    """Answers further from the reference's than one of the limits allows. `check` has the numbers."""

    def __init__(self, name: str, check: Check, reference: str = "fp32") -> None:
        words, option = WORDS.get(check.metric, (check.metric, ""))
        side = "below" if check.is_minimum else "above"
        told = f", {side} {check.limit:g}" if check.limit is not None else ", which is no number"
        way_out = f"allow it with {option}" if option else "change the metric's limit"
        super().__init__(
            f"{name} refused: {words} beside {spoken(reference)} is {check.value:.4g}{told}; {way_out}, {_BETTER}"
        )
        self.name, self.check, self.reference = name, check, reference


class ShapesDiffer(GateRefused):
    """An output of another shape than the reference's, so that nothing can be compared."""

    def __init__(self, name: str, output: int, shape: Sequence[int], wanted: Sequence[int], reference: str) -> None:
        super().__init__(
            f"{name} refused: output {output} is {list(shape)} where {spoken(reference)}'s is {list(wanted)}; "
            "make the file from the same model"
        )
        self.name, self.output, self.shape, self.wanted = name, output, tuple(shape), tuple(wanted)


class RowsDiffer(GateRefused):
    """A row's answer depends on the batch it came in."""

    def __init__(self, name: str, batch_size: int, problem: str) -> None:
        super().__init__(
            f"{name} refused: in a batch of {batch_size} {problem}; export it with a batch dimension that is free, "
            "or allow it with --max-row-difference"
        )
        self.name, self.batch_size, self.problem = name, batch_size, problem


class FrameworkDiffers(GateRefused):
    """The exported graph computes something else than the framework it came from."""

    def __init__(self, name: str, framework: str, difference: float, allowed: float, where: str = "") -> None:
        super().__init__(
            f"{name} refused: {where or 'a row'} differs by {difference:.2g} from {framework}'s own answer (at most "
            f"{allowed:g}); the export went wrong: try another --opset, or export it to ONNX yourself"
        )
        self.name, self.framework, self.difference, self.allowed = name, framework, difference, allowed


class NotDynamic(GateRefused):
    """A dimension that says it takes any length does not."""

    def __init__(self, name: str, dimension: str, length: int, problem: str) -> None:
        super().__init__(
            f"{name} refused: {dimension} says it takes any length, but at {length} {problem}; export it with that "
            "dimension free, or fixed"
        )
        self.name, self.dimension, self.length, self.problem = name, dimension, length, problem


class Degenerate(GateRefused):
    """The answer hardly depends on the input: faded activations, or a graph that lost its way."""

    def __init__(self, name: str, num_rows: int, deviation: float, scale: float) -> None:
        super().__init__(
            f"{name} refused: {num_rows} different inputs give the same answer (deviation {deviation:.1g} at a scale of "
            f"{scale:.1g}); it has lost its weights, its activations fade to "
            "nothing, or these inputs are nothing to it: give real ones with --data or --example"
        )
        self.name, self.num_rows, self.deviation, self.scale = name, num_rows, deviation, scale


def spoken(reference: str) -> str:
    return "FP32" if reference == "fp32" else reference
