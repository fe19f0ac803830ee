"""How much faster than FP32 is a variant, on this very processor, engine and engine version?

A measurement from elsewhere counts as none. What a model's public name means follows from it in `serving/scheduling/routing.py`;
deadlines, load and pins are not here. Rule: doubt goes to FP32; a variant that is clearly slower at any batch size measured is
never the default, whatever it gains at another.
"""

from __future__ import annotations

from collections.abc import Iterable

from serving.repository import Speed

BASELINE = "fp32"


def clear_ratio(speeds: Iterable[Speed], *, processor: str, engine: str, engine_version: str) -> float | None:
    """The largest gain over FP32 whose whole interval lies above 1; None if unmeasured here, unclear or mixed with a loss."""
    key = (processor, engine, engine_version)
    here = [speed for speed in speeds if (speed.processor, speed.engine, speed.engine_version) == key]
    if any(speed.ratio_high < 1 for speed in here):
        return None
    return max((speed.ratio for speed in here if speed.ratio_low > 1), default=None)
