"""Does a row get the same answer alone as in a batch? A server batches requests of different clients.

Rule: batches are full ones of the sizes that the record names; where there are fewer rows, they are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.export.exported_model import Arrays, Run, as_long, filled, num_rows
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
    alone = one_by_one(name, run, _first(inputs, max_batch_size))
    worst, at = 0.0, 1
    for size in sizes[1:]:
        together = answers_together(name, run, _first(inputs, size), size)
        difference = worst_difference(*as_long(together, as_in_batch(alone, together)))
        if not difference <= worst:
            worst, at = difference, size
    return worst, at


def one_by_one(name: str, run: Run, inputs: Arrays) -> list[list[NDArray[Any]]]:
    """All outputs [1, …] of each row alone, as long as they are. Raises CannotRun."""
    rows = [{key: values[row : row + 1] for key, values in inputs.items()} for row in range(num_rows(inputs))]
    return [in_batches(run, row, 1, name) for row in rows]


def as_in_batch(alone: Sequence[Outputs], together: Outputs) -> list[NDArray[Any]]:
    """Every output of rows [1, …] that stood alone, over and over, as [n, …] beside a batch of n of them.

    Shorter rows are filled up with what the batch fills them up with, if that is -1, else with zeros.
    """
    rows = [alone[row % len(alone)] for row in range(len(together[0]))]
    return [_filled_as(values, of_output) for values, of_output in zip(together, zip(*rows, strict=True), strict=False)]


def _filled_as(together: NDArray[Any], rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len({row.ndim for row in rows}) > 1:
        return rows[0]  # no batch has such rows
    shape = tuple(np.max([row.shape for row in rows], axis=0))
    found = [filled(row, shape) for row in rows]
    if together.shape[1:] == shape[1:] and together.dtype.kind in "if":
        for row, whole, beside in zip(rows, found, together, strict=True):
            is_beyond = np.ones(shape, bool)
            is_beyond[tuple(slice(length) for length in row.shape)] = False
            if is_beyond.any() and (beside[is_beyond[0]] == -1).all():
                whole[is_beyond] = -1
    return np.concatenate(found)


def worst_difference(together: list[NDArray[Any]], alone: list[NDArray[Any]]) -> float:
    """Over all outputs. Other shapes differ infinitely, NaN stays."""
    if [values.shape for values in together] != [values.shape for values in alone]:
        return float("inf")
    return float(np.max([row_difference(a, b) for a, b in zip(together, alone, strict=True)]))


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


def _first(inputs: Arrays, most: int) -> dict[str, NDArray[Any]]:
    return {name: values[:most] for name, values in inputs.items()}
