"""With more to do than can be done: how much was done in time, how much came late, and how soon were the others told?

Pure. Capacity is given: what the same generator saw of the same servers when it kept them busy and nobody was in a hurry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from loadtest.bench.verdicts import AtLeast, AtMost, Verdict
from loadtest.sending.sent_request import Shot, listed, percentile

CAPACITY = AtLeast(0.90)  # of what the curves allow; the rest is what a gateway and a way over loopback cost
GOODPUT = AtLeast(0.90)
LATE = AtMost(0.01)
EXPIRED = AtMost(0.05)  # twice the 2.2 % that were measured, rounded: whoever is let in is promised an answer in time
REFUSED = AtMost(0.020, "s")
NONE = AtMost(0)


@dataclass(frozen=True, slots=True)
class Overload:
    """One trial. Ratios of the goodput to capacity, of late answers to all answers, of 504 to all that were let in."""

    goodput_rps: float
    goodput_ratio: float
    late_ratio: float
    expired_ratio: float
    refused_median_s: float | None
    refused_p99_s: float | None
    offered_ratio: float
    wrong: tuple[Shot, ...]  # neither answered nor honest


def overload(shots: Sequence[Shot], begin_s: float, end_s: float, deadline_s: float, capacity_rps: float) -> Overload:
    """Goodput counts answers that came between the two moments; everything else counts over all of the load."""
    answers = [shot for shot in shots if shot.is_answered]
    late = sum(shot.took_s > deadline_s for shot in answers)
    good = [s for s in answers if s.took_s <= deadline_s and begin_s <= s.ended_s < end_s]
    expired = sum(shot.status == 504 for shot in shots)
    refused = [shot.took_s for shot in shots if shot.is_refused]
    goodput_rps = len(good) / (end_s - begin_s)
    offered = sum(begin_s <= shot.due_s < end_s for shot in shots) / (end_s - begin_s)
    return Overload(
        goodput_rps=goodput_rps,
        goodput_ratio=goodput_rps / capacity_rps,
        late_ratio=late / len(answers) if answers else 1.0,
        expired_ratio=expired / (expired + len(answers)) if expired else 0.0,
        refused_median_s=median(refused) if refused else None,
        refused_p99_s=percentile(refused, 0.99),
        offered_ratio=offered / capacity_rps,
        wrong=tuple(shot for shot in shots if not shot.is_answered and not shot.is_honest),
    )


def capacity(name: str, measured_rps: float, by_curves_rps: float) -> Verdict:
    """Every other line is a part of the measured one: a generator that asked for too little would make them all look well."""
    note = f"{measured_rps:.0f} of {by_curves_rps:.0f} requests/s"
    return Verdict(f"{name}: capacity ÷ what the curves say", measured_rps / by_curves_rps, CAPACITY, note)


def verdicts(name: str, trials: Sequence[Overload], capacity: str) -> list[Verdict]:
    """The median trial is judged, and the worst one told; a wrong answer in any of them counts."""
    goodputs = [trial.goodput_ratio for trial in trials]
    lates = [trial.late_ratio for trial in trials]
    expired = [trial.expired_ratio for trial in trials]
    offered = median(trial.offered_ratio for trial in trials)
    wrong = [shot for trial in trials for shot in trial.wrong]
    rate = f"{median(t.goodput_rps for t in trials):.0f} requests/s of {capacity}, offered {offered:.2f} times that"
    return [
        Verdict(f"{name}: goodput ÷ capacity", median(goodputs), GOODPUT, f"{_worst(min(goodputs))}; {rate}"),
        Verdict(f"{name}: late ÷ answered", median(lates), LATE, _worst(max(lates))),
        Verdict(f"{name}: 504 ÷ let in", median(expired), EXPIRED, _worst(max(expired))),
        _refusals(name, trials),
        Verdict(f"{name}: answers that are neither 200 nor honest", len(wrong), NONE, listed(wrong)),
    ]


def _refusals(name: str, trials: Sequence[Overload]) -> Verdict:
    """A trial in which nothing was refused had no overload, and has no value."""
    p99s = [trial.refused_p99_s for trial in trials if trial.refused_p99_s is not None]
    medians = [trial.refused_median_s for trial in trials if trial.refused_median_s is not None]
    if len(p99s) < len(trials):
        return Verdict(f"{name}: refusals, p99", None, REFUSED, "a trial without refusals")
    note = f"{_worst(max(p99s) * 1000, ' ms')}; median {median(medians) * 1000:.1f} ms"
    return Verdict(f"{name}: refusals, p99", median(p99s), REFUSED, note)


def _worst(value: float, unit: str = "") -> str:
    return f"worst trial {value:.3g}{unit}"
