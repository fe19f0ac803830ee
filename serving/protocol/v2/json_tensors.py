"""Turns the numbers of a large JSON request into the binary extension, because Triton reads JSON slowly.

simdjson hands arrays of numbers over as buffers, without an object per element. FP32 is rounded from double, as Triton does it. BYTES
and BOOL stay JSON, and so does a request that has something to explain: `check_head` and `explain` say what. Rule: what this lets
pass must be what those let pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

import numpy as np
import orjson
import simdjson

from serving.errors import BadRequest, RequestError
from serving.protocol.bounds import MAX_MEMBERS, MAX_OUTPUTS, require_bounded, require_parsable
from serving.protocol.v2.datatypes import INTEGER_RANGES, check_shape
from serving.protocol.v2.explain import wrong_count
from serving.protocol.v2.head import check_names, check_numbers
from serving.protocol.v2.parameters import check_parameters

KEPT_BYTES = 4 * 2**20  # a parser keeps room for the largest body it has read, about three times its size
MAX_FOUND = 256  # inputs, or keys of an object: each is found by looking at those before it; more stay JSON
MAX_ENTRIES = MAX_OUTPUTS  # of one list or object that is no data
MAX_DEPTH = 16  # levels of what is no data; more stay JSON
BUFFERS = {"FP32": ("d", "f8"), "FP64": ("d", "f8")} | {
    name: ("u", "u8") if name.startswith("U") else ("i", "i8") for name in INTEGER_RANGES
}
ELEMENTS = {"FP32": "<f4", "FP64": "<f8"} | {
    name: f"<{'u' if name.startswith('U') else 'i'}{int(name.lstrip('UINT')) // 8}" for name in INTEGER_RANGES
}


@dataclass(frozen=True, slots=True)
class Binary:
    """A request in the binary extension: its JSON part, its tensors in their order, and the client's `timeout_us`."""

    head: bytes
    tensors: list[bytes]
    timeout_us: int | None


class _Stays(Exception):
    """JSON as it came is the way."""


class JsonTensors:
    """Keeps a parser, so it is for one thread."""

    def __init__(self) -> None:
        self._parser: Any = simdjson.Parser()

    def to_binary(self, body: bytes) -> Binary | None:
        """None where the request is to go on as JSON. Raises BadRequest or Unsupported for what must not reach Triton."""
        if body[:1] != b"{":  # simdjson would read over a byte-order mark
            return None
        require_bounded(body)
        parser = self._parser if len(body) <= KEPT_BYTES else simdjson.Parser()
        try:
            return _converted(parser.parse(body), body)
        except RequestError as error:
            raise error.with_traceback(None) from None  # whose frames would keep the document, and with it the parser
        except (ValueError, TypeError, RuntimeError, KeyError, _Stays):  # KeyError: it finds no key that has NUL in it
            return None


def _converted(document: Any, body: bytes) -> Binary:
    if not isinstance(document, simdjson.Object):
        raise _Stays
    found = _members(document)
    entries = found.pop("inputs", None)
    if not isinstance(entries, simdjson.Array) or len(entries) > MAX_FOUND:
        raise _Stays
    numbers = range(len(entries))  # a loop over the array itself would make objects of all that is in it
    are_of_numbers = [_is_of_numbers(entries[index]) for index in numbers]
    if not any(are_of_numbers):
        raise _Stays
    if not all(are_of_numbers):
        require_parsable(body)
    size = len(body)
    left = [MAX_MEMBERS]
    request = {key: _plain(value, left) for key, value in found.items()}
    timeout_us = check_parameters(request.get("parameters"), "parameters")
    outputs = request.get("outputs")
    check_names(outputs, "outputs")
    for index, entry in enumerate(outputs if isinstance(outputs, list) else ()):
        if isinstance(entry, dict):
            check_parameters(entry.get("parameters"), f"outputs[{index}].parameters")
    inputs: list[dict[str, Any]] = []
    tensors: list[bytes] = []
    for index in numbers:
        inputs.append(_input(entries[index], size, f"inputs[{index}]", tensors, left))
    check_names(inputs, "inputs")
    check_numbers(request | {"inputs": inputs})
    return Binary(orjson.dumps(request | {"inputs": inputs}), tensors, timeout_us)


def _is_of_numbers(entry: Any) -> bool:
    return isinstance(entry, simdjson.Object) and entry.get("datatype") in BUFFERS


def _members(entry: Any) -> dict[str, Any]:
    """Of an object, arrays and objects not looked into. Of two equal keys each reader would take another."""
    keys = list(islice(entry.keys(), MAX_FOUND + 1))
    if len(keys) > MAX_FOUND or len(set(keys)) < len(keys):
        raise _Stays
    return {key: entry[key] for key in keys}


def _plain(value: Any, left: list[int], depth: int = 0) -> Any:
    """Of what is no tensor's data. `left`: how many values more the request may have there. Raises BadRequest."""
    left[0] -= 1
    if not isinstance(value, simdjson.Object | simdjson.Array):
        return value
    if depth > MAX_DEPTH:
        raise _Stays
    if len(value) > MAX_ENTRIES or left[0] < len(value):
        raise BadRequest(f"the request has more than {MAX_ENTRIES} values in one place that is no tensor's data")
    if isinstance(value, simdjson.Object):
        return {key: _plain(member, left, depth + 1) for key, member in _members(value).items()}
    return [_plain(value[index], left, depth + 1) for index in range(len(value))]


def _input(entry: Any, size: int, where: str, tensors: list[bytes], left: list[int]) -> dict[str, Any]:
    """One input without its numbers, which are added to `tensors`."""
    if not isinstance(entry, simdjson.Object):
        raise _Stays
    found = _members(entry)
    data = found.pop("data", None)
    given = {key: _plain(value, left) for key, value in found.items()}
    datatype, parameters = given.get("datatype"), given.get("parameters") or {}
    check_parameters(parameters, f"{where}.parameters")
    if "name" in given:
        where = f"{where} '{str(given['name'])[:80]}'"
    shape = check_shape(given.get("shape"), size, where)
    if not isinstance(data, simdjson.Array) or "binary_data_size" in parameters:
        raise _Stays
    if datatype not in BUFFERS:
        return given | {"data": data.as_list()}
    tensor = _numbers(data, datatype, shape, where)
    tensors.append(tensor)
    return given | {"parameters": parameters | {"binary_data_size": len(tensor)}}


def _numbers(data: Any, datatype: str, shape: list[int], where: str) -> bytes:
    """The elements of nested `data`, row by row, in the datatype's bytes."""
    kind, read_as = BUFFERS[datatype]
    values = np.frombuffer(data.as_buffer(of_type=kind), read_as)
    if len(values) != prod(shape):
        raise wrong_count(where, shape, len(values))
    if datatype in INTEGER_RANGES and len(values):
        low, high = INTEGER_RANGES[datatype]
        for bad in (int(values.min()), int(values.max())):
            if not low <= bad <= high:
                raise BadRequest(f"{where}: {bad} is outside {datatype}'s {low}…{high}")
    with np.errstate(over="ignore"):  # what FP32 does not hold becomes infinity, as in Triton
        return values.astype(ELEMENTS[datatype], copy=False).tobytes()
