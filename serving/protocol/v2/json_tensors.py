"""Turns JSON tensors of a large request into the binary extension, because Triton reads JSON slowly and parsers hold everybody up.

Numbers, truth values and texts go piece by piece (`json_arrays.py`), never as objects all at once; FP32 is rounded from double, as Triton
does it. What is left of the JSON is read as that of a small request (`head.py`). Rule: what this lets pass must be what `check_head` and
`explain` let pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from struct import Struct
from time import sleep
from typing import Any

import numpy as np
import orjson

from serving.errors import BadRequest, RequestError, TooLarge
from serving.protocol import json_arrays
from serving.protocol.json_arrays import Array, Kind, Text, Unreadable
from serving.protocol.v2.datatypes import HOLDS, INTEGER_RANGES
from serving.protocol.v2.explain import described, mistake_in, wrong_count
from serving.protocol.v2.head import Head, check_request, parse
from serving.protocol.v2.parameters import json_type

KINDS: dict[str, Kind] = {"FP32": "d", "FP64": "d", "BOOL": "i"}
KINDS.update((name, "u" if name.startswith("U") else "i") for name in INTEGER_RANGES)
ELEMENTS = {"FP32": "<f4", "FP64": "<f8", "BOOL": "<i1"} | {
    name: f"<{'u' if name.startswith('U') else 'i'}{int(name.lstrip('UINT')) // 8}" for name in INTEGER_RANGES
}
RANGES = INTEGER_RANGES | {"BOOL": (0, 1)}
Chunks = list[Text]
LENGTH = Struct("<I").pack  # of a text, before it
# NumPy lets go of Python's lock in each piece and has it back before a thread that waits for it wakes up: without pauses it waits
# for tens of pieces, 0.2 s in all.
PIECES_AT_ONCE, PAUSE_S = 8, 1e-4


@dataclass(frozen=True, slots=True)
class Binary:
    """A request in the binary extension: its JSON part, what is known of it, and its tensors in their order.

    A tensor that came in binary is the number of its bytes.
    """

    head: bytes
    checked: Head
    tensors: list[Chunks | int]


def to_binary(head: bytes, body_size: int, most_bytes: int, claim: Callable[[int], None] = lambda _: None) -> Binary:
    """`head`: the JSON part of a body of `body_size` bytes, or all of it; `most_bytes`: of the tensors that are made of
    JSON; `claim` is told of the bytes of each piece, and raises where there is no room for them.

    Takes 6 ms per MiB of numbers, in pieces between which other threads have their turn. Raises RequestError.
    """
    head = head.strip(json_arrays.SPACES)
    rest, arrays = json_arrays.cut(head, b"data")
    request = parse(rest)
    checked = check_request(request, rest, body_size)
    inputs = request.get("inputs")
    if not isinstance(inputs, list):
        raise mistake_in(request, binary=True, size=body_size) or BadRequest("the request lacks 'inputs'")
    tensors: list[Chunks | int] = []
    left = most_bytes
    for index, entry in enumerate(inputs):
        data = entry.get("data") if isinstance(entry, dict) else None
        array = arrays.pop(data, None) if isinstance(data, str) else None
        if array is None:
            size = _binary_size(entry, index, body_size)
            tensors.append(size)
            continue
        tensor = _Tensor(entry, f"inputs[{index}]", body_size)
        tensors.append(list(tensor.read(head, array, left, claim)))
        left -= tensor.size
        del entry["data"]
        entry["parameters"] = (entry.get("parameters") or {}) | {"binary_data_size": tensor.size}
    if arrays:
        raise BadRequest("the request has 'data' outside of its inputs")
    return Binary(orjson.dumps(request), checked, tensors)


def _binary_size(entry: Any, index: int, body_size: int) -> int:
    """Of an input that came in binary. Raises BadRequest for one that did not."""
    mistake = mistake_in({"inputs": [entry]}, binary=True, size=body_size)
    if mistake is not None:
        raise BadRequest(str(mistake).replace("inputs[0]", f"inputs[{index}]", 1))
    if "data" in entry:
        raise BadRequest(
            f"inputs[{index}]: the key 'data' must stand as it is, without escapes, right before its array"
        )
    size = entry["parameters"]["binary_data_size"]
    assert type(size) is int
    return size


class _Tensor:
    """One input whose elements are JSON. `size`: its bytes, once it was read. Raises BadRequest."""

    def __init__(self, entry: dict[str, Any], where: str, body_size: int) -> None:
        self._where, self._datatype, self._shape = described(entry, where, body_size)
        if "binary_data_size" in (entry.get("parameters") or {}):
            raise BadRequest(f"{self._where} has both 'data' and a binary part; send one of the two")
        self.size = 0

    def read(self, body: bytes, array: Array, most_bytes: int, claim: Callable[[int], None]) -> Iterator[Text]:
        try:
            for chunk in self._texts(body, array) if self._datatype == "BYTES" else self._numbers(body, array):
                self.size += len(chunk)
                if self.size > most_bytes:
                    raise TooLarge(
                        f"{self._where}: the tensors have more than {most_bytes} bytes, the most that is taken here"
                    )
                claim(len(chunk))
                yield chunk
        except Unreadable as error:
            raise self._mistake(error.piece) from None

    def _numbers(self, body: bytes, array: Array) -> Iterator[bytes]:
        datatype = self._datatype
        if 0 in self._shape and json_arrays.is_empty(body, array):
            json_arrays.require_empty(body, array)
            return
        number = json_arrays.count(body, array)
        if number != prod(self._shape):
            raise self._mistake_first(body, array) or wrong_count(self._where, self._shape, number)
        kind, made = KINDS[datatype], ELEMENTS[datatype]
        for index, values in enumerate(json_arrays.numbers(body, array, kind, are_truths=datatype == "BOOL"), 1):
            if not index % PIECES_AT_ONCE:
                sleep(PAUSE_S)
            if datatype in RANGES:
                low, high = RANGES[datatype]
                for bad in (int(values.min()), int(values.max())):
                    if not low <= bad <= high:
                        raise BadRequest(f"{self._where}: {bad} is outside {datatype}'s {low}…{high}")
            with np.errstate(over="ignore"):  # what FP32 does not hold becomes infinity, as in Triton
                yield values.astype(made, copy=False).tobytes()

    def _texts(self, body: bytes, array: Array) -> Iterator[Text]:
        """Each with its length before it."""
        number = 0
        for several in json_arrays.texts(body, array):
            number += len(several)
            if number > prod(self._shape):
                raise wrong_count(self._where, self._shape, f"{number} or more")
            if len(several) == 1:
                yield LENGTH(len(several[0]))
                yield several[0]
            else:
                yield b"".join(chain.from_iterable(zip(map(LENGTH, map(len, several)), several, strict=True)))
        if number != prod(self._shape):
            raise wrong_count(self._where, self._shape, number)

    def _mistake_first(self, body: bytes, array: Array) -> RequestError | None:
        """Where elements cannot be counted by commas, because they are no numbers."""
        start = body[array.begin : min(array.end, array.begin + json_arrays.PIECE_BYTES)]
        return self._mistake(start) if any(mark in start for mark in (b'"', b"{", b"N", b"I")) else None

    def _mistake(self, piece: bytes) -> RequestError:
        """Why this piece, the elements of lists, is none of a tensor of this datatype."""
        datatype, where = self._datatype, self._where
        try:
            items = parse(b'{"data":[%b]}' % json_arrays.without_brackets(piece))["data"]
        except BadRequest as error:
            return error
        holds = HOLDS.get(datatype, {int, bool})
        for item in items:
            if type(item) not in holds:
                if type(item) is float:
                    return BadRequest(f"{where}: {item} is not an integer that {datatype} holds")
                return BadRequest(f"{where}: an element is {json_type(item)}, which {datatype} does not hold")
        if datatype in RANGES:
            low, high = RANGES[datatype]
            for item in items:
                if not low <= item <= high:
                    return BadRequest(f"{where}: {item} is outside {datatype}'s {low}…{high}")
        return BadRequest(f"{where}: an element cannot be read as {datatype}")
