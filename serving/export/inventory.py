"""Lists what is in a repository, for `tandem models`. Whether it is still what was proven, `verify` checks.

Rows are plain values, ready for a table or for JSON. Nothing is loaded or run. Rule: standard library only, so that it
works beside a server in a thin image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serving.decisions.engines import POOL
from serving.repository import (
    GATE_DATA_FILE,
    NOTHING,
    Gate,
    PoolGate,
    Repository,
    Speed,
    Variant,
    processor_key,
)

VERSION = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One variant. `speed` is what was measured on this processor, and on any card, because a repository is often looked at
    beside one; an empty one means unmeasured.
    """

    name: str
    model: str
    variant: str
    task: str
    model_version: int
    size_bytes: int
    digest: str
    gate: Gate
    is_untrained: bool  # random weights: there is nothing to be right about
    is_ungated: bool  # somebody accepted it without any proof
    not_made: Mapping[str, str]  # of FP32: variant -> why the export made none; those that are here now left out
    is_data_kept: bool  # so that `tandem verify` can run the gate again
    pools: Mapping[str, PoolGate]
    speed: tuple[Speed, ...]
    max_batch_size: int
    source: str
    created: str


@dataclass(frozen=True, slots=True)
class Models:
    """The object that `tandem models --json` prints. `ungated`: directories without a record, which are never served;
    `unreadable`: those whose record says nothing, each with why: no server starts on such a repository;
    `not_served`: variants that a gateway's Tritons could not load, each with why, where one was asked.
    """

    version: int
    repository: str
    processor: str
    cards: tuple[str, ...]  # that something of it was measured on, by name
    variants: tuple[Row, ...]
    ungated: tuple[str, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    not_served: Mapping[str, str] = field(default_factory=dict)


# (variant, engine) -> what a server that starts here knows of its speed: of all that are installed here, also if that is nothing
SpeedLookup = Callable[[Sequence[Variant]], Mapping[tuple[str, str], Sequence[Speed]]]


def models(path: Path, known: SpeedLookup | None = None) -> Models:
    """`known`: without it, speeds are the records' alone."""
    repository, processor = Repository(path), processor_key()
    variants, unreadable = repository.readable()
    kept = {variant.record.model for variant in variants if GATE_DATA_FILE in variant.record.files}
    here = {variant.name for variant in variants}
    speeds = known(variants) if known else {}
    rows = tuple(_row(variant, _speeds(variant, processor, speeds), here, kept) for variant in variants)
    cards = sorted({speed.processor for row in rows for speed in row.speed if POOL[speed.engine] == "gpu"})
    return Models(VERSION, str(path), processor, tuple(cards), rows, tuple(repository.ungated()), unreadable)


def _speeds(variant: Variant, processor: str, known: Mapping[tuple[str, str], Sequence[Speed]]) -> tuple[Speed, ...]:
    recorded = [it for it in variant.record.speed if POOL[it.engine] == "gpu" or it.processor == processor]
    kept = [it for it in recorded if (variant.name, it.engine) not in known]
    return (*(it for (name, _), rows in known.items() if name == variant.name for it in rows), *kept)


def _row(variant: Variant, speed: tuple[Speed, ...], here: set[str], kept: set[str]) -> Row:
    record = variant.record
    not_made = {other: why for other, why in record.not_made.items() if f"{record.model}-{other}" not in here}
    return Row(
        name=variant.name,
        model=record.model,
        variant=record.variant,
        task=record.task,
        model_version=record.model_version,
        size_bytes=variant.size_bytes(),
        digest=variant.digest,
        gate=record.gate,
        is_untrained=record.is_untrained,
        is_ungated=record.gate.basis == NOTHING,
        not_made=not_made,
        is_data_kept=record.model in kept,
        pools=record.pools,
        speed=speed,
        max_batch_size=record.max_batch_size,
        source=record.source,
        created=record.created,
    )
