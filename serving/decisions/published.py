"""Reads other people's published figures of cards as profiles, by which a what-if is told where no card was measured.

Rule: a figure becomes a range, never a number that decides. Its upper end is the fastest published way. Its lower end is the slowest, less
what Triton itself has cost at most where MLPerf measured both (v2.1: 8 A100 of ResNet-50, 300,060/s bare and 199,718/s within Triton).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from serving.decisions.profile import STRICT, MaxRate, Profile, ServerProfile, Settings
from serving.documents.reader import read_document
from serving.measure.machine import Machine

PUBLISHED = Path(__file__).parent / "shipped" / "published.yaml"
TRITON_RATIO = 199_718 / 300_060  # of the bare rate
TURNS = 2  # of a batch that a request may see: it waits while the batch before its own is computed


@dataclass(frozen=True, slots=True)
class PublishedSource:
    """Where a figure can be checked, and on which of our engines it counts."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    date: str
    address: str
    engine: Literal["tensorrt", "cuda"]


@dataclass(frozen=True, slots=True)
class Figure:
    """Of one model on one card, by the way it was computed: `rate_rps` with p99 within `objective_ms`, or milliseconds by batch size."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    source: str
    model: str
    card: str
    objective_ms: float | None = None
    rate_rps: dict[str, float] | None = None
    batch_ms: dict[str, dict[int, float]] | None = None

    def __post_init__(self) -> None:
        if (self.rate_rps is None) == (self.batch_ms is None) or (self.rate_rps is None) != (self.objective_ms is None):
            raise ValueError("a figure is a rate with its objective, or the time of batches")

    def rates(self, latency_p99_s: float) -> dict[str, float]:
        """Requests per second by way, of those that are in time; of batches the largest whose two turns are."""
        found: dict[str, float] = {}
        if self.rate_rps is not None and self.objective_ms is not None and self.objective_ms <= latency_p99_s * 1e3:
            found = dict(self.rate_rps)
        for way, by_size in (self.batch_ms or {}).items():
            in_time = [size / ms * 1e3 for size, ms in by_size.items() if TURNS * ms <= latency_p99_s * 1e3]
            if in_time:
                found[way] = max(in_time)
        return found


@dataclass(frozen=True, slots=True)
class _File:
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    version: Literal[1]
    sources: dict[str, PublishedSource]
    figures: list[Figure]


@cache
def _read(path: Path) -> _File:
    return read_document(path, "published figures").values(_File)


def published_models(path: Path = PUBLISHED) -> tuple[str, ...]:
    """Names by which there are figures."""
    return tuple(sorted({figure.model for figure in _read(path).figures}))


def published_profiles(
    model: str, latency_p99_s: float, *, like: str | None = None, path: Path = PUBLISHED
) -> tuple[Profile, ...]:
    """Of every card that has figures of `model`, or of the net that stands for it, with p99 within this; one row to a request."""
    file = _read(path)
    return tuple(
        _profile(model, like, figure, file.sources[figure.source], rates, latency_p99_s)
        for figure in file.figures
        if figure.model == (like or model) and (rates := figure.rates(latency_p99_s))
    )


def _profile(
    model: str,
    like: str | None,
    figure: Figure,
    source: PublishedSource,
    rates: dict[str, float],
    latency_p99_s: float,
) -> Profile:
    slowest = min(rates, key=lambda way: rates[way])
    low = rates[slowest] * (1.0 if slowest.startswith("triton") else TRITON_RATIO)
    told = ", ".join(f"{way} {rate:,.0f}/s" for way, rate in rates.items())
    stands_for = f" It is of {like}, which stands for {model}." if like else ""
    note = (
        f"{source.name}: {figure.model}, {told} for one card, {source.address}, without HTTP and gateway. "
        f"Tandem did not measure it.{stands_for}"
    )
    server = ServerProfile(
        variant=slowest.split()[-1],
        engine=source.engine,
        device="gpu",
        device_name=figure.card,
        digest=None,
        settings=Settings(),
        max_rates=(MaxRate(latency_p99_s, 1, rates[slowest], low, max(rates.values())),),
    )
    return Profile(
        model=model,
        provenance="published",
        date=f"{source.date}T00:00:00+00:00",
        command="",
        machine=Machine("unnamed", (), 0, "unnamed", (figure.card,)),
        servers=(server,),
        note=note,
    )
