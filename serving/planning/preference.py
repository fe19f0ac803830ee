"""Which variant answers a request that names none, on one pool?

FP32 unless another variant is proven on this pool and measured faster on this very processor, engine and engine version:
a measurement from elsewhere counts as none. Deadlines, load and pins are not here. Rule: doubt goes to FP32; a variant
that is clearly slower at any batch size measured is never the default, whatever it gains at another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serving.repository import NOT_USEFUL, PASSED, Speed

BASELINE = "fp32"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant loaded on the pool. `speed_ratio` is `clear_ratio`'s answer, None where nothing clear was measured."""

    variant: str
    gate: str
    speed_ratio: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    variant: str
    reason: str


def clear_ratio(speeds: Iterable[Speed], *, processor: str, engine: str, engine_version: str) -> float | None:
    """The largest gain over FP32 whose whole interval lies above 1; None if unmeasured here, unclear or mixed with a loss."""
    key = (processor, engine, engine_version)
    here = [speed for speed in speeds if (speed.processor, speed.engine, speed.engine_version) == key]
    if any(speed.ratio_high < 1 for speed in here):
        return None
    return max((speed.ratio for speed in here if speed.ratio_low > 1), default=None)


def order(candidates: Iterable[Candidate]) -> list[Choice]:
    """Who may be the default, the best first. Equal ratios go by name, so that every gateway says the same.

    A `not_useful` gate is about the processor it was measured on: a gain measured on this one overrules it.
    """
    known = sorted(candidates, key=lambda candidate: candidate.variant)
    fast = [c for c in known if c.gate in (PASSED, NOT_USEFUL) and c.variant != BASELINE and (c.speed_ratio or 0) > 1]
    fast.sort(key=lambda candidate: -(candidate.speed_ratio or 0))
    choices = [Choice(c.variant, f"measured {c.speed_ratio:.2f} times as fast as FP32 here") for c in fast]
    fallback = [c for c in known if c.gate == PASSED and c not in fast]
    fallback.sort(key=lambda candidate: candidate.variant != BASELINE)
    return choices + [Choice(c.variant, _fallback_reason(c)) for c in fallback]


def preferred(candidates: Iterable[Candidate]) -> Choice | None:
    """The default variant on this pool; None if no candidate may be one."""
    return next(iter(order(candidates)), None)


def _fallback_reason(candidate: Candidate) -> str:
    if candidate.variant == BASELINE:
        return "no other variant is measured clearly faster here"
    return "no gain over FP32 is measured here, and what comes before it is not loaded"
