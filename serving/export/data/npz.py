"""Held-out data that somebody has as arrays already: one npz file, ready for the model.

One array per model input, named like it, [n, …] as the model takes it (text as NumPy's own strings), and, where the right
answers are known, `labels` [n]. Scaling and cutting are done before. Rule: nothing is unpickled, because a pickle is code.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.data.dataset import ClassNames, Dataset
from serving.export.exported_model import NUMPY_TYPES, fits
from serving.repository import Tensor

LABELS = "labels"
COLUMNS_FILE = "columns.txt"  # names of a table's features in their order, where the model was fitted on a data frame


def read_npz(
    path: Path,
    inputs: tuple[Tensor, ...],
    num_labels: int | None,
    names: tuple[str, ...] | None = None,
    columns: tuple[str, ...] = (),
    *,
    has_batch: bool = True,
) -> Dataset:
    """`num_labels` None: the model has no classes, and labels are whatever its own metric understands. `names`: of its classes.

    `columns`: of its one table, in their order; they may be arrays of their own.
    """
    arrays = read_arrays(path)
    known = [tensor.name for tensor in inputs]
    if len(known) == 1 and columns and set(columns) <= arrays.keys() - {*known, LABELS}:
        arrays |= {known[0]: _table(path, {column: arrays.pop(column) for column in columns})}
    for name in arrays:
        if name not in (*known, LABELS):
            raise UserError(f"{path}: unknown array {name!r}{nearest(name, [*known, LABELS])}")
    for name in known:
        if name not in arrays:
            raise UserError(f"{path}: array {name!r} is missing; there are {', '.join(sorted(arrays)) or 'none'}")
    labels = arrays.pop(LABELS) if LABELS in arrays and LABELS not in known else None
    if labels is not None:
        labels = check_labels(f"{path}: labels", labels, num_labels, names)
    arrays = {tensor.name: _whole(tensor, arrays[tensor.name], has_batch) for tensor in inputs}
    num_samples = len(labels) if labels is not None else _num_rows(arrays[known[0]])
    for tensor in inputs:
        _check_input(path, tensor, arrays[tensor.name], num_samples)
    return Dataset(path.name, arrays, labels)


def _table(path: Path, columns: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """float32 [n, k] of k columns, each [n] or [n, 1]."""
    first = next(iter(columns))
    num_rows = len(np.atleast_1d(columns[first]))
    for name, values in columns.items():
        if values.dtype.kind not in "iufb" or values.shape not in ((num_rows,), (num_rows, 1)):
            raise UserError(
                f"{path}: column {name!r}: want numbers [{num_rows}] as {first!r} has, got {_described(values)}"
            )
    return np.stack([values.reshape(num_rows) for values in columns.values()], axis=1).astype(np.float32)


def check_labels(
    where: str, labels: NDArray[Any], num_labels: int | None, names: tuple[str, ...] | None = None
) -> NDArray[Any]:
    """int64 [n] in 0..num_labels-1, or any finite numbers [n, …] where there are no classes.

    Classes may be given by `names`. Numbers that all are names are names, as an estimator has that learnt from 1..5 or from -1 and 1.
    """
    if num_labels is None:
        if labels.ndim < 1 or len(labels) == 0 or labels.dtype.kind not in "iuf" or not np.isfinite(labels).all():
            raise UserError(f"{where}: want finite numbers [n, …], n at least 1; got {_described(labels)}")
        return labels
    if names and labels.ndim == 1 and labels.dtype.kind in "Ub":
        classes = ClassNames(names, num_labels)
        return np.array([classes.value(str(label), where) for label in labels], np.int64)
    numbers = _numbers(names or ())
    if labels.ndim == 1 and len(labels) and labels.dtype.kind in "iuf" and set(labels.tolist()) <= numbers.keys():
        return np.array([numbers[label] for label in labels.tolist()], np.int64)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0:
        raise UserError(f"{where}: want whole numbers [n], n at least 1; got {_described(labels)}")
    if labels.min() < 0 or labels.max() >= num_labels:
        way = f"; or give names of classes, {where.rpartition(' ')[2]}.astype(str)" if names else ""
        raise UserError(f"{where}: want 0..{num_labels - 1}, got {labels.min()}..{labels.max()}{way}")
    return labels.astype(np.int64)


def _numbers(names: tuple[str, ...]) -> dict[float, int]:
    """Number -> place, where all names are numbers."""
    try:
        return {float(name): place for place, name in enumerate(names)}
    except ValueError:
        return {}


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a file by name, whatever they are for. UserError for a file that is not a readable npz."""
    if not path.is_file():  # a pipe would be waited for, a device read until memory ends
        raise UserError(f"{path} {'is not a regular file' if path.exists() else 'is not there'}")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is not an npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        way_out = "; save texts as numpy.array(texts, str)" if "Object arrays" in str(error) else ""
        raise UserError(f"{path} cannot be read as npz: {error}{way_out}") from None
    except MemoryError:
        raise UserError(f"{path} holds more than this machine has memory for; give fewer rows") from None
    if unreadable := [name for name, values in arrays.items() if not isinstance(values, np.ndarray)]:
        raise UserError(f"{path} cannot be read as npz: {unreadable[0]!r} is not an array")
    return arrays


