"""Lists what is in a repository, and what the gateways that serve it say of it: the values of `tandem models`.

Nothing is loaded or run; whether files are still what was proven, `verify` checks, and `inventory_tables.py` draws them. Rule: standard
library only, so that it works beside a server in a thin image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from serving.decisions.engines import BASELINE, POOL
from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.measure.machine import processor_key
from serving.repository import GATE_DATA_FILE, NOTHING, Gate, PoolGate, Repository, Speed, Variant
from serving.repository.layout import earlier_version

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
    `unreadable`: those whose record says nothing, each with why; `gateways`: the addresses of those that were asked, and `account`:
    what they say of each variant in each pool (`gateway/models/account.py`).
    """

    version: int
    repository: str
    processor: str
    cards: tuple[str, ...]  # that something of it was measured on, by name
    variants: tuple[VariantRow, ...]
    ungated: tuple[str, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(
        default_factory=dict
    )  # by a CPU pool of this machine, though their gate allows them -> why
    gateways: tuple[str, ...] = ()
    account: tuple[Mapping[str, Any], ...] = ()
    answers: tuple[Mapping[str, Any], ...] = ()  # what a model's requests go to, by each gateway: an entry for each arm
    kept: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # variant -> earlier versions whose files are here

    def of(self, name: str) -> Models:
        """What there is of a model, or of one variant. Raises UserError where there is nothing."""
        rows = tuple(row for row in self.variants if name in (row.model, row.name))
        if not rows and name not in self.unreadable:
            known = sorted({n for row in self.variants for n in (row.model, row.name)} | set(self.unreadable))
            raise UserError(
                f"{self.repository} has no model {name!r}{nearest(name, known) if known else '; it is empty'}"
            )
        return replace(
            self,
            variants=rows,
            ungated=(),
            unreadable={name: self.unreadable[name]} if name in self.unreadable else {},
            left_out={row.name: self.left_out[row.name] for row in rows if row.name in self.left_out},
            account=tuple(entry for entry in self.account if name in (entry["model"], entry["name"])),
            answers=tuple(entry for entry in self.answers if entry["model"] in {row.model for row in rows}),
            kept={row.name: self.kept[row.name] for row in rows if row.name in self.kept},
        )


# (variant, engine) -> what a server that starts here knows of its speed: of all that are installed here, also if that is nothing
SpeedLookup = Callable[[Sequence[Variant]], Mapping[tuple[str, str], Sequence[Speed]]]


# Variants that a CPU pool of this machine leaves out although their gate allows them -> why
LeftOut = Callable[[Sequence[Variant]], Mapping[str, str]]


def models(path: Path, known: SpeedLookup | None = None, left_out: LeftOut | None = None) -> Models:
    """`known`: without it, speeds are the records' alone."""
    repository, processor = Repository(path), processor_key()
    variants, unreadable = repository.readable()
    kept = {variant.record.model for variant in variants if GATE_DATA_FILE in variant.record.files}
    here = {variant.name for variant in variants}
    speeds = known(variants) if known else {}
    rows = tuple(_row(variant, _speeds(variant, processor, speeds), here, kept) for variant in variants)
    cards = sorted({speed.processor for row in rows for speed in row.speed if POOL[speed.engine] == "gpu"})
    lacking = left_out(variants) if left_out else {}
    ungated = tuple(repository.ungated())
    return Models(
        VERSION, str(path), processor, tuple(cards), rows, ungated, unreadable, lacking, kept=_kept_versions(variants)
    )


def _kept_versions(variants: Sequence[Variant]) -> dict[str, tuple[int, ...]]:
    found = {
        it.name: sorted({int(path.split("/")[0]) for path in it.record.files if earlier_version(path, it.record)})
        for it in variants
    }
    return {it.name: own for it in variants if (own := tuple(n for n in found[it.name] if it.has_files_of(n)))}


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


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a variant. `state`: newest; kept, whose files are beside it; or proof only."""

    name: str
    model_version: int
    created: str
    source: str
    gate: Gate
    digest: str
    state: str


def history(path: Path, name: str) -> list[Version]:
    """Of a variant, or of a model's FP32, the newest first. Raises UserError where there is none."""
    repository = Repository(path)
    names = {variant.name for variant in repository.variants()}
    variant = repository.variant(name if name in names or f"{name}-{BASELINE}" not in names else f"{name}-{BASELINE}")
    records = [variant.record, *variant.earlier()]
    states = {
        record.model_version: "kept" if variant.has_files_of(record.model_version) else "proof only"
        for record in records
    }
    states[variant.record.model_version] = "newest"
    return [
        Version(r.name, r.model_version, r.created, r.source, r.gate, r.digest, states[r.model_version])
        for r in records
    ]
