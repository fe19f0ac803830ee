"""Does a server carry what the plan says that it carries, and is the plan no excuse for an idle one? Pure.

At its highest rate, and at the share of it that plans load servers to; and well above it, where a plan that was too careful would show.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from loadtest.bench.verdicts import AtMost, Reach, Verdict
from serving.decisions.profile import LoadPoint

OFF = AtMost(0.15)
LATE = AtMost(0.01)  # what p99 in time allows
TOO_MUCH = Reach(0.01)


def verdicts(
    planned_rps: float, at_most: Sequence[LoadPoint], as_planned: Sequence[LoadPoint], beyond: Sequence[LoadPoint]
) -> list[Verdict]:
    """Runs at the highest rate, at the planned share of it, and beyond it."""
    answered = [point.throughput_rps / planned_rps for point in at_most]
    offs = sorted(abs(ratio - 1) for ratio in answered)
    share = as_planned[0].rate_rps / planned_rps
    return [
        Verdict(
            "answers a second at the highest rate, off by",
            abs(median(answered) - 1),
            OFF,
            f"{median(point.throughput_rps for point in at_most):,.1f} of {planned_rps:,.1f}, worst {offs[-1]:.3f}",
        ),
        Verdict(f"late or lost at {share:.0%} of it, as planned", *_late(as_planned, LATE)),
        Verdict(f"late or lost at {beyond[0].rate_rps / planned_rps:.2g} times it", *_late(beyond, TOO_MUCH)),
    ]


def _late(points: Sequence[LoadPoint], aim: AtMost | Reach) -> tuple[float, AtMost | Reach, str]:
    ratios = sorted(point.num_late_or_lost / point.num_due for point in points)
    return (
        median(ratios),
        aim,
        f"{ratios[0]:.2%} to {ratios[-1]:.2%} of {len(points)} runs at {points[0].rate_rps:,.1f}/s",
    )
