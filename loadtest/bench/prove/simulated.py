"""Does a simulated run say what a real one does? Two pools, mixed batches, three rates, the same arrivals for both.

The real run is timed by the generator, the simulated one knows curves and prices alone. What a gateway costs is in the real one only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.attempts import attempts, on_time
from loadtest.bench.prove.emulated import Pool, digits, gateway, serves, triton, wait_until
from loadtest.bench.prove.judging.agreement import Agreement, agreement, verdicts
from loadtest.bench.prove.overload import CHEAP, DEADLINE_S, DEAR, hurried
from loadtest.bench.verdicts import Verdict
from loadtest.sending.link import Request
from loadtest.sending.sender import open_loop
from serving.decisions.simulate.fixed import FixedPool, replay
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service

ROWS = 1, 1, 1, 4, 16  # in turn: mostly single rows, as clients send them
MAX_ROWS = 32
RATES_ROWS_PER_S = 100.0, 250.0, 750.0  # of 260 that both can do: easy, about full, far too many
NUM_RUNS = 5
RUN_S = 5.0
POOLS = CHEAP, DEAR


def agreements(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    with (
        triton(CHEAP, folder / "cheap") as cheap,
        triton(DEAR, folder / "dear") as dear,
        gateway({CHEAP: cheap.url, DEAR: dear.url}, folder) as here,
    ):
        wait_until(lambda: all(serves(here, pool) for pool in POOLS), "both pools are seen")
        requests = [hurried(here, digits(rows), DEADLINE_S) for rows in ROWS]
        for rows_per_s in RATES_ROWS_PER_S:
            rate_rps = rows_per_s * len(ROWS) / sum(ROWS)
            runs = [_run(requests, rate_rps, seed) for seed in range(NUM_RUNS)]
            yield from verdicts(f"simulated ÷ real, {rate_rps:.0f} requests/s of {rows_per_s:g} rows/s", runs)


def _run(requests: Sequence[Request], rate_rps: float, seed: int) -> Agreement:
    def once(attempt: int) -> Agreement:
        due = list(schedule(Arrivals("poisson", rate_rps), RUN_S, seed + attempt * NUM_RUNS))
        shots = on_time(open_loop(requests, due), DEADLINE_S)
        arrivals = [(at, ROWS[n % len(ROWS)]) for n, at in enumerate(due)]
        simulated = replay([_fixed(pool) for pool in POOLS], arrivals, DEADLINE_S)
        return agreement(shots, DEADLINE_S, simulated.attainment_ratio, simulated.throughput_rps)

    return attempts(once)


def _fixed(pool: Pool) -> FixedPool:
    return FixedPool(pool.name, Service(Curve(pool.points), 1, MAX_ROWS), pool.price)
