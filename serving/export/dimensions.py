"""What a user says of dimensions that a model leaves open: `--dim height=48`, `--dim width=32..640`, `--dim INPUT:AXIS=…`.

Which names a model has is its source's to say. Rule: a name that it does not have is an error, never passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from serving.documents.nearest import nearest
from serving.errors import UserError

_SPELLING = re.compile(r"(?P<name>.+)=(?P<low>\d+)(\.\.(?P<high>\d+))?")
_NAME = re.compile(r"[A-Za-z_][\w.]*")  # a graph's own; exporters also write "?", "-1" and whole formulas
_CHANNELS = (1, 3, 4)  # grey, colours, colours with alpha
_IMAGES_NDIM = 4

# (input, axis counted from the end): a batch dimension in front moves none of them
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Lengths:
    """From `low` to `high`, both allowed."""

    low: int
    high: int

    @property
    def is_fixed(self) -> bool:
        return self.low == self.high

    def nearest(self, length: int) -> int:
        return min(max(length, self.low), self.high)

    def __str__(self) -> str:
        return str(self.low) if self.is_fixed else f"{self.low}..{self.high}"


def read_dims(texts: Sequence[str]) -> dict[str, Lengths]:
    """Name -> its lengths. Raises UserError for a spelling that is neither NAME=SIZE nor NAME=LOW..HIGH."""
    found: dict[str, Lengths] = {}
    for text in texts:
        match = _SPELLING.fullmatch(text)
        if match is None:
            raise UserError(f"--dim '{text}': want NAME=SIZE or NAME=LOW..HIGH, such as height=48 or width=32..640")
        lengths = Lengths(int(match["low"]), int(match["high"] or match["low"]))
        if not 1 <= lengths.low <= lengths.high:
            raise UserError(f"--dim '{text}': want sizes from 1, the smaller one first")
        if found.setdefault(match["name"], lengths) != lengths:
            raise UserError(f"--dim says two things of {match['name']}: {found[match['name']]} and {lengths}")
    return found


def places(inputs: Mapping[str, Sequence[int | str]]) -> dict[str, list[Place]]:
    """Every name that a dimension may be called by. `inputs`: name -> dimensions, an open one as its name in the graph or -1.

    Each is INPUT:AXIS; an open one also has the graph's own name, and those of images are `height` and `width`.
    """
    found: dict[str, list[Place]] = {}
    for name, dims in inputs.items():
        for axis, size in enumerate(dims):
            if isinstance(size, str) and is_name(size):
                found.setdefault(size, []).append((name, axis - len(dims)))
    own = set(found)
    for name, dims in inputs.items():
        for called, axis in _edges(dims).items():
            if called not in own:
                found.setdefault(called, []).append((name, axis))
        for axis in range(len(dims)):
            found[f"{name}:{axis}"] = [(name, axis - len(dims))]
    return found


def is_name(symbol: str) -> bool:
    """Whether a graph's name for a dimension means one: others share `?` between dimensions that differ."""
    return _NAME.fullmatch(symbol) is not None


def _edges(dims: Sequence[int | str]) -> dict[str, int]:
    """The edges of images, whose channels stand before or after them."""
    if len(dims) != _IMAGES_NDIM:
        return {}
    if dims[1] in _CHANNELS:
        return {"height": -2, "width": -1}
    return {"height": -3, "width": -2} if dims[3] in _CHANNELS else {}


def placed(said: Mapping[str, Lengths], known: Mapping[str, Sequence[Place]], model: str) -> dict[Place, Lengths]:
    """What was said, by place. Raises UserError for a name that `known` does not have, with the nearest."""
    found: dict[Place, Lengths] = {}
    for name, lengths in said.items():
        if name not in known:
            raise UserError(f"--dim {name}={lengths}: {model} has no dimension {name!r}{nearest(name, list(known))}")
        for place in known[name]:
            if found.setdefault(place, lengths) != lengths:
                raise UserError(f"--dim {name}={lengths}: another --dim says {found[place]} of the same dimension")
    return found


def check_rows(rows: Mapping[str, NDArray[Any]], ranges: Mapping[Place, Lengths], where: str) -> None:
    """Raises UserError for arrays [n, …] of a length that was not said."""
    for (name, axis), lengths in ranges.items():
        if name in rows and not lengths.low <= (length := rows[name].shape[axis]) <= lengths.high:
            raise UserError(
                f"{where}: {name} is {list(rows[name].shape)}, and --dim says {lengths} where it has {length}"
            )
