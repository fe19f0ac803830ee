"""Inputs that a model can be run on where nobody gave data: made up, always the same; or the user's, checked.

Floats are drawn from a normal distribution, integers are 0 or 1, which are valid ids of any vocabulary; at last they are of 0..127, for
nets that two values say nothing to. Whether answers on such inputs mean anything is not asked here.
Rule: rows differ, so that a graph that mixes them up is seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.export.data.npz import LABELS
from serving.export.dimensions import Lengths, Place, check_rows
from serving.export.exported_model import NUMPY_TYPES, Arrays, SourceOptions, fits
from serving.export.sources.graphs.onnx_model import Port

NO_ANSWER = (
    "this model does not answer right: leave such rows out, or fit it with a step that fills them (SimpleImputer)"
)
NUM_ROWS = 8
MAX_BYTES = 256 * 2**20  # of made-up rows: fewer of them where one is large, and none where four are too large (guess)
MIN_ROWS = 4  # a batch of 3, and one row that is not in it
# Lengths that are tried for dimensions of any length: an image's edges, and any other's. The first that runs counts.
EDGES = (224, 256, 512)
LENGTHS = (16, 32, 128)
NUM_ATTEMPTS = len(LENGTHS)
NUM_BYTES = 128  # values of ids at last: ASCII's, which an INT8 holds
DTYPES: Mapping[str, str] = {**NUMPY_TYPES, "BYTES": "object"}


class ShapeMismatch(UserError):
    """Rows of a user's that have other dimensions than the graph's."""


def dtype_of(datatype: str) -> np.dtype[Any]:
    return np.dtype(DTYPES[datatype])


def made_up(
    rows: Sequence[Port],
    attempt: int,
    image_dims: int,
    edge: int | None,
    length: int | None,
    ranges: Mapping[Place, Lengths],
    num_ids: int = 2,
) -> Arrays:
    """Arrays [NUM_ROWS, …] for ports that say what one row is. `attempt` counts from 0 and asks for other lengths.

    `image_dims`: how many dimensions an image has among them. `edge` in pixels, `length` and `ranges` are the user's. Integers are below
    `num_ids`.
    """
    random = np.random.default_rng(0)
    edge, length = edge or EDGES[attempt], min(length or LENGTHS[attempt], LENGTHS[attempt])
    shapes = {port.name: _shape(port, image_dims, edge, length, ranges) for port in rows}
    row_bytes = sum(prod(shapes[port.name]) * dtype_of(port.datatype).itemsize for port in rows)
    num_rows = min(NUM_ROWS, max(MIN_ROWS, MAX_BYTES // max(1, row_bytes)))
    if num_rows * row_bytes > MAX_BYTES:
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise UserError(
            f"one input takes {row_bytes / 2**20:.0f} MB ({sizes}), which is too much to be made up: give real ones with "
            "--data or --example"
        )
    return {port.name: _values(port, (num_rows, *shapes[port.name]), random, num_ids) for port in rows}


def attempts(
    rows: Sequence[Port], options: SourceOptions, image_dims: int, ranges: Mapping[Place, Lengths] | None = None
) -> Iterator[Arrays]:
    """What a model is tried on, one after another: the user's rows alone, else made-up ones of other and other lengths."""
    ranges = ranges or {}
    if options.example is not None:
        example = given(options.example, rows, options.example_name)
        check_rows(example, ranges, options.example_name)
        yield example
        return
    is_fixed = all(-1 not in port.dims for port in rows)
    for attempt in range(1 if is_fixed else NUM_ATTEMPTS):
        yield made_up(rows, attempt, image_dims, options.image_size, options.max_length, ranges)
    if any(_is_of_ids(port) for port in rows):
        yield made_up(rows, 0, image_dims, options.image_size, options.max_length, ranges, NUM_BYTES)


def _is_of_ids(port: Port) -> bool:
    return (
        DTYPES[port.datatype].startswith(("int", "uint"))
        and port.datatype != "UINT8"
        and "mask" not in port.name.lower()
    )


def check_sizes(rows: Sequence[Port], edge: int | None, length: int | None, name: str) -> None:
    """Raises UserError where a size was asked for and the graph leaves none open. `rows`: ports that say what one row is."""
    is_open = {_is_image(port, 3) for port in rows if -1 in port.dims}
    if edge is not None and True not in is_open:
        raise UserError(f"--image-size does not apply to {name}: it takes no images whose size is open; leave it off")
    if length is not None and False not in is_open:
        raise UserError(f"--max-length does not apply to {name}: it takes nothing whose length is open; leave it off")


