"""One line of a preflight, and the exit code that all of them make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: State
    found: str
    fix: str | None = None  # None exactly where the state is ok
    is_required: bool = True

    def __post_init__(self) -> None:
        assert (self.fix is None) == (self.state is State.OK), self


def unseen(name: str, what: str, command: str, is_required: bool = True) -> Finding:
    """What this user may not see, and the command by which an administrator does."""
    fix = f"have an administrator look: kubectl {command}"
    return Finding(name, State.UNKNOWN, f"this user may not see {what}", fix, is_required)


def exit_status(found: Iterable[Finding]) -> int:
    """0 all that is required is there; 1 something is missing; 3 nothing is known to be, but not all could be seen."""
    states = {it.state for it in found if it.is_required}
    if State.MISSING in states:
        return 1
    return 3 if State.UNKNOWN in states else 0
