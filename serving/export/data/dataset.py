"""Inputs [n, …] with their right answers, where somebody knows them, and which class a written label means.

Made by the readers beside this file, used by gates, speed and calibration. Rules: a dataset is its content: two with the same
arrays have the same digest, whatever they are called; a label that could mean two classes, or none, is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.documents.nearest import nearest
from serving.errors import UserError

ARRAYS = "arrays"
IMAGES = "images"
TEXTS = "texts"

# As float32 a photograph of 224² has 600 KB: this is 3,500 of them, three and a half times what one point of accuracy
# asks for, in half the memory of a small machine.
MAX_BYTES = 2 * 2**30

CALIBRATION_SHARE = 5  # one row of so many calibrates
MIN_CALIBRATION_ROWS = 4  # fewer say nothing about the range of an activation (guess, not measured)
MIN_ROWS_TO_DIVIDE = CALIBRATION_SHARE * (MIN_CALIBRATION_ROWS - 1) + 1
MAX_CALIBRATION_ROWS = 256  # ranges settle long before (guess, not measured)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """`inputs` maps input names to arrays [n, …]. `labels` is int64 [n] of a classifier, anything numeric [n, …] else."""

    name: str
    inputs: Mapping[str, NDArray[Any]]
    labels: NDArray[Any] | None
    kind: str = ARRAYS

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.inputs.items()}
        if self.labels is not None:
            lengths["labels"] = len(self.labels)
        if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
            counts = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no inputs"
            raise UserError(f"{self.name}: every array needs the same number of rows, 1 or more; got {counts}")

    @property
    def num_samples(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def digest(self) -> str:
        """SHA-256 over names, types, shapes and values."""
        hasher = hashlib.sha256()
        arrays = sorted(self.inputs.items())
        if self.labels is not None:
            arrays.append(("labels", self.labels))
        for name, values in arrays:
            hasher.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
            hasher.update(np.ascontiguousarray(values).data.cast("B") if values.size else b"")
        return hasher.hexdigest()

    def divided(self) -> tuple[Dataset, Mapping[str, NDArray[Any]] | None]:
        """(what judges, what calibrates): some rows of this one, which it then loses; None where it has too few."""
        if self.num_samples < MIN_ROWS_TO_DIVIDE:
            return self, None
        rows = np.arange(self.num_samples)
        calibrating = rows[::CALIBRATION_SHARE][:MAX_CALIBRATION_ROWS]
        judging = np.setdiff1d(rows, calibrating)
        inputs = {name: values[judging] for name, values in self.inputs.items()}
        labels = None if self.labels is None else self.labels[judging]
        rest = Dataset(f"{self.name}, without the rows that calibrate", inputs, labels, self.kind)
        return rest, {name: values[calibrating] for name, values in self.inputs.items()}

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        return {name: values[start:stop] for name, values in self.inputs.items()}


_LARGEST = 2**53  # the last whole number up to which 64-bit floats have each one
_MAX_DIGITS = 16  # of an index
_FEW = 12  # names that fit into a sentence; of a thousand only one that is near helps


class ClassNames:
    """`num_labels` None: the model has no classes, and a label is any number."""

    def __init__(self, names: tuple[str, ...] | None, num_labels: int | None) -> None:
        self.num_labels = num_labels
        self._names = names or ()
        self._indices: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            self._indices.setdefault(name, []).append(index)

    def value(self, written: str | int | float, where: str) -> int | float:
        """`where` begins the message of the error."""
        if isinstance(written, str):
            return self._of_text(written.strip(), where)
        if self.num_labels is None:
            return self._number(written, str(written), where)
        if isinstance(written, float):
            raise UserError(f"{where}: label {written:g} is neither the name nor the index of a class")
        return self._index(written, where)

    def _of_text(self, text: str, where: str) -> int | float:
        if len(found := self._indices.get(text, [])) > 1:
            indices = " and ".join(map(str, found))
            raise UserError(f"{where}: label {text!r} is the name of classes {indices}; give the index")
        if found:
            return found[0]
        if text.isascii() and text.isdecimal() and len(text) < _MAX_DIGITS:
            return self._index(int(text), where)
        if self.num_labels is None:
            try:
                return self._number(float(text), text, where)
            except ValueError:
                raise UserError(
                    f"{where}: label {text!r} is not a number, and the model has no class names to look it up in"
                ) from None
        raise UserError(f"{where}: unknown label {text!r}{self._hint(text)}")

    def _hint(self, text: str) -> str:
        if not self._names:
            return f"; the model's classes have no names, so give an index, 0..{(self.num_labels or 1) - 1}"
        hint = nearest(text, self._names)
        is_near = "did you mean" in hint
        return hint if is_near or len(self._names) <= _FEW else f"; it is none of the {len(self._names)} classes"

    def _number(self, number: int | float, text: str, where: str) -> int | float:
        if not abs(number) <= _LARGEST:
            raise UserError(f"{where}: label {text[:40]} is not a number that fits into 64 bits exactly")
        return number

    def _index(self, index: int, where: str) -> int:
        if self.num_labels is not None and not 0 <= index < self.num_labels:
            raise UserError(f"{where}: label {index} is outside 0..{self.num_labels - 1}")
        return index
