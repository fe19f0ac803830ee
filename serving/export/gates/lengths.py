"""Dimensions of any length: which go together, which other lengths are worth a try, and inputs of such a length.

Rule: what was not said by a user is tried at half and twice a length that ran; what was said, at its ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.export.dimensions import Lengths, Place, is_name
from serving.export.exported_model import Arrays
from serving.repository import Tensor

_STRIDES = 32  # five times in half, as in most nets
_IMAGES_NDIM = 4  # of arrays [n, channels, height, width]
_MAX_EDGE = 512  # pixels: an image twice as large as this takes gigabytes of activations in many nets (guess)
_NUM_ROWS = 2  # of the example: a length that fails does so on any row


@dataclass(frozen=True, slots=True)
class FreeDimensions:
    """Those that always have one length. `axis`: of the first of them, in the graph."""

    axis: int
    places: tuple[Place, ...]
    length: int  # the example's
    said: Lengths | None = None  # by a user

    @property
    def name(self) -> str:
        return f"dimension {self.axis} of input {self.places[0][0]!r}"


def free_dimensions(
    tensors: Sequence[Tensor],
    symbols: Mapping[str, Sequence[int | str | None]],
    example: Arrays,
    said: Mapping[Place, Lengths],
) -> list[FreeDimensions]:
    """`symbols`: input -> the graph's dimensions. Those of one name and one length in the example go together."""
    groups: dict[object, list[Place]] = {}
    for tensor in tensors:
        for place, size in enumerate(tensor.shape, start=-len(tensor.shape)):
            if size != -1:
                continue
            symbol = symbols[tensor.name][place]
            called = symbol if isinstance(symbol, str) and is_name(symbol) else None
            key = called, example[tensor.name].shape[place]
            groups.setdefault(key, []).append((tensor.name, place))
    found = []
    for places in groups.values():
        name, axis = places[0]
        found.append(
            FreeDimensions(axis + len(symbols[name]), tuple(places), example[name].shape[axis], _said(places, said))
        )
    return found


def _said(places: Iterable[Place], said: Mapping[Place, Lengths]) -> Lengths | None:
    return next((said[place] for place in places if place in said), None)


def other_lengths(free: FreeDimensions, example: Arrays, longest: int | None = None) -> list[int]:
    """Those to try beside the example's own. `longest`: what the model's preprocessing lets through."""
    if free.said is not None:
        return sorted({free.said.low, free.said.high} - {free.length})
    values, length = example[free.places[0][0]], free.length
    twice = length if _is_image(values) and length > _MAX_EDGE else 2 * length
    return sorted({_halved(values, length), min(twice, longest or twice)} - {0, length})


def resized(free: FreeDimensions, example: Arrays, length: int) -> dict[str, NDArray[Any]]:
    """Some rows of the example with those dimensions cut, or gone through again from the start."""
    inputs = {name: values[:_NUM_ROWS] for name, values in example.items()}
    for key, axis in free.places:
        values = inputs[key]
        inputs[key] = np.take(values, np.arange(length) % values.shape[axis], axis=axis)
    return inputs


def each_row(rows: Arrays) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields every row as an input by itself, without the first dimension."""
    for row in range(len(next(iter(rows.values())))):
        yield {name: np.asarray(values[row]) for name, values in rows.items()}


def _is_image(values: NDArray[Any]) -> bool:
    return values.ndim >= _IMAGES_NDIM


def _halved(values: NDArray[Any], length: int) -> int:
    """Of an image's edge to a multiple of the strides that nets halve images by: at other sizes many do not run."""
    half = length // 2
    return -(-half // _STRIDES) * _STRIDES if _is_image(values) and length % _STRIDES == 0 else half
