"""The rows that a user's torch module is run on: its own example, or the user's data; how long each dimension is and may be.

A batch is the first dimension of every input; with --max-batch 0 each input is whole, and a row of data is one of them. Rules:
floats become FP32; rows that are missing are made of those that are there: floats get noise of their own size, whole numbers
change places along the last axis, because their values may be ids of a table.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray

from serving.errors import UserError
from serving.export import dimensions
from serving.export.data.npz import LABELS
from serving.export.dimensions import Lengths, Place
from serving.export.exported_model import Arrays, SourceOptions

MIN_ROWS = 4  # a batch of 3, and one row that is not in it
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WANT = "a tensor, a tuple of tensors or a dictionary of them, each [n, …]"


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """`rows`: input -> arrays [n, …]. `free`: input -> axis, as the module sees it, -> name of a dimension of any length."""

    rows: Arrays
    is_by_name: bool  # forward is to be called by the inputs' names
    has_batch: bool
    free: Mapping[str, Mapping[int, str]]
    ranges: Mapping[Place, Lengths]


def read_example(
    own: Any, named: Mapping[str, Mapping[int, str]], signature: inspect.Signature, options: SourceOptions, source: str
) -> Example:
    """`own`: what the code gave, `named`: the names it gave to dimensions. Raises UserError for what is no example."""
    has_batch = options.max_batch_size != 0
    given = _chosen(own, signature, options)
    if given is None:
        raise UserError(
            "there are no example inputs, which say the model's shapes: return (module, example), or give --data or "
            "--example FILE.npz"
        )
    arrays = {name: _array(name, value) for name, value in _named(given, signature).items()}
    is_row = not has_batch and given is own
    rows = {name: values[np.newaxis] for name, values in arrays.items()} if is_row else arrays
    counts = {name: len(values) if values.ndim else 0 for name, values in rows.items()}
    if len(set(counts.values())) != 1 or min(counts.values()) < 1:
        shown = ", ".join(f"{name} {list(rows[name].shape)}" for name in counts)
        raise UserError(
            f"the example's inputs need the same number of rows, 1 or more; got {shown}: where the first dimension is no "
            "batch, serve it without batches, with --max-batch 0"
        )
    is_by_name = isinstance(given, Mapping) and _is_by_name(list(rows), signature)
    return _with_dims(_filled(rows), is_by_name, has_batch, named, options.dims or {}, source)


def _chosen(own: Any, signature: inspect.Signature, options: SourceOptions) -> Any:
    """The user's rows before the code's own example, where they are of the same inputs; else their reader names what differs."""
    given = options.example
    if given is None:
        return own
    if not options.is_from_data:
        return given
    given = {name: values for name, values in given.items() if name != LABELS or name in signature.parameters}
    return given if own is None or set(_named(own, signature)) == set(given) else own


def _with_dims(
    rows: dict[str, NDArray[Any]],
    is_by_name: bool,
    has_batch: bool,
    named: Mapping[str, Mapping[int, str]],
    said: Mapping[str, Lengths],
    source: str,
) -> Example:
    """Rows as long as --dim says, and what stays open."""
    first = 0 if has_batch else 1  # axis of the rows that is the module's first
    shapes: dict[str, list[int | str]] = {name: list(values.shape[first:]) for name, values in rows.items()}
    for name, axes in named.items():
        for axis, called in axes.items():
            if name not in shapes or not int(has_batch) <= axis < len(shapes[name]):
                raise UserError(f"the module names dimension {axis} of input {name!r}, which its example does not have")
            shapes[name][axis] = called
    found = dimensions.placed(said, dimensions.places(shapes), source)
    if has_batch and (batch := next((name for name, axis in found if axis == -rows[name].ndim), None)):
        raise UserError(f"--dim: the first dimension of input {batch!r} is the batch: say --max-batch")
    free: dict[str, dict[int, str]] = {}
    for name, dims in shapes.items():
        for axis, size in enumerate(dims):
            lengths = found.get((name, axis - len(dims)))
            if lengths is not None:
                rows[name] = _resized(rows[name], axis + first, lengths)
            if (isinstance(size, str) and lengths is None) or (lengths is not None and not lengths.is_fixed):
                free.setdefault(name, {})[axis] = size if isinstance(size, str) else f"{name}_{axis}"
    ranges = {place: lengths for place, lengths in found.items() if not lengths.is_fixed}
    return Example(rows, is_by_name, has_batch, free, ranges)


def _resized(values: NDArray[Any], axis: int, lengths: Lengths) -> NDArray[Any]:
    length = lengths.nearest(values.shape[axis])
    resized: NDArray[Any] = np.take(values, np.arange(length) % values.shape[axis], axis=axis)
    return resized


def _named(given: Any, signature: inspect.Signature) -> dict[str, Any]:
    if isinstance(given, Mapping):
        if not given or not all(isinstance(name, str) for name in given):
            raise UserError(f"the example's dictionary maps no input names; want {_WANT}")
        return dict(given)
    values = list(given) if isinstance(given, tuple | list) else [given]
    parameters = list(signature.parameters.values())
    names = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        names += [f"input_{index}" for index in range(len(names), len(values))]
    if not values or len(values) > len(names):
        raise UserError(f"the example has {len(values)} tensors, and forward takes {', '.join(names) or 'none'}")
    return dict(zip(names, values, strict=False))


def _is_by_name(names: list[str], signature: inspect.Signature) -> bool:
    """One input may have any name. Of several, each has to be a parameter's, or their order would be a guess."""
    parameters = signature.parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    unknown = [name for name in names if name not in parameters]
    if unknown and len(names) > 1:
        raise UserError(f"the example has {unknown[0]!r}, and forward takes {', '.join(parameters) or 'nothing'}")
    return not unknown


def _array(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        detached = value.detach().cpu()
        value = (detached.float() if detached.is_floating_point() else detached).numpy()
    elif isinstance(value, bool | int | float):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        raise UserError(f"the example's {name!r} is a {type(value).__name__}; want {_WANT}")
    if not np.isfinite(value).all():
        raise UserError(f"the example's {name!r} holds NaN or infinite values")
    return np.asarray(value, np.float32 if value.dtype.kind == "f" else value.dtype, order="C")


def _filled(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    num_rows = len(next(iter(arrays.values())))
    if num_rows >= MIN_ROWS:
        return arrays
    random = np.random.default_rng(0)
    filled = {}
    for name, values in arrays.items():
        more = [_altered(values, turn, random) for turn in range(1, -(-MIN_ROWS // num_rows))]
        filled[name] = np.concatenate([values, *more])
    return filled


def _altered(values: NDArray[Any], turn: int, random: np.random.Generator) -> NDArray[Any]:
    if values.dtype.kind == "f":
        noise = random.standard_normal(values.shape) * (values.std() or 1.0)
        return (values + noise).astype(values.dtype)
    return np.roll(values, turn, axis=-1) if values.ndim > 1 else values
