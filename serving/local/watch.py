"""When is something that died started again? Decisions only: no clock, no process, no network; the time is an argument.

A first failure is mended at once. What fails again soon waits twice as long each time, so that a model that kills its
stub on every request, or a Triton that cannot start, costs little. The same rule for the server and for each model.
`supervisor.py` looks at the processes and does what is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

FIRST_RETRY_S = (
    0.5  # about what a start takes, so that a second try never costs more than the first (guess, not measured)
)
LONGEST_RETRY_S = 15.0  # somebody who mends the cause should not wait much longer than they took (guess, not measured)
STABLE_S = 60.0  # what ran this long counts as mended (guess, not measured)
POLL_S = 0.2  # how often the stubs are looked at; a dead one must be noticed within 1 s


class Finding(Enum):
    """What it means that a model has not the processes any more that it was loaded with."""

    DEAD = auto()
    UNLOADED = auto()  # or about to be, because somebody asked for it
    CHANGING = auto()  # it is being loaded; the next look tells more


def what_happened(rows: Iterable[tuple[str, str]], *, has_others: bool, was_unloaded: bool) -> Finding | None:
    """By (state, reason) of the model's versions in Triton's index; None: somebody loaded it, with the other processes that it has.

    Triton goes on calling a model READY whose processes died. One that is unloaded is UNLOADING first, with its processes, and
    then UNAVAILABLE for the reason "unloaded"; if it then cannot be loaded, UNAVAILABLE for another.
    """
    states = dict(rows)
    if "READY" in states:
        return None if has_others else Finding.DEAD
    if "LOADING" in states:
        return Finding.CHANGING
    is_gone = "UNLOADING" in states or states.get("UNAVAILABLE") == "unloaded"
    return Finding.UNLOADED if is_gone or was_unloaded else Finding.DEAD


@dataclass(frozen=True, slots=True)
class Failures:
    """How often something failed in a row, and when it is to be started again."""

    count: int
    last_s: float
    due_s: float | None  # None: it was started again, and runs as far as anybody knows


def after_failure(before: Failures | None, now_s: float) -> Failures:
    """The next state when something was found dead at `now_s`."""
    in_a_row = 0 if before is None or now_s - before.last_s >= STABLE_S else before.count
    return Failures(count=in_a_row + 1, last_s=now_s, due_s=now_s + retry_delay_s(in_a_row))


def retry_delay_s(num_before: int, longest_s: float = LONGEST_RETRY_S) -> float:
    """0, 0.5, 1, 2, 4 … `longest_s` for the first, second, third … failure in a row."""
    if num_before == 0:
        return 0.0
    return float(min(longest_s, FIRST_RETRY_S * 2 ** min(num_before - 1, 30)))


class Recovery:
    """What is down, and when each is due. Names are free: a model's, or the server's."""

    def __init__(self, longest_s: float = LONGEST_RETRY_S) -> None:
        self._longest_s = longest_s
        self._failures: dict[str, Failures] = {}

    def found_dead(self, name: str, now_s: float) -> bool:
        """True the first time it is seen; False while it is already known to be down."""
        if self.is_down(name):
            return False
        self._failures[name] = after_failure(self._failures.get(name), now_s)
        return True

    def ended(self, name: str, now_s: float) -> None:
        """By us, and not by a fault of its own start: it is due at once, and no failure in the row."""
        before = self._failures.get(name) or Failures(count=0, last_s=now_s, due_s=None)
        self._failures[name] = replace(before, due_s=now_s)

    def is_down(self, name: str) -> bool:
        """Known to be, and to be started again."""
        before = self._failures.get(name)
        return before is not None and before.due_s is not None

    def failed_again(self, name: str, now_s: float, took_s: float = 0.0) -> float:
        """Starting it did not work, and took `took_s`. The seconds until the next try: no fewer, so that half of the time is free."""
        before = self._failures.get(name)
        in_a_row = 0 if before is None else before.count
        delay_s = max(retry_delay_s(in_a_row, self._longest_s), took_s)
        self._failures[name] = Failures(count=in_a_row + 1, last_s=now_s, due_s=now_s + delay_s)
        return delay_s

    def forget(self, name: str) -> None:
        """It is wanted no more, or as another one."""
        self._failures.pop(name, None)

    def started(self, name: str) -> None:
        if name in self._failures:
            self._failures[name] = replace(self._failures[name], due_s=None)

    def due(self, now_s: float) -> tuple[str, ...]:
        """What is to be started now, the longest waiting first."""
        waiting = [(f.due_s, name) for name, f in self._failures.items() if f.due_s is not None and f.due_s <= now_s]
        return tuple(name for _, name in sorted(waiting))
