"""Does a simulated run say what a real one does? Two pools, mixed batches, three rates, the same arrivals for both.

The generator times the real run; the simulated one knows only curves and prices. The cost of a gateway is in the real one only.

The judging is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from statistics import median

from loadtest.arrivals import Arrivals, schedule
from loadtest.bench.prove.emulated import Pool, attempts, digits, gateway_before, on_time
from loadtest.bench.prove.overload import CHEAP, DEADLINE_S, DEAR, hurried
from loadtest.bench.verdicts import AtMost, Verdict
from loadtest.sending.link import Request
from loadtest.sending.sender import open_loop
from loadtest.sending.sent_request import Shot
from serving.decisions.simulate.fixed_pools import FixedPool, replay
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service

OFF = AtMost(0.15)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Real and simulated: the share of requests answered in time, and answers a second from the first arrival to the last answer."""

    real_attainment_ratio: float
    simulated_attainment_ratio: float
    real_throughput_rps: float
    simulated_throughput_rps: float

    @property
    def attainment_off_ratio(self) -> float | None:
        return relative_error(self.simulated_attainment_ratio, self.real_attainment_ratio)

    @property
    def throughput_off_ratio(self) -> float | None:
        return relative_error(self.simulated_throughput_rps, self.real_throughput_rps)


def relative_error(simulated: float, real: float) -> float | None:
    """How far apart, as a part of the real one; None where there is nothing real to be a part of."""
    if real == 0:
        return 0.0 if simulated == 0 else None
    return abs(simulated - real) / real


def agreement(shots: Sequence[Shot], deadline_s: float, attainment_ratio: float, throughput_rps: float) -> Agreement:
    answers = [shot for shot in shots if shot.is_answered]
    in_time = sum(shot.took_s <= deadline_s for shot in answers)
    lasting_s = max([*(s.ended_s for s in answers), *(s.due_s for s in shots)]) - min(s.due_s for s in shots)
    return Agreement(in_time / len(shots), attainment_ratio, len(answers) / lasting_s, throughput_rps)


def verdicts(name: str, runs: Sequence[Agreement]) -> list[Verdict]:
    """Judges the median run and names the worst one."""
    real = median(run.real_attainment_ratio for run in runs)
    simulated = median(run.simulated_attainment_ratio for run in runs)
    real_rps = median(run.real_throughput_rps for run in runs)
    simulated_rps = median(run.simulated_throughput_rps for run in runs)
    attained, answered = [run.attainment_off_ratio for run in runs], [run.throughput_off_ratio for run in runs]
    return [
        _verdict(f"{name}: attainment off by", attained, f"{simulated:.3f} and {real:.3f}"),
        _verdict(f"{name}: throughput off by", answered, f"{simulated_rps:.1f} and {real_rps:.1f} answers/s"),
    ]


def _verdict(name: str, errors: Sequence[float | None], values: str) -> Verdict:
    """A run without a single real answer counts as the worst possible."""
    ordered = sorted(float("inf") if error is None else error for error in errors)
    middle, worst = ordered[len(ordered) // 2], ordered[-1]
    worst_text = "worst: nothing real" if isinf(worst) else f"worst {worst:.3f}"
    return Verdict(name, None if isinf(middle) else middle, OFF, f"{worst_text}; {values}")


ROWS = 1, 1, 1, 4, 16  # in turn: mostly single rows, as clients send them
MAX_ROWS = 32
RATES_ROWS_PER_S = 100.0, 250.0, 750.0  # of 260 that both can do: easy, about full, far too many
NUM_RUNS = 5
RUN_S = 5.0
POOLS = CHEAP, DEAR


def agreements(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    with gateway_before(POOLS, folder) as here:
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
