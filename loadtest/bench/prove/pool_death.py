"""Either of two pools is killed under load: what becomes of the requests that it had, and of those that come after?

SIGKILL of the tritonserver, which its supervisor starts again. Both pools are busy: the load is more than the cheap one can do.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.attempts import attempts, on_time
from loadtest.bench.prove.emulated import Triton, digits, gateway, serves, triton, wait_until
from loadtest.bench.prove.judging.pool_death import verdicts
from loadtest.bench.prove.overload import CHEAP, DEAR, hurried
from loadtest.bench.verdicts import Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.sender import open_load
from loadtest.target import Gateway

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
    """Raises Lagged."""
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