def _is_image(port: Port, image_dims: int) -> bool:
    return len(port.dims) == image_dims and port.datatype not in ("INT32", "INT64", "BOOL", "BYTES")


def _shape(port: Port, image_dims: int, edge: int, length: int, ranges: Mapping[Place, Lengths]) -> tuple[int, ...]:
    is_image = _is_image(port, image_dims)
    first_edge = len(port.dims) - 3  # channels may stand before or after the edges
    in_front = 1 if is_image else length  # of an image: a batch of one
    free = (edge if is_image and axis >= first_edge else in_front for axis in range(len(port.dims)))
    said = (ranges.get((port.name, place)) for place in range(-len(port.dims), 0))
    free = (other if lengths is None else lengths.nearest(other) for other, lengths in zip(free, said, strict=True))
    return tuple(other if size == -1 else size for size, other in zip(port.dims, free, strict=True))


def _values(port: Port, whole: tuple[int, ...], random: np.random.Generator, num_ids: int) -> NDArray[Any]:
    dtype = dtype_of(port.datatype)
    if port.datatype == "BYTES":
        raise UserError(f"input {port.name!r} is text, of which nothing can be made up: give examples with --example")
    if port.datatype in ("FP16", "FP32", "FP64"):
        return random.standard_normal(whole).astype(dtype)
    if port.datatype == "UINT8":  # pixels, as a rule
        return random.integers(0, 256, whole).astype(dtype)
    if "mask" in port.name.lower():
        return np.ones(whole, dtype)
    return random.integers(0, num_ids if _is_of_ids(port) else 2, whole).astype(dtype)


def first_rows(arrays: Arrays) -> Arrays:
    """So many rows of a user's data as are tried. Where there are few, the others are those with their values moved on."""
    return {
        name: _at_least(values[:NUM_ROWS]) if values.ndim else values
        for name, values in arrays.items()
        if not values.ndim or len(values)
    }


def _at_least(values: NDArray[Any]) -> NDArray[Any]:
    rows = [np.roll(values[place % len(values)], place // len(values)) for place in range(MIN_ROWS)]
    return values if len(values) >= MIN_ROWS else np.stack(rows)


def given(example: Arrays, rows: Sequence[Port], where: str = "the example") -> Arrays:
    """The user's rows in the types of the graph. Raises UserError with what is wanted and what came.

    `where` is what messages call them.
    """
    names = [port.name for port in rows]
    for name in example:
        if name not in (*names, LABELS):
            raise UserError(f"{where} has {name!r}, which is not an input of the model{nearest(name, names)}")
    arrays = {port.name: _fitting(port, example, where) for port in rows}
    counts = {name: len(values) for name, values in arrays.items()}
    if len(set(counts.values())) > 1:
        raise UserError(f"{where}'s inputs have different numbers of rows: {_pairs(counts)}")
    if min(counts.values()) < MIN_ROWS:
        raise UserError(
            f"{where} has {min(counts.values())} rows, want at least {MIN_ROWS} different ones, "
            "so that the rows of a batch can be told apart"
        )
    return arrays


def _fitting(port: Port, example: Arrays, where: str) -> NDArray[Any]:
    if port.name not in example:
        raise UserError(f"{where} lacks input {port.name!r}, want {_wanted(port)}")
    values = np.asarray(example[port.name])
    dims = port.dims
    if dims == (1,) and values.ndim == 1:  # one number per row
        values = values[:, np.newaxis]
    if not values.ndim or not fits(dims, values.shape[1:]):
        dims_text = (
            f"[{', '.join(map(str, ('n', *values.shape[1:])))}]" if values.ndim else "[]"
        )  # any number of rows would do
        raise ShapeMismatch(f"input {port.name!r} of {where} has shape {dims_text}, want {_wanted(port)}")
    dtype = dtype_of(port.datatype)
    if (port.datatype == "BYTES") != (values.dtype.kind in "OUS"):
        raise UserError(f"input {port.name!r} of {where} is {values.dtype}, want {_wanted(port)}")
    if port.datatype == "BYTES":
        return np.array([_text(value) for value in values.ravel()], object).reshape(values.shape)
    if values.dtype.kind == "f" and dtype.kind in "iub":
        raise UserError(f"input {port.name!r} of {where} is {values.dtype}, want {_wanted(port)}")
    cast = values.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(cast, values):
        raise UserError(f"input {port.name!r} of {where} holds numbers that {port.datatype} cannot")
    return np.ascontiguousarray(cast)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _wanted(port: Port) -> str:
    return f"{port.datatype} {['n', *port.dims]}".replace("'", "")


def _pairs(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
