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
from typing import Any

from serving.documents.reader import read_document
from serving.errors import UserError
from serving.repository import Variant
from serving.repository.layout import PRECISIONS
from serving.scheduling.curve import Curve
from serving.settings import nearest

ALL = "*"
CARD_ONLY = frozenset({"fp16"})  # no CPU pool would serve it
KEYS = ("version", "name", "variants")
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


def read_curves(path: Path) -> Curves:
    """Raises UserError with the file, the place in it and the way out."""
    return _curves(read_document(path, "the curves"), str(path))


def _curves(raw: Any, file: str) -> Curves:
    if not isinstance(raw, dict):
        raise UserError(f"{file}: expected a mapping with {', '.join(KEYS)}")
    for key in raw:
        if key not in KEYS:
            raise UserError(f"{file}: unknown key '{key}'{nearest(str(key), KEYS)}")
    for key in KEYS:
        if key not in raw:
            raise UserError(f"{file}: '{key}' is missing")
    if raw["version"] != 1 or isinstance(raw["version"], bool):
        raise UserError(f"{file}: version {raw['version']!r} is not known here; this reads version 1")
    name, variants = raw["name"], raw["variants"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"{file}: name {name!r} must be a word of letters, digits, '.', '_' and '-', at most 63")
    if not isinstance(variants, dict) or not variants:
        raise UserError(f"{file}: 'variants' must give the points of at least one variant, or of '*' for all")
    return Curves(name, {str(key): _curve(points, f"{file}: variants.{key}") for key, points in variants.items()}, file)


def _curve(points: Any, where: str) -> Curve:
    good = isinstance(points, list) and points and all(isinstance(point, list) and len(point) == 2 for point in points)
    if not good:
        raise UserError(f"{where}: must be a list of [rows, seconds], such as [[1, 0.005], [32, 0.010]]")
    for number in (number for point in points for number in point):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UserError(f"{where}: {number!r} is no number (YAML reads 5e-3 as text: write 0.005)")
    try:
        return Curve(tuple((float(rows), float(seconds)) for rows, seconds in points))
    except (ValueError, OverflowError) as error:
        raise UserError(f"{where}: {error}") from None
