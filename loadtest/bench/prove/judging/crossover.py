"""From how many rows on do requests go to the other pool, and is that where it was planted?

Pure. Where it was planted need not be a whole number: between 12 and 13 rows is 12.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.bench.verdicts import AtMost, Verdict

OFF = AtMost(1.0, "rows")
STRAY = AtMost(0.01)


@dataclass(frozen=True, slots=True)
class Choice:
    rows: int
    pool: str


def observed(sent: Sequence[Choice], many: str) -> float | None:
    """The point that parts best the requests that went to the pool for few rows from those that went to `many`.

    None: there is none, because all went to the same one.
    """
    if len({one.pool for one in sent}) < 2:
        return None
    sizes = sorted({one.rows for one in sent})
    points = [(low + high) / 2 for low, high in pairwise(sizes)]
    return min(points, key=lambda point: num_stray(sent, many, point), default=None)


def num_stray(sent: Sequence[Choice], many: str, point: float) -> int:
    """Requests on the wrong side of a point."""
    return sum((one.pool == many) != (one.rows > point) for one in sent)


def verdicts(name: str, sent: Sequence[Choice], many: str, planted: float) -> list[Verdict]:
    found = observed(sent, many)
    if found is None:
        return [Verdict(f"{name}: distance", None, OFF, "all went to one pool")]
    stray = num_stray(sent, many, found)
    return [
        Verdict(f"{name}: distance", abs(found - planted), OFF, f"planted {planted:g}, found {found:g}"),
        Verdict(f"{name}: requests on its wrong side", stray / len(sent), STRAY, f"{stray} of {len(sent)}"),
    ]
