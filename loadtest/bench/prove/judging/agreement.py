"""How far is a simulated run from the real one of the same arrivals? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf
from statistics import median

from loadtest.bench.verdicts import AtMost, Verdict
from loadtest.sending.shot import Shot

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
        return off(self.simulated_attainment_ratio, self.real_attainment_ratio)

    @property
    def throughput_off_ratio(self) -> float | None:
        return off(self.simulated_throughput_rps, self.real_throughput_rps)


def off(simulated: float, real: float) -> float | None:
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
    """The median run is judged, the worst one told."""
    real = median(run.real_attainment_ratio for run in runs)
    simulated = median(run.simulated_attainment_ratio for run in runs)
    real_rps = median(run.real_throughput_rps for run in runs)
    simulated_rps = median(run.simulated_throughput_rps for run in runs)
    attained, answered = [run.attainment_off_ratio for run in runs], [run.throughput_off_ratio for run in runs]
    return [
        _verdict(f"{name}: attainment off by", attained, f"{simulated:.3f} and {real:.3f}"),
        _verdict(f"{name}: throughput off by", answered, f"{simulated_rps:.1f} and {real_rps:.1f} answers/s"),
    ]


def _verdict(name: str, offs: Sequence[float | None], values: str) -> Verdict:
    """A run with nothing real in it is the worst there can be."""
    ordered = sorted(float("inf") if off is None else off for off in offs)
    middle, worst = ordered[len(ordered) // 2], ordered[-1]
    told = "worst: nothing real" if isinf(worst) else f"worst {worst:.3f}"
    return Verdict(name, None if isinf(middle) else middle, OFF, f"{told}; {values}")
