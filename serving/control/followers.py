"""Which gateways follow a control document, and which of them keeps a promotion waiting.

Each announces itself beside the document, again and again, and takes that away when it ends. One that fell silent is not forgotten for an
hour: cut off, it may well answer clients, by what it had. Rule: pure; where announcements are kept, and whose clock says how old they are,
is `stores.py`'s, but never that of the gateway that announces itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORGOTTEN_S = 3600.0  # a guess: by then somebody has looked at a gateway that is cut off, and one that was killed has another in its place


@dataclass(frozen=True, slots=True)
class Follower:
    """`digest` and `number`: of the revision in force there, empty and 0 where none was read. `problem`: why it is not the source's.

    `lacks`: model -> what of its candidate is not there that would have to be, to take over. `age_s`: of this announcement, which is
    renewed `every_s`.
    """

    name: str
    digest: str = ""
    number: int = 0
    problem: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    every_s: float = 1.0
    age_s: float = 0.0

    @property
    def line(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if name != "age_s"})

    @property
    def is_silent(self) -> bool:
        return self.age_s > 3 * self.every_s + 1.0

    def behind(self, digest: str) -> str:
        """Why this revision is not in force there for sure; empty where it is."""
        if self.is_silent:
            return f"it has told nothing for {self.age_s:.0f} s, and may answer all the same; if it has ended, name it with --gone"
        return (self.problem or "it has another revision") if self.digest != digest or self.problem else ""


class Renewals:
    """When each announcement changed last, by the clock of whoever looks again and again, where the place that keeps them has none."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}

    def ages(
        self, told: Mapping[str, str], now_s: float, first_s: Callable[[str], float] = lambda _: 0.0
    ) -> dict[str, float]:
        """In seconds. `first_s`: age of one that was not there at the look before."""
        seen = {}
        for name, text in told.items():
            before = self._seen.get(name)
            if before is None:
                seen[name] = text, now_s - max(0.0, first_s(text))
            else:
                seen[name] = before if before[0] == text else (text, now_s)
        self._seen = seen
        return {name: now_s - since_s for name, (_, since_s) in seen.items()}


def read_followers(lines: Iterable[tuple[str, float]]) -> list[Follower]:
    """By name, of announcements and their ages; what is none, or is forgotten, is left out."""
    found = []
    for line, age_s in lines:
        try:
            told: dict[str, Any] = json.loads(line)
            one = Follower(**{**told, "age_s": max(0.0, age_s)})
            if age_s < FORGOTTEN_S and isinstance(one.name, str) and isinstance(one.lacks, dict):
                found.append(one)
        except (ValueError, TypeError):
            continue
    return sorted(found, key=lambda it: it.name)


def waits_for(followers: Iterable[Follower], digest: str) -> str:
    """Why not every gateway has this revision in force; empty where each has."""
    return next((f"the gateway {it.name} does not follow: {why}" for it in followers if (why := it.behind(digest))), "")
