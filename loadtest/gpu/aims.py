"""What a card's path is to reach, and whether these measurements say that it does. Pure.

Rule: an aim is met, or missed, only by a whole interval; a check of a stage asks whether a measurement can be, which is another question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadtest.claims.values import NOT_RUN, Findings, Reading, ServingRates, median, paired
from loadtest.gpu.served_parts import GATEWAY, by_case, parts, rates

SERVED_RATIO = 0.9  # of in process, at the batch size that is best there
LATENCY_RATIO, HALF_RATIO = 2.0, 2.0  # times as fast as the plain CUDA provider; as FP32
COMPUTING = ("resnet50", "efficientnet-b2", "bert-base")  # nets whose time is arithmetic
NOT_TAKEN_APART = (
    "where the rest goes was not measured in this run (what is known: docs/engines.md, “What serving loses”)"
)


@dataclass(frozen=True, slots=True)
class AimResult:
    """`unit`: share or times. `note`: at what; of a share that is missed, where the rest goes."""

    name: str
    found: Reading
    least: float
    unit: str
    note: str = ""

    @property
    def outcome(self) -> str:
        value, low, high = self.found.value, self.found.low, self.found.high
        if value is None:
            return "not measured"
        if low is None or high is None:
            return "no interval"
        return "met" if low >= self.least else "missed" if high < self.least else "undecided"


def results(found: Findings) -> list[AimResult]:
    return [*_served(found), _latency(found), *(_half(found, model) for model in COMPUTING)]


def best_served(found: Findings) -> list[ServingRates]:
    """Of each net on the card's pool, at the batch size that is best in process."""
    best: dict[tuple[str, str], ServingRates] = {}
    for one in found.served:
        if one.pool == "gpu" and one.served and len(one.served) == len(one.in_process):
            before = best.get((one.model, one.variant), one)
            best[one.model, one.variant] = max(before, one, key=lambda of: float(np.median(of.in_process)))
    return list(best.values())


def _served(found: Findings) -> Iterator[AimResult]:
    rounds = by_case(found.rounds)
    for one in best_served(found):
        own = rounds.get((one.model, one.variant, one.pool, one.batch_size), [])
        split = parts(own) if own else None
        where = [NOT_TAKEN_APART if split is None else split.sentence]
        for arm in dict.fromkeys(of.arm for of in own if of.arm.startswith(GATEWAY) and of.arm != GATEWAY):
            where.append(f"{arm}: {np.median(rates(own, arm)) / np.median(one.served):.2f} times its rate")
        share = paired(np.divide(one.served, one.in_process).tolist())
        name = f"{one.model} {one.variant}: served ÷ in process"
        yield AimResult(name, share, SERVED_RATIO, "share", "; ".join([f"batch {one.batch_size}", *where]))


def _latency(found: Findings) -> AimResult:
    name = "minilm, one row: best options ÷ plain CUDA provider"
    arms = [one for one in found.options if (one.model, one.batch_size) == ("minilm", 1) and one.ratios]
    if not arms:
        return AimResult(name, Reading(absent=NOT_RUN), LATENCY_RATIO, "times")
    top = max(arms, key=lambda one: float(np.median(one.ratios)))
    note = f"{top.variant}, {top.arm}: {1e3 * top.median_s:.3g} ms"
    return AimResult(name, paired(top.ratios), LATENCY_RATIO, "times", note)


def _half(found: Findings, model: str) -> AimResult:
    """At the batch size at which FP16 does most."""
    name = f"{model}: FP16 ÷ FP32 on the card"
    own = [
        one for one in found.speeds if (one.model, one.variant, one.engine) == (model, "fp16", "cuda") and one.ratios
    ]
    if not own:
        return AimResult(name, Reading(absent=NOT_RUN), HALF_RATIO, "times")
    top = max(own, key=lambda one: median([one.batch_size / seconds for seconds in one.rounds_s]).value or 0.0)
    return AimResult(name, paired(top.ratios), HALF_RATIO, "times", f"batch {top.batch_size}")