def _check_input(path: Path, tensor: Tensor, values: NDArray[Any], num_samples: int) -> None:
    want, got = NUMPY_TYPES.get(tensor.datatype), values.dtype.name
    if tensor.datatype == "BYTES":
        if values.dtype.kind != "U":
            raise UserError(f"{path}: {tensor.name}: want text as np.array([…], dtype=str), got {got}")
    elif want is None:
        raise UserError(f"{path}: {tensor.name}: the model takes {tensor.datatype}, which npz files cannot hold")
    elif want != got:
        got = "text" if values.dtype.kind in "US" else got
        raise UserError(f"{path}: {tensor.name}: want {want}, got {got}{_cast(tensor.name, want, values)}")
    if (
        not values.ndim
        or not fits(tensor.shape, values.shape[1:])
        or len(values) != num_samples
        or num_samples < 1
        or values.size == 0
    ):
        rows = [str(num_samples) if num_samples else "n at least 1"]
        shape = ", ".join([*rows, *("any" if size == -1 else str(size) for size in tensor.shape)])
        raise UserError(
            f"{path}: {tensor.name}: want shape [{shape}], got {list(values.shape)}{_what_else(tensor, values, num_samples)}"
        )
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise UserError(f"{path}: {tensor.name}: holds infinite values")


def _whole(tensor: Tensor, values: NDArray[Any], has_batch: bool) -> NDArray[Any]:
    """Rows of a graph that takes [1, …], or any number, and no batch may leave out the 1; so may those of one number each."""
    if tensor.shape == (1,) and values.ndim == 1:
        return values[:, np.newaxis]
    lacks_one = not has_batch and tensor.shape[:1] in ((1,), (-1,)) and values.ndim == len(tensor.shape)
    return np.expand_dims(values, 1) if lacks_one else values


def _cast(name: str, want: str, values: NDArray[Any]) -> str:
    """How to get there, where that keeps the numbers well enough."""
    is_number = values.dtype.kind in "iuf" and np.dtype(want).kind in "iuf"
    return (
        f"; convert it: {name}.astype('{want}')" if is_number and np.can_cast(values.dtype, want, "same_kind") else ""
    )


def _what_else(tensor: Tensor, values: NDArray[Any], num_samples: int) -> str:
    """Why a shape does not fit that looks as if it did."""
    if len(values.shape) == len(tensor.shape) and tensor.shape:
        return "; the first dimension counts rows, and each row is a whole input"
    if values.ndim and len(values) != num_samples:
        return f"; it has {len(values)} rows, the arrays beside it {num_samples}"
    return ""


def _num_rows(values: NDArray[Any]) -> int:
    return len(values) if values.ndim else 0


def _described(values: NDArray[Any]) -> str:
    return f"{values.dtype} {list(values.shape)}"
