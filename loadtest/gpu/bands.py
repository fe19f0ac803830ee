"""Can a rate be believed? Sanity bands by card, net and precision, and what others publish for the same nets, from `published.yaml`.

Pure but for reading that file. Below its band a run is suspect (a card that is shared or throttled); above it the measurement is (a timer
that does not wait for the card). Either rate fails its unit. Rule: bands in the file are of computing alone; what is held against a rate
has the time that copies take in it, because all our rates count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from loadtest.claims.values import EngineTime, Findings, median
from loadtest.gpu.ledger import Check, Entry, Report, faults
from serving.documents.reader import read_document

FILE = Path(__file__).with_name("published.yaml")
# Bytes per second from the host's memory to the card and back. Slowest: an H200 took arrays of NumPy's at 10.9e9 to 15.9e9 (2026-11-26);
# a quarter less is still no reason for suspicion (guess). Fastest: PCIe 5.0 with 16 lanes carries no more.
SLOWEST_COPY, FASTEST_COPY = 8e9, 64e9
NAME = "can be believed"  # how the names of these checks end


@dataclass(frozen=True, slots=True)
class Band:
    """Rows per second at the best batch size, of computing alone. `card`: a part of its name. `row_bytes`: its inputs and outputs."""

    card: str
    model: str
    variant: str
    suspect_below: float
    unbelievable_above: float
    row_bytes: int
    why: str

    def with_copies(self) -> tuple[float, float]:
        """Both ends for a rate in which copies are counted."""
        ends = ((self.suspect_below, SLOWEST_COPY), (self.unbelievable_above, FASTEST_COPY))
        low, high = (1 / (1 / rate + self.row_bytes / copy) for rate, copy in ends)
        return low, high


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
        low, high = band.with_copies()
        text = (
            f"{rate:,.0f} rows/s at batch {size}, copies counted; band {low:,.0f} to {high:,.0f}: {band.suspect_below:,.0f} to "
            f"{band.unbelievable_above:,.0f} computing alone ({band.why}), and {band.row_bytes:,} bytes a row copied at "
            f"{SLOWEST_COPY / 1e9:g} to {FASTEST_COPY / 1e9:g} GB/s"
        )
        yield Check(f"{band.model} {band.variant} {NAME}", low <= rate <= high, text)


def judged_anew(report: Report) -> Report:
    """The measurements of that day by the bands of today: a unit that failed for its band alone may be done, or the reverse."""
    card = report.run.card.partition(", driver ")[0]
    return replace(report, entries=tuple(_judged_anew(card, entry) for entry in report.entries))


def _judged_anew(card: str, entry: Entry) -> Entry:
    before = [check for check in entry.checks if check.name.endswith(NAME)]
    now = checks(card, entry.findings)
    if not before or tuple(before) == now:
        return entry
    every = (*(check for check in entry.checks if check not in before), *now)
    wrong = faults(every)
    told = "; ".join(f"{check.name}: {'good' if check.is_good else 'failed'}, {check.text}" for check in before)
    note = f"judged anew by the bands of today; on the day of the run: {told}"
    return replace(entry, outcome="failed" if wrong else "done", checks=every, note="; ".join([*wrong, note]))
