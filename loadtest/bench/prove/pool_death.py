"""Either of two pools is killed under load: what becomes of the requests that it had, and of those that come after?

SIGKILL of the tritonserver, which its supervisor starts again. Both pools are busy: the load is more than the cheap one can do.

The judging is pure: a request has an answer in time, or an honest 503 or 504; whatever else is lost.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import Triton, attempts, digits, gateway, on_time, serves, triton, wait_until
from loadtest.bench.prove.overload import CHEAP, DEAR, hurried
from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.sender import open_load
from loadtest.sending.sent_request import Shot, listed
from loadtest.target import Gateway

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
    """`left_rps`: what the remaining pools can carry until `until_s`, or the whole load where that is less.

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


DEADLINE_S = 1.0  # long enough for a second try at the other pool, and shorter than the dead one is away
RATE_RPS = 140.0  # more than the cheap pool can do alone, less than the dear one can
LOAD_S = 9.5
STEADY_S = 3.5  # in which the queue of the cheap pool fills, so that the dear one has work too
AWAY_S = 1.0  # after the kill, in which the others carry what they can: Triton needs about two to be back


def kills(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    with (
        triton(CHEAP, folder / "cheap") as cheap,
        triton(DEAR, folder / "dear") as dear,
        gateway({CHEAP: cheap.url, DEAR: dear.url}, folder) as here,
    ):
        for seed, (victim, other) in enumerate(((cheap, dear), (dear, cheap))):
            yield from attempts(partial(_kill, here, victim, other, seed))


def _kill(here: Gateway, victim: Triton, other: Triton, seed: int, attempt: int) -> list[Verdict]:
    """Raises GeneratorLag."""
    wait_until(lambda: serves(here, CHEAP) and serves(here, DEAR), "both pools are seen")
    request = hurried(here, digits(), DEADLINE_S)
    server = victim.server()
    with open_load([request], schedule(Arrivals("poisson", RATE_RPS), LOAD_S, seed + attempt * 2)) as load:
        time.sleep(max(0.0, load.began_s + STEADY_S - time.monotonic()))
        if victim.pool.name not in {shot.pool for shot in load.so_far()}:
            raise CannotMeasure(f"{victim.pool.name} had nothing to do before it was killed")
        killed_s = time.monotonic()
        os.kill(server.pid, signal.SIGKILL)
    shots = on_time(load, DEADLINE_S)
    left_rps = min(RATE_RPS, other.pool.rate_rps)
    name, end_s = f"SIGKILL of {victim.pool.name}", load.began_s + LOAD_S
    return verdicts(name, shots, killed_s, DEADLINE_S, left_rps, killed_s + AWAY_S, end_s)
