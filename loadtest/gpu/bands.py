"""Can a rate be believed? Sanity bands by card, net and precision, and what others publish for the same nets, from `published.yaml`.

Pure but for reading that file. Below its band a run is suspect (a card that is shared or throttled); above it the measurement is (a timer
that does not wait for the card). Either rate fails its unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from loadtest.claims.values import EngineTime, Findings, median
from loadtest.gpu.ledger import Check
from serving.documents.reader import read_document

FILE = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True, slots=True)
class Band:
    """Rows per second at the best batch size. `card`: a part of its name."""

    card: str
    model: str
    variant: str
    suspect_below: float
    unbelievable_above: float
    why: str


@dataclass(frozen=True, slots=True)
class Figure:
    """What somebody else published: rows per second. `how`: with which software, and in what it differs from ours."""

    model: str
    card: str
    precision: str
    batch_size: int | None
    rate: float
    how: str
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class PublishedFigures:
    version: Literal[1]
    bands: tuple[Band, ...]
    figures: tuple[Figure, ...]


@cache
def published() -> PublishedFigures:
    return read_document(FILE, "the published figures").values(PublishedFigures)


def best_rate(speeds: tuple[EngineTime, ...]) -> tuple[float, int]:
    """Rows per second, and the batch size."""
    return max((median([one.batch_size / s for s in one.rounds_s]).value or 0.0, one.batch_size) for one in speeds)


def checks(card: str, found: Findings) -> tuple[Check, ...]:
    return tuple(_checks(card, found))


def _checks(card: str, found: Findings) -> Iterator[Check]:
    for band in published().bands:
        keys = (band.model, band.variant, "cuda")
        own = tuple(one for one in found.speeds if (one.model, one.variant, one.engine) == keys)
        if band.card not in card or not own:
            continue
        rate, size = best_rate(own)
        text = f"{rate:,.0f} rows/s at batch {size}; band {band.suspect_below:,.0f} to {band.unbelievable_above:,.0f}: {band.why}"
        yield Check(f"{band.model} {band.variant} can be believed", is_believable(band, rate), text)


def is_believable(band: Band, rate: float) -> bool:
    return band.suspect_below <= rate <= band.unbelievable_above
