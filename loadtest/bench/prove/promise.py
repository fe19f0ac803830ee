"""Was a refused request told the truth about when to come back?

Pure. Once the load has stopped, the very same request is sent again and again; a refusal changes nothing, and the first one that is let
in shows when the door really opened. Keep: a promise is compared with that moment, and is as wrong where it is too long as where it is
too short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from loadtest.bench.verdicts import AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.sent_request import Shot

OFF = AtMost(0.30)
# Of the longer of promise and opening: with more, half of what is judged would be the prober's.
MAX_STEP_RATIO = OFF.limit / 2


@dataclass(frozen=True, slots=True)
class Promise:
    """`opened_s`: from the refusal to the first that was let in, known to `step_s` (when the last refused one was sent)."""

    promised_s: float
    opened_s: float
    step_s: float

    @property
    def off_ratio(self) -> float:
        """How far the promise lies from the interval in which the door opened, as a part of when it opened."""
        earliest_s = self.opened_s - self.step_s
        return max(earliest_s - self.promised_s, self.promised_s - self.opened_s, 0.0) / self.opened_s

    @property
    def is_blurred(self) -> bool:
        """The prober stood still for so long that a wrong promise would look right. A short opening after a long promise is none."""
        return self.step_s > MAX_STEP_RATIO * max(self.opened_s, self.promised_s)


def promise(probes: Sequence[Shot]) -> Promise | None:
    """From identical requests that were sent one after the other with no other load. None: nothing was refused, or nothing let in.

    A 504 was let in, too: it was not in time, which is another question.
    """
    if not probes or not probes[0].is_refused or probes[0].retry_after_ms is None:
        return None
    refused_s = probes[0].ended_s
    for before, probe in pairwise(probes):
        if not probe.is_refused:
            return Promise(probes[0].retry_after_ms / 1000, probe.sent_s - refused_s, probe.sent_s - before.sent_s)
    return None


def enough(trials: Iterable[Sequence[Shot]], num_wanted: int) -> list[Promise | None]:
    """Of the first trials that say something. Raises CannotMeasure where there are too few: a median of one promises nothing.

    Says nothing: one in which the door was open, and one whose prober was too slow to know when it opened.
    """
    kept: list[Promise | None] = []
    num_trials = 0
    for probes in trials:
        num_trials += 1
        one = promise(probes)
        if probes and probes[0].is_refused and not (one and one.is_blurred):
            kept.append(one)
        if len(kept) == num_wanted:
            return kept
    raise CannotMeasure(
        f"of {num_trials} trials {len(kept)} had a refusal and a prober that was quick enough, {num_wanted} are needed"
    )


def verdict(name: str, promises: Sequence[Promise | None]) -> Verdict:
    """The median is judged. One that says nothing counts as entirely wrong."""
    offs = [1.0 if one is None else one.off_ratio for one in promises]
    known = [one for one in promises if one is not None]
    if not known:
        return Verdict(name, None, OFF, "no trial had a promise and an opening")
    promised_s, opened_s = (median(one.promised_s for one in known), median(one.opened_s for one in known))
    note = f"worst of {len(offs)}: {max(offs):.2f}; promised {promised_s * 1000:.0f} ms, opened after {opened_s * 1000:.0f} ms, medians"
    return Verdict(name, median(offs), OFF, note)
