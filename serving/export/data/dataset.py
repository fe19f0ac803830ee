"""Inputs [n, …] with their right answers, where somebody knows them.

Made by the readers beside this file, used by gates, speed and calibration. Rule: a dataset is its content: two with the same
arrays have the same digest, whatever they are called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import UserError

ARRAYS = "arrays"
IMAGES = "images"
TEXTS = "texts"

# As float32 a photograph of 224² has 600 KB: this is 3,500 of them, three and a half times what one point of accuracy
# asks for, in half the memory of a small machine.
MAX_BYTES = 2 * 2**30

CALIBRATION_SHARE = 5  # one row of so many calibrates
MIN_CALIBRATION_ROWS = 4  # fewer say nothing about the range of an activation (guess, not measured)
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
            told = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no inputs"
            raise UserError(f"{self.name}: every array needs the same number of rows, 1 or more; got {told}")

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
        every = np.arange(self.num_samples)
        chosen = every[::CALIBRATION_SHARE][:MAX_CALIBRATION_ROWS]
        if len(chosen) < MIN_CALIBRATION_ROWS:
            return self, None
        left = np.setdiff1d(every, chosen)
        judging = {name: values[left] for name, values in self.inputs.items()}
        labels = None if self.labels is None else self.labels[left]
        rest = Dataset(f"{self.name}, without the rows that calibrate", judging, labels, self.kind)
        return rest, {name: values[chosen] for name, values in self.inputs.items()}

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        return {name: values[start:stop] for name, values in self.inputs.items()}
