"""One pool is the cheaper one for few rows and the other for many: are requests sent by that, whatever their size and wherever it lies?

Planted by curve and price: a row costs the slow pool as much as the one before, and the fast one nothing more. Requests come one after
the other, so that price decides and not who is busy.

Where requests went is judged purely. Where it was planted need not be a whole number: between 12 and 13 rows is 12.5.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from loadtest.bench.prove.emulated import MODEL, Pool, digits, gateway, serves, triton, wait_until
from loadtest.bench.verdicts import AtMost, Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.sender import infer, one_by_one

OFF = AtMost(1.0, "rows")
STRAY = AtMost(0.01)


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    rows: int
    pool: str


def crossover_point(sent: Sequence[RoutedRequest], many: str) -> float | None:
    """The point that parts best the requests that went to the pool for few rows from those that went to `many`.

    None: there is none, because all went to the same one.
    """
    if len({one.pool for one in sent}) < 2:
        return None
    sizes = sorted({one.rows for one in sent})
    points = [(low + high) / 2 for low, high in pairwise(sizes)]
    return min(points, key=lambda point: num_stray(sent, many, point), default=None)


def num_stray(sent: Sequence[RoutedRequest], many: str, point: float) -> int:
    """Requests on the wrong side of a point."""
    return sum((one.pool == many) != (one.rows > point) for one in sent)


def verdicts(name: str, sent: Sequence[RoutedRequest], many: str, planted: float) -> list[Verdict]:
    found = crossover_point(sent, many)
    if found is None:
        return [Verdict(f"{name}: distance", None, OFF, "all went to one pool")]
    stray = num_stray(sent, many, found)
    return [
        Verdict(f"{name}: distance", abs(found - planted), OFF, f"planted {planted:g}, found {found:g}"),
        Verdict(f"{name}: requests on its wrong side", stray / len(sent), STRAY, f"{stray} of {len(sent)}"),
    ]


SLOW = Pool("emulated-slow", ((1, 0.005), (32, 0.160)))
FAST = Pool("emulated-fast", ((1, 0.008), (32, 0.008)))
PLANTED = (6.5, 20.5)  # rows
ROWS = range(1, 33)
NUM_OF_EACH = 3


def price_for(planted: float) -> float:
    """Of the fast pool, so that so many rows would cost the same on both."""
    return SLOW.price * SLOW.seconds(planted) / FAST.seconds(planted)


def crossovers(folder: Path) -> Iterator[Verdict]:
    """Raises CannotMeasure."""
    with triton(SLOW, folder / "slow") as slow, triton(FAST, folder / "fast") as fast:
        for number, planted in enumerate(PLANTED):
            dear = replace(FAST, price=price_for(planted))
            with gateway({SLOW: slow.url, dear: fast.url}, folder, f"gateway-{number}") as here:
                wait_until(lambda here=here: serves(here, SLOW) and serves(here, FAST), "both pools are seen")  # type: ignore[misc]
                requests = [infer(here.url, MODEL, digits(rows), kind=rows) for rows in ROWS] * NUM_OF_EACH
                random.Random(number).shuffle(requests)
                shots = one_by_one(requests)
            if any(not shot.is_answered for shot in shots):
                raise CannotMeasure("requests without a deadline failed; see the log of the gateway")
            sent = [RoutedRequest(shot.kind, shot.pool) for shot in shots]
            yield from verdicts(f"crossover planted at {planted:g} rows", sent, FAST.name, planted)
