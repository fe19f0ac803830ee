"""What happened to requests around the moment when something was killed? Pure: attempts with their times in, facts out.

An honest refusal is a 503 that says when to come back (Retry-After) and what it is (Tandem-Error). Whatever else is not a 200 is
dishonest: it blames the client, says that the model failed, or says nothing at all. Times are of one clock, in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    ANSWERED = "answered"
    REFUSED = "refused honestly"
    DISHONEST = "dishonest"
    TURNED_AWAY = "no connection"  # the listener was closed: nothing was taken, so nothing is lost
    LOST = "lost"  # sent on an accepted connection, and no whole answer came


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request as a client saw it. `status` None: no whole answer; `error` then says why, and whether it had been `sent`."""

    began_s: float
    ended_s: float
    status: int | None = None
    retry_after: str | None = None
    tandem_error: str | None = None
    sent: bool = True
    error: str = ""

    @property
    def kind(self) -> Kind:
        if self.status is None:
            return Kind.LOST if self.sent else Kind.TURNED_AWAY
        if self.status == 200:
            return Kind.ANSWERED
        honest = self.status == 503 and is_positive(self.retry_after) and bool(self.tandem_error)
        return Kind.REFUSED if honest else Kind.DISHONEST

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s

    def __str__(self) -> str:
        if self.status is None:
            return f"no answer ({self.error})" if self.sent else f"no connection ({self.error})"
        missing = [n for n, v in (("Retry-After", self.retry_after), ("Tandem-Error", self.tandem_error)) if not v]
        return f"{self.status}" + (f" without {' and '.join(missing)}" if missing and self.status != 200 else "")


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


def outage(attempts: Iterable[Attempt], killed_s: float) -> Outage:
    """Only what ended after the kill counts. Recovered: the first 200 after which nothing but 200 came."""
    after = sorted((a for a in attempts if a.ended_s >= killed_s), key=lambda attempt: attempt.ended_s)
    refusals = [attempt for attempt in after if attempt.kind is Kind.REFUSED]
    wrong = Counter(str(attempt) for attempt in after if attempt.kind not in (Kind.ANSWERED, Kind.REFUSED))
    return Outage(
        num_answered=sum(attempt.kind is Kind.ANSWERED for attempt in after),
        num_refused=len(refusals),
        first_refusal_s=refusals[0].ended_s - killed_s if refusals else None,
        recovered_s=_recovered(after, killed_s),
        longest_s=max((attempt.took_s for attempt in after), default=0.0),
        wrong=wrong,
    )


def _recovered(after: Sequence[Attempt], killed_s: float) -> float | None:
    """None while the last word was not a 200."""
    good_since: float | None = None
    for attempt in after:
        if attempt.kind is not Kind.ANSWERED:
            good_since = None
        elif good_since is None:
            good_since = attempt.ended_s
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


def farewell(attempts: Iterable[Attempt], told_s: float) -> Farewell:
    """Only what ended after the signal counts. An honest refusal is an answer: it says that the work was not taken."""
    after = [attempt for attempt in attempts if attempt.ended_s >= told_s]
    taken = [attempt for attempt in after if attempt.kind in (Kind.ANSWERED, Kind.REFUSED)]
    return Farewell(
        num_answered=len(taken),
        num_turned_away=sum(attempt.kind is Kind.TURNED_AWAY for attempt in after),
        lost=Counter(str(attempt) for attempt in after if attempt.kind in (Kind.LOST, Kind.DISHONEST)),
        longest_s=max((attempt.took_s for attempt in taken), default=0.0),
    )


def is_positive(text: str | None) -> bool:
    """Retry-After in seconds, more than none."""
    return bool(text) and str(text).isdigit() and int(str(text)) > 0
