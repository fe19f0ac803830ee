"""Reads a file of service times: which variant takes how long for how many rows on a device that is emulated or simulated?

    version: 1
    name: h200                        # receipts say `emulated-h200`
    variants:
      "*": [[1, 0.005], [32, 0.010]]  # rows, seconds of one execution
      fp16: [[1, 0.004], [32, 0.007]] # a precision, or a variant's full name (digits-fp16), goes before "*"

YAML or JSON. Reading is strict: whatever is misspelt is an error that names the nearest word that is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.documents.nearest import nearest
from serving.documents.reader import read_document
from serving.errors import UserError
from serving.repository import Variant
from serving.repository.layout import PRECISIONS
from serving.scheduling.curve import Curve

ALL = "*"
Points = tuple[tuple[float, float], ...]  # rows, seconds
CARD_ONLY = frozenset({"fp16", "tf32"})  # no CPU pool would serve it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # it becomes part of a header and of a metric's label


@dataclass(frozen=True, slots=True)
class Curves:
    """One emulated device. `by_variant`: a variant's full name, a precision or `*` -> its curve."""

    name: str
    by_variant: Mapping[str, Curve]
    file: str

    def of(self, variant: Variant) -> Curve | None:
        """The most exact that is given. `*` speaks of what a CPU pool would serve: what only a card may serve is to be named."""
        named = self.by_variant.get(variant.name) or self.by_variant.get(variant.record.variant)
        return named or (self.by_variant.get(ALL) if "cpu" in variant.loadable_pools else None)

    def named(self, variant: str) -> Curve:
        """By a word that stands in the file, or a precision that `*` speaks of. Raises UserError."""
        if variant in self.by_variant:
            return self.by_variant[variant]
        if variant in PRECISIONS and variant not in CARD_ONLY and ALL in self.by_variant:
            return self.by_variant[ALL]
        known = ", ".join(self.by_variant)
        raise UserError(f"{self.file} has no curve of '{variant}'{nearest(variant, self.by_variant)}; it has: {known}")

    def require_known(self, variants: Iterable[Variant]) -> None:
        """Raises UserError for a curve of something that is not in the repository."""
        known = {ALL, *PRECISIONS, *(variant.name for variant in variants)}
        for name in self.by_variant:
            if name not in known:
                raise UserError(f"{self.file}: no variant '{name}' in the repository{nearest(name, known)}")


@dataclass(frozen=True, slots=True)
class _CurvesFile:
    version: Literal[1]
    name: str
    variants: dict[str, Points]


def read_curves(path: Path) -> Curves:
    """Raises UserError with the file, the place in it and the way out."""
    document = read_document(path, "the curves")
    read = document.values(_CurvesFile)
    if not _NAME.fullmatch(read.name):
        raise document.wrong(
            ("name",), f"{read.name!r} must be a word of letters, digits, '.', '_' and '-', at most 63"
        )
    if not read.variants:
        raise document.wrong(("variants",), "give the points of at least one variant, or of '*' for all")
    curves = {}
    for name, points in read.variants.items():
        try:
            curves[name] = Curve(points)
        except ValueError as error:
            raise document.wrong(("variants", name), str(error)) from None
    return Curves(read.name, curves, str(path))
