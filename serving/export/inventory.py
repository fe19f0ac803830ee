"""What is in a repository, and is it still what was gated? `tandem models` and `tandem verify`.

Rows are plain values, ready for a table or for JSON. Nothing is loaded or run. Rule: standard library only, so that it
works beside a server in a thin image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.repository import DigestMismatch, Gate, PoolGate, Repository, Speed, Variant, processor_key

VERSION = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One variant. `speed` is what was measured on this processor only; an empty one means unmeasured here."""

    name: str
    model: str
    variant: str
    size_bytes: int
    digest: str
    gate: Gate
    pools: Mapping[str, PoolGate]
    speed: tuple[Speed, ...]
    source: str
    created: str


@dataclass(frozen=True, slots=True)
class Check:
    """One directory of a repository: whole, or what is wrong with it."""

    name: str
    is_whole: bool
    problem: str | None


@dataclass(frozen=True, slots=True)
class Models:
    """The object that `tandem models --json` prints."""

    version: int
    repository: str
    processor: str
    variants: tuple[Row, ...]
    ungated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """The object that `tandem verify --json` prints. A directory without a record is a problem: nothing proves it."""

    version: int
    repository: str
    checks: tuple[Check, ...]

    @property
    def is_whole(self) -> bool:
        return all(check.is_whole for check in self.checks)


def models(path: Path) -> Models:
    repository, processor = Repository(path), processor_key()
    rows = tuple(_row(variant, processor) for variant in repository.variants())
    return Models(VERSION, str(path), processor, rows, tuple(repository.ungated()))


def verify(path: Path) -> Verification:
    """Recomputes every digest."""
    repository = Repository(path)
    checks = [_check(variant) for variant in repository.variants()]
    checks += [Check(name, False, "has no tandem.json, so nothing proves it") for name in repository.ungated()]
    return Verification(VERSION, str(path), tuple(sorted(checks, key=lambda check: check.name)))


def _row(variant: Variant, processor: str) -> Row:
    record = variant.record
    return Row(
        name=variant.name,
        model=record.model,
        variant=record.variant,
        size_bytes=variant.size_bytes(),
        digest=variant.digest,
        gate=record.gate,
        pools=record.pools,
        speed=tuple(speed for speed in record.speed if speed.processor == processor),
        source=record.source,
        created=record.created,
    )


def _check(variant: Variant) -> Check:
    try:
        variant.verify()
    except DigestMismatch as mismatch:
        return Check(variant.name, False, f"{mismatch.file} {mismatch.problem}")
    return Check(variant.name, True, None)
