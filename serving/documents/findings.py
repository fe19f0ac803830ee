"""What a check found, what mends it, and the line that says so: of `tandem doctor` and of `tandem cluster preflight`."""

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

    @property
    def line(self) -> str:
        name = self.name if self.is_required else f"{self.name} (optional)"
        return f"{self.state:<9}{name}: {self.found}" + (f"; {self.fix}" if self.fix else "")


def lacks_required(found: Iterable[Finding]) -> bool:
    return any(it.state is State.MISSING and it.is_required for it in found)
