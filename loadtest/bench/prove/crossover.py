"""One pool is the cheaper one for few rows and the other for many: are requests sent by that, whatever their size and wherever it lies?

Planted by curve and price: a row costs the slow pool as much as the one before, and the fast one nothing more. Requests come one after
the other, so that price decides and not who is busy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from loadtest.bench.prove.emulated import MODEL, Pool, digits, gateway, serves, triton, wait_until
from loadtest.bench.prove.judging.crossover import Choice, verdicts
from loadtest.bench.verdicts import Verdict
from loadtest.errors import CannotMeasure
from loadtest.sending.sender import infer, one_by_one

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
            sent = [Choice(shot.kind, shot.pool) for shot in shots]
            yield from verdicts(f"crossover planted at {planted:g} rows", sent, FAST.name, planted)
