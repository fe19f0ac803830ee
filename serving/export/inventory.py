"""Lists what is in a repository, and shows it on a terminal or as JSON: `tandem models`.

Rows are plain values. Nothing is loaded or run; whether files are still what was proven, `verify` checks. Rule: standard library only,
but for `rich`, which draws the table, so that it works beside a server in a thin image.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from serving.decisions.engines import PLAIN, POOL
from serving.measure.machine import processor_key
from serving.repository import GATE_DATA_FILE, NOTHING, UNTRAINED, Gate, PoolGate, Repository, Speed, Variant

VERSION = 1


@dataclass(frozen=True, slots=True)
class VariantRow:
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
    variants: tuple[VariantRow, ...]
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
    recorded = [row for row in variant.record.speed if POOL[row.engine] == "gpu" or row.processor == processor]
    other = [row for row in recorded if (variant.name, row.engine) not in known]
    return (*(row for (name, _), rows in known.items() if name == variant.name for row in rows), *other)


def _row(variant: Variant, speed: tuple[Speed, ...], here: set[str], kept: set[str]) -> VariantRow:
    record = variant.record
    not_made = {other: why for other, why in record.not_made.items() if f"{record.model}-{other}" not in here}
    return VariantRow(
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


COLUMNS = ("variant", "proof (FP32)", "size", "pools", "speed against FP32", "digest")
MAX_CHECKS = 3  # of a gate: the headline first, all of them are in the JSON
WIDTH = 180  # holds a row of every model that Tandem can build; a narrower terminal wraps


def show(models: Models, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(models), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    console.print(f"{models.repository}, speed as measured on {measured_on(models)}", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for row in models.variants:
        pools = "\n".join(
            f"{pool} {given.status}{f' ({given.engine})' if given.is_loadable else ''}"
            for pool, given in row.pools.items()
        )
        speed = _speed(row, has_cards=len(models.cards) > 1)
        table.add_row(row.name, proof(row), size(row.size_bytes), pools, speed, row.digest[:12])
    console.print(table)
    for row in models.variants:
        for variant, reason in row.not_made.items():
            console.print(f"{row.model}-{variant}: not made: {reason}", markup=False)
    for name, reason in models.unreadable.items():
        console.print(f"{name}: cannot be read: {reason}", markup=False)
    for name, reason in models.not_served.items():
        console.print(f"{name}: not served: {reason}", markup=False)
    for name in models.ungated:
        console.print(f"{name}: has no tandem.json, so nothing proves it and it is not served", markup=False)


def measured_on(models: Models) -> str:
    return " and ".join((models.processor, *models.cards))


def proof(row: VariantRow) -> str:
    """Renders what every reader has to see first: a number with FP32's beside it, or that there is none."""
    if row.is_untrained:
        return UNTRAINED
    if row.is_ungated:
        return "ungated: no proof"
    lines = []
    for check in row.gate.checks[:MAX_CHECKS]:
        beside = "" if check.reference is None else f" ({check.reference:.4f})"
        lines.append(f"{check.metric} {check.value:.4g}{beside}")
    return "\n".join(lines)


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**10:.0f} KiB" if num_bytes < 2**20 else f"{num_bytes / 2**20:.0f} MiB"


def _speed(row: VariantRow, *, has_cards: bool) -> str:
    """Renders the speed beside FP32 on its best engine, and on the plain one where that is another. `has_cards`: several were measured."""
    if not row.speed:
        return "the baseline" if row.variant == "fp32" else "unmeasured here"
    lines = [_one(row, speed, has_cards=has_cards) for speed in row.speed if not _is_itself(row, speed)]
    return "\n".join(lines) or "the baseline"


def _is_itself(row: VariantRow, speed: Speed) -> bool:
    return row.variant == "fp32" and speed.engine == speed.baseline_engine


def _one(row: VariantRow, speed: Speed, *, has_cards: bool) -> str:
    plain = PLAIN[POOL[speed.engine]]
    engine = f" on {speed.engine}" if len({s.engine for s in row.speed}) > 1 or speed.engine != "cpu" else ""
    card = f" of {speed.processor}" if has_cards and POOL[speed.engine] == "gpu" else ""
    beside = f" beside {speed.baseline_engine}" if speed.baseline_engine != plain else ""
    interval = f"{speed.ratio:.2f} ({speed.ratio_low:.2f} to {speed.ratio_high:.2f})"
    return f"batch {speed.batch_size}{engine}{card}{beside}: {interval}"
