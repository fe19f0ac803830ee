"""The outcome of one request, and whether its generator was too late to be believed.

Times are of one clock, in seconds, and count from when a request was due and not from when it was sent: a generator that is held up
together with what it measures would otherwise leave out the worst. One that was late by itself measures nothing (`lag`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from loadtest.validity import is_late, lag_p99_s

# 503 for which it is known when to come back. Of `overloaded` that is so where the deadline is one that pools can meet, as all here are.
WAITS = ("not_ready", "upstream_lost", "overloaded")


@dataclass(frozen=True, slots=True)
class Shot:
    """One request. `status` None: no whole answer, and `error` says why; `is_sent`: perhaps taken all the same. `kind` is the caller's."""

    due_s: float
    sent_s: float
    ended_s: float
    status: int | None = None
    pool: str = ""
    reason: str = ""
    tandem_error: str = ""
    retry_after: str | None = None
    retry_after_ms: float | None = None
    error: str = ""
    kind: int = 0
    is_sent: bool = True  # bytes of it may be out

    @property
    def took_s(self) -> float:
        return self.ended_s - self.due_s

    @property
    def lag_s(self) -> float:
        return self.sent_s - self.due_s

    @property
    def is_answered(self) -> bool:
        return self.status == 200

    @property
    def is_refused(self) -> bool:
        """At once, for load."""
        return self.status == 503 and self.tandem_error == "overloaded"

    @property
    def is_honest(self) -> bool:
        """A 503 that says what it is and when to come back; or the 504 of a deadline that has passed."""
        if self.status == 504:
            return self.tandem_error == "deadline_expired"
        if self.status != 503:
            return False
        return self.tandem_error in WAITS and is_positive(self.retry_after)

    def __str__(self) -> str:
        if self.status is None:
            return f"no answer ({self.error})"
        if self.status == 200:
            return "200"
        missing = " without Retry-After" if self.tandem_error in WAITS and not is_positive(self.retry_after) else ""
        return f"{self.status} {self.tandem_error or 'without Tandem-Error'}{missing}"


def is_positive(text: str | None) -> bool:
    """Retry-After in seconds, more than none."""
    return bool(text) and str(text).isdigit() and int(str(text)) > 0


def percentile(values: Iterable[float], ratio: float) -> float | None:
    """The smallest value that at least this part of them does not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, ceil(ratio * len(ordered)) - 1)] if ordered else None


def lag(shots: Sequence[Shot], objective_s: float) -> tuple[float, bool]:
    """p99 of how late requests went out, and whether what they measured is void."""
    seen_s = lag_p99_s(shot.lag_s for shot in shots)
    return (0.0, True) if seen_s is None else (seen_s, is_late(seen_s, objective_s))


def listed(shots: Iterable[Shot]) -> str:
    """`3 × 503 overloaded, 1 × no answer (…)`"""
    return ", ".join(f"{count} × {what}" for what, count in Counter(str(shot) for shot in shots).most_common(6))
