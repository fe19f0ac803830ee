"""What happened to requests around the moment when something was killed? Pure: shots with their times in, facts out.

An honest refusal is a 503 that says when to come back (Retry-After) and what it is (Tandem-Error). Whatever else is not a 200 is
dishonest: it blames the client, says that the model failed, or says nothing at all. A request that found no listener was never taken, so
it is not lost; one that was sent and got no whole answer is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.sending.sent_request import Shot


@dataclass(frozen=True, slots=True)
class Outage:
    """`first_refusal_s` and `recovered_s` count from the kill; None: it did not come (a refusal need not)."""

    num_answered: int
    num_refused: int
    first_refusal_s: float | None
    recovered_s: float | None
    longest_s: float
    wrong: Counter[str]  # everything that is neither a 200 nor an honest 503, by what it was

    @property
    def num_wrong(self) -> int:
        return self.wrong.total()


def outage(shots: Iterable[Shot], killed_s: float) -> Outage:
    """Only what ended after the kill counts. Recovered: the first 200 after which nothing but 200 came."""
    after = sorted((a for a in shots if a.ended_s >= killed_s), key=lambda shot: shot.ended_s)
    refusals = [shot for shot in after if shot.is_honest]
    wrong = Counter(str(shot) for shot in after if not (shot.is_answered or shot.is_honest))
    return Outage(
        num_answered=sum(shot.is_answered for shot in after),
        num_refused=len(refusals),
        first_refusal_s=refusals[0].ended_s - killed_s if refusals else None,
        recovered_s=_recovered(after, killed_s),
        longest_s=max((shot.took_s for shot in after), default=0.0),
        wrong=wrong,
    )


def _recovered(after: Sequence[Shot], killed_s: float) -> float | None:
    """None while the last word was not a 200."""
    good_since: float | None = None
    for shot in after:
        if not shot.is_answered:
            good_since = None
        elif good_since is None:
            good_since = shot.ended_s
    return None if good_since is None else good_since - killed_s


@dataclass(frozen=True, slots=True)
class Farewell:
    """What became of requests while a server was told to stop."""

    num_answered: int  # whole answers after the signal
    num_turned_away: int
    lost: Counter[str]
    longest_s: float

    @property
    def num_lost(self) -> int:
        return self.lost.total()


def farewell(shots: Iterable[Shot], signal_s: float) -> Farewell:
    """Only what ended after the signal counts. An honest refusal is an answer: it says that the work was not taken."""
    after = [shot for shot in shots if shot.ended_s >= signal_s]
    taken = [shot for shot in after if shot.is_answered or shot.is_honest]
    return Farewell(
        num_answered=len(taken),
        num_turned_away=sum(not shot.is_sent for shot in after),
        lost=Counter(str(shot) for shot in after if shot.is_sent and not (shot.is_answered or shot.is_honest)),
        longest_s=max((shot.took_s for shot in taken), default=0.0),
    )
