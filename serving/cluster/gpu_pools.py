"""Which of several GPU pools does the scaler weigh against the CPU, and which follow it in vain? Pure.

The scaler weighs one GPU pool, the first of tandem.yaml; the chart writes pools there by name (`scaling.pool_groups`).
Any other gets servers only for traffic that no other pool may answer, whatever it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unweighed:
    """`found` is what is so, `fix` what to do about it."""

    weighed: str
    others: tuple[str, ...]

    @property
    def found(self) -> str:
        others = " and ".join(self.others)
        verb = "follows" if len(self.others) == 1 else "follow"
        return (
            f"of the GPU pools the scaler weighs {self.weighed} alone, the first by name; {others} {verb} it too and "
            f"get{'s' if len(self.others) == 1 else ''} Tritons only for traffic that no other pool may answer"
        )

    @property
    def fix(self) -> str:
        return (
            "name the pool that is to wake when it pays so that it comes first, and give the others a fixed number "
            "(`replicas`, autoscaling.enabled=false): docs/scaler.md"
        )


def unweighed(pools: Mapping[str, bool]) -> Unweighed | None:
    """`pools`: of each GPU pool, whether its number follows the scaler. None where no pool follows in vain."""
    weighed, *rest = sorted(pools) or [""]
    others = tuple(name for name in rest if pools[name])
    return Unweighed(weighed, others) if others else None
