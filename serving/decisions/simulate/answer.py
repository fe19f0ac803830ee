"""What does a simulation answer? A sentence to forward and three figures, out of the outcomes alone.

The policy that is asked about is Tandem's own, or the first where that was not simulated. Rule: every ratio is the quotient of the numbers
that are shown beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.decisions.prices import HOUR_S
from serving.decisions.simulate.flow import FlowOutcome, regret
from serving.decisions.simulate.outcome import Outcome
from serving.decisions.wording import money, times

ORACLE = "oracle"  # knows the future, so that nobody can run it


@dataclass(frozen=True, slots=True)
class Answer:
    """`figures`: name, value, what belongs to it."""

    headline: str
    sentence: str
    figures: tuple[tuple[str, str, str], ...]

    def lines(self) -> str:
        """For a terminal."""
        return "\n".join(
            [f"What-if: {self.sentence}", *(f"  {name}: {value} ({note})" for name, value, note in self.figures)]
        )


def answer(outcomes: Sequence[Outcome], objective_s: float) -> Answer:
    mine = next((it for it in outcomes if it.policy == "tandem"), outcomes[0])
    others = [it for it in outcomes if it is not mine and it.policy != ORACLE]
    sentence = (
        f"{mine.policy} keeps {_share(mine)} of {mine.num_requests:,} requests within {times(objective_s)} "
        f"for {money(mine.cost, '')}{_beside(mine, others)}."
    )
    per_million = mine.cost_per_million
    late = mine.num_late + mine.num_refused + mine.num_expired
    oracle = next((it for it in outcomes if it.policy == ORACLE and it is not mine), None)
    foreseen = (
        "" if oracle is None else f"; with the future known {money(_per_hour(oracle), '')}, {_share(oracle)} in time"
    )
    woken = {0: "never", 1: "once"}.get(mine.num_gpu_starts, f"{mine.num_gpu_starts} times")
    figures = (
        ("In time", _share(mine), f"{late:,} of {mine.num_requests:,} late, refused or expired"),
        (
            "Cost an hour",
            money(_per_hour(mine), ""),
            ("nothing was in time" if per_million is None else f"{money(per_million, '')} per million in time")
            + foreseen,
        ),
        (
            "GPU woken",
            woken,
            f"{mine.gpu_hours:.2f} h of GPU servers, {mine.cpu_hours:.2f} h of CPU servers",
        ),
    )
    return Answer(f"{mine.policy} wakes the GPU {woken}", sentence, figures)


def _beside(mine: Outcome, others: Sequence[Outcome]) -> str:
    """The cheapest of the others that has as many in time; without one, who has most."""
    if not others or not mine.cost:
        return ""
    as_good = [it for it in others if it.num_violations <= mine.num_violations]
    if not as_good:
        best = min(others, key=lambda it: it.num_violations)
        return f"; no other here has as many in time, {best.policy} has {_share(best)} for {money(best.cost, '')}"
    best = min(as_good, key=lambda it: it.cost)
    if money(best.cost, "") == money(mine.cost, ""):
        return f"; {best.policy} costs the same, with {_share(best)} in time"
    ratio = float(money(best.cost, "").replace(",", "")) / float(money(mine.cost, "").replace(",", ""))
    return f"; {best.policy}, the cheapest other with as many in time, costs {money(best.cost, '')}, {ratio:.2f} times as much"


def _share(it: Outcome) -> str:
    """Never rounded up to all."""
    if it.num_violations and it.attainment_ratio > 0.9999:
        return "99.99 %"
    return f"{it.attainment_ratio * 100:.4g} %"


def _per_hour(it: Outcome) -> float:
    return it.cost * HOUR_S / it.duration_s


def flow_answer(outcomes: Sequence[FlowOutcome], best: FlowOutcome) -> Answer:
    """By a flow of work: the first is the scaler's own rule."""
    mine, *others = outcomes
    rival = min(others, key=lambda it: it.charged, default=None)
    beside = "" if rival is None else f"; {rival.name}, the best of the others, {regret(rival, best):.2f}"
    sentence = f"{mine.name} is charged {regret(mine, best):.2f} times what knowing the future would cost{beside}."
    figures = (
        ("Regret", f"{regret(mine, best):.2f}", f"{mine.charged:.3f} charged, {best.charged:.3f} by the optimum"),
        ("Servers", f"{mine.cost:.3f}", f"{money(mine.cost * HOUR_S / mine.duration_s, '')} an hour"),
        ("Not done", f"{mine.undone_ratio:.2%}", f"of the work, charged with {mine.undone:.3f}"),
    )
    return Answer(f"Regret {regret(mine, best):.2f}", sentence, figures)
