"""A pool died under load: was any request lost, did any hang, and was anything said that is not true?

Pure. A request has an answer in time, or an honest 503 or 504; whatever else is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.sending.shot import Shot, listed

HANG_S = (
    0.1  # past a deadline before a request counts as hanging: a loop that is busy and a way back; a guess, not measured
)
END_S = 2.0  # of the load, in which the dead one is back
NONE = AtMost(0)
FLOWS = AtLeast(0.9)  # of the rate that what is left can carry; a guess, not measured
BACK = AtLeast(0.95)  # of all that are asked at the end, when both pools can do them; a guess, not measured
# What was being computed at the kill and has no time left for the other pool: of an execution of ten rows a few. 1 to 3 were measured.
LOST = AtMost(5)


def verdicts(
    name: str, shots: Sequence[Shot], killed_s: float, deadline_s: float, left_rps: float, until_s: float, end_s: float
) -> list[Verdict]:
    """`left_rps`: what the pools that are left can carry until `until_s`, or all that was asked where that is less.

    The load ends at `end_s`.
    """
    before = [shot for shot in shots if shot.ended_s < killed_s]
    after = [shot for shot in shots if shot.ended_s >= killed_s]
    wrong = [shot for shot in after if not shot.is_answered and not shot.is_honest]
    refused = [shot for shot in after if not shot.is_answered and shot.is_honest]
    num_answered = sum(shot.is_answered for shot in after)
    pools = {shot.pool for shot in before if shot.is_answered}
    counts = f"{num_answered} answered, {listed(refused) or 'none refused'}"
    carried = [shot for shot in after if shot.is_answered and shot.ended_s < until_s]
    rate_rps = len(carried) / (until_s - killed_s)
    lost = sum(shot.tandem_error == "upstream_lost" for shot in after)
    last = [shot for shot in shots if shot.due_s >= end_s - END_S]
    served = sum(shot.is_answered and shot.took_s <= deadline_s for shot in last)
    longest_s = max((shot.took_s for shot in after), default=0.0)
    return [
        Verdict(f"{name}: neither 200 nor an honest 503 or 504", len(wrong), NONE, listed(wrong) or counts),
        Verdict(f"{name}: 503 upstream_lost", lost, LOST, "had no time left for the other pool" if lost else ""),
        Verdict(f"{name}: longest request", longest_s, AtMost(deadline_s + HANG_S, "s"), f"deadline {deadline_s:g} s"),
        Verdict(
            f"{name}: answered ÷ what the others can carry, while it is away",
            rate_rps / left_rps,
            FLOWS,
            f"{rate_rps:.0f} of {left_rps:.0f} requests/s; answered before by {' and '.join(sorted(pools))}",
        ),
        Verdict(
            f"{name}: answered in time ÷ asked, at the end",
            served / len(last) if last else None,
            BACK,
            f"{served} of {len(last)} in the last {END_S:g} s",
        ),
    ]
