"""Does a row get the same answer alone as in a batch? A server batches requests of different clients.

Rule: batches are full ones of the sizes that the record names; where there are fewer rows, they are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.export.exported_model import Arrays, Run, filled
from serving.export.gates.limits import RowsDiffer
from serving.export.gates.metrics import row_difference
from serving.export.onnx_session import CannotRun, in_batches

Outputs = Sequence[NDArray[Any]]


def batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """1, 3 (neither one nor a power of two) and the largest; none where the model has no batch dimension."""
    return tuple(sorted({1, min(3, max_batch_size), max_batch_size})) if max_batch_size else ()


def largest_row_difference(name: str, run: Run, inputs: Arrays, max_batch_size: int) -> tuple[float, int]:
    """(difference, the batch size that showed it), see `metrics.row_difference`. Raises RowsDiffer where it fails."""
    sizes = batch_sizes(max_batch_size)
    if not sizes:
        return 0.0, 0
    alone = in_batches(run, _first(inputs, max_batch_size), 1, name)
    worst, at = 0.0, 1
    for size in sizes[1:]:
        together = answers_together(name, run, _first(inputs, size), size)
        difference = worst_difference(*as_long(together, [repeated(values, size) for values in alone]))
        if not difference <= worst:
            worst, at = difference, size
    return worst, at


def worst_difference(together: list[NDArray[Any]], alone: list[NDArray[Any]]) -> float:
    """Over all outputs. Other shapes differ infinitely, NaN stays."""
    if [values.shape for values in together] != [values.shape for values in alone]:
        return float("inf")
    return float(np.max([row_difference(a, b) for a, b in zip(together, alone, strict=True)]))


def as_long(ours: Outputs, theirs: Outputs) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Returns both with the shorter rows filled up with zeros, as `in_batches` does; outputs of other ranks stay as they are."""
    pairs = [_both_as_long(a, b) for a, b in zip(ours, theirs, strict=True)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _both_as_long(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if a.ndim != b.ndim or len(a) != len(b):
        return a, b
    shape = tuple(map(max, a.shape, b.shape))
    return filled(a, shape), filled(b, shape)


def answers_together(name: str, run: Run, inputs: Arrays, size: int) -> list[NDArray[Any]]:
    """Of one full batch."""
    batch = {key: repeated(values, size) for key, values in inputs.items()}
    try:
        return in_batches(run, batch, size, name)
    except CannotRun as problem:
        raise RowsDiffer(name, size, f"it fails: {problem.reason}") from None


def repeated(values: NDArray[Any], size: int) -> NDArray[Any]:
    """[size, …]: the rows over and over."""
    return values[np.arange(size) % len(values)]


def _first(inputs: Arrays, num_rows: int) -> dict[str, NDArray[Any]]:
    return {name: values[:num_rows] for name, values in inputs.items()}
