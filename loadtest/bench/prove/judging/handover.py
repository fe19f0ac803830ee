"""A GPU pool came up under load: who answered meanwhile, what did receipts say, and was the handover felt?

Pure. Three times: until the pool answers anything, until it counts as ready, and the handover after that. It is the longest answer
that is judged: of 800 a spike of seven would be in no p99.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.sending.shot import Shot, listed, percentile

NONE = AtMost(0)
SHARE = AtLeast(0.95)  # of the last requests: what is cheaper there is to go there
BRIDGED = AtLeast(1.0)
END_S = 2.0  # of the load, over which the share at the end is taken


@dataclass(frozen=True, slots=True)
class Times:
    """Of one clock. `seen_s`: the gateway saw it answer; `ready_s`: it may have requests; `end_s`: the load ended."""

    seen_s: float
    ready_s: float
    end_s: float


def verdicts(name: str, shots: Sequence[Shot], gpu: str, times: Times, objective_s: float) -> list[Verdict]:
    errors = [shot for shot in shots if not shot.is_answered]
    answers = [shot for shot in shots if shot.is_answered]
    warming = [s for s in answers if s.ended_s < times.ready_s]
    bridged = sum(shot.reason == "bridged" and shot.pool != gpu for shot in warming)
    during = [shot.took_s for shot in answers if times.seen_s <= shot.due_s]
    before = percentile((shot.took_s for shot in answers if shot.ended_s < times.seen_s), 0.99)
    last = [shot for shot in answers if shot.due_s >= times.end_s - END_S]
    share = sum(shot.pool == gpu for shot in last) / len(last) if last else None
    reasons = Counter(shot.reason for shot in warming)
    words = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    return [
        Verdict(f"{name}: anything but 200", len(errors), NONE, listed(errors) or f"{len(answers)} answered"),
        Verdict(
            f"{name}: bridged ÷ answered, until it is ready",
            bridged / len(warming) if warming else None,
            BRIDGED,
            f"{words or 'no answer'}",
        ),
        Verdict(
            f"{name}: longest from when the GPU pool is seen on",
            max(during, default=None),
            AtMost(objective_s, "s"),
            f"p99 {1000 * (percentile(during, 0.99) or 0.0):.0f} ms; on the CPU alone {1000 * (before or 0.0):.0f} ms",
        ),
        Verdict(f"{name}: share of the GPU pool at the end", share, SHARE, f"of {len(last)} answers"),
    ]
