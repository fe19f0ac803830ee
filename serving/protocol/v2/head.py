"""What must be known of a v2 request before Triton sees it.

`check_head` runs on every request and is cheap: it parses the JSON only where a byte search says that something in it needs a look.
Searches are for single bytes wherever that is enough: the C library finds those seventy times faster than a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import orjson

from serving.errors import BadRequest
from serving.protocol.bounds import (
    MAX_INPUTS,
    MAX_OUTPUTS,
    require_bounded,
    require_few_entries,
    require_few_parameters,
    require_parsable,
)
from serving.protocol.v2.datatypes import INTEGER_RANGES, MAX_DIMENSION, check_shape
from serving.protocol.v2.parameters import check_parameters, json_type

# 50,000 levels of nesting kill Triton 2.51. What has more brackets than this is parsed, and orjson refuses over 1,024 levels; a batch of
# 32 images as nested lists has about 300.
MAX_BRACKETS = 1000
# What every binary request carries: where its tensors are. Its quotes cannot stand inside a JSON string, which would escape them.
BINARY_PARAMETERS = re.compile(
    rb'"parameters"\s*:\s*\{\s*"(?:binary_data_size"\s*:\s*\d{1,9}|binary_data(?:_output)?"\s*:\s*(?:true|false))\s*\}'
)
NAME = b'"name"'
NAMES = re.compile(rb'"name"\s*:\s*"([^"]*)"')
FIRST = re.compile(rb'"shape"\s*:\s*\[\s*(\d{1,9})')
SHAPE = re.compile(
    rb'"shape"\s*:\s*\[\s*(\d{1,9})(?:\s*,\s*(\d{1,9}))?'
)  # the quotes cannot stand inside a JSON string
SHAPES = re.compile(rb'"shape"\s*:\s*\[([\d,\s]+)\]')  # whatever else stands there Triton refuses by itself
FEW_DIGITS = 6  # less than a million elements, for which Triton can make room whatever the body is
LONG_SHAPE = 100  # characters; no model's is longer; a guess, not measured


@dataclass(frozen=True, slots=True)
class Head:
    """What the gateway needs of a request's JSON: `timeout_us`, None where the client set none, and what to send on.

    `rewritten` is the JSON anew where it was parsed, so that Triton reads what was checked: of two equal keys it takes the first,
    orjson the last. None where the bytes may go on as they came.
    """

    timeout_us: int | None = None
    rewritten: bytes | None = None


PLAIN = Head()


def inference_header_length(value: bytes | None, body_size: int) -> int | None:
    """The `Inference-Header-Content-Length` header as a number of bytes; None where the whole body is JSON.

    Strict, because Triton reads `abc` as 0 and `123x` as 123.
    """
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise BadRequest(
            f"Inference-Header-Content-Length must be a plain number of bytes, not {value[:40].decode('latin-1')!r}"
        )
    length = int(value)
    if length > body_size:
        raise BadRequest(f"Inference-Header-Content-Length is {length} but the body has {body_size} bytes")
    return length


def num_rows(head: bytes) -> int:
    """The first dimension of the first tensor in the JSON part, which is the batch where there is one; 1 where it says none."""
    first = FIRST.search(head)
    return (int(first[1]) or 1) if first else 1


def rows_and_length(head: bytes) -> tuple[int, int]:
    """The first two dimensions of the first tensor: the batch, and of a text how many tokens each has; 1 where it says none."""
    first = SHAPE.search(head)
    return (max(1, int(first[1])), max(1, int(first[2] or 1))) if first else (1, 1)


def check_head(head: bytes, body_size: int | None = None) -> Head:
    """Refuses what must not reach Triton in the JSON part of a request (bytes, UTF-8). `body_size`: of all of it, binary tensors included.

    Raises BadRequest or Unsupported. Bodies without escapes, many brackets, integers in JSON, and parameters other than the
    binary extension's own, which are nearly all, pass after a few byte searches.
    """
    require_bounded(head)
    size = len(head) if body_size is None else body_size
    if not head or (_is_plain(head) and not _is_any_shape_large(head, size)):  # raw binary has none
        return PLAIN
    return _check_parsed(head, size)


def _is_plain(head: bytes) -> bool:
    """Whether nothing in it needs to be parsed: it is an object in ASCII, and says nothing that Triton would misread."""
    if head[:1] != b"{" or not head.isascii() or (len(head) > MAX_BRACKETS and _num_brackets(head) > MAX_BRACKETS):
        return False
    if head.find(b"\\") >= 0 and head.find(b"\\u") >= 0:
        return False
    if head.find(b"N") >= 0 and (head.find(b"NaN") >= 0 or (head.find(b"INT") >= 0 and head.find(b'"data"') >= 0)):
        return False
    if head.find(b"I") >= 0 and head.find(b"Inf") >= 0:
        return False
    num_names = head.count(NAME)
    if num_names > 1 and len(set(NAMES.findall(head))) < num_names:
        return False
    num_parameters = head.count(b"parameters")
    return num_parameters == 0 or num_parameters == len(BINARY_PARAMETERS.findall(head))


def _num_brackets(head: bytes) -> int:
    return head.count(b"[") + head.count(b"{")


def _is_any_shape_large(head: bytes, size: int) -> bool:
    """Whether one says more elements than the body has bytes (`check_shape` has the reason), or Triton would cut it off."""
    for shape in SHAPES.findall(head):
        if len(shape.translate(None, b", \t\r\n")) <= FEW_DIGITS:
            continue
        if len(shape) > LONG_SHAPE:
            return True
        try:
            dimensions = list(map(int, shape.split(b",")))
        except ValueError:
            return True
        if prod(dimensions) > size or max(dimensions) > MAX_DIMENSION:
            return True
    return False


def _check_parsed(head: bytes, size: int) -> Head:
    request = parse(head)
    check_numbers(request)
    timeout_us = check_parameters(request.get("parameters"), "parameters")
    for key in ("inputs", "outputs"):
        entries = request.get(key)
        check_names(entries, key)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                check_parameters(entry.get("parameters"), f"{key}[{index}].parameters")
                if key == "inputs":
                    _check_input(entry, size, f"inputs[{index}]")
    try:
        return Head(timeout_us, orjson.dumps(request))
    except TypeError:  # orjson reads 1,024 levels and writes 254
        raise BadRequest("the request is nested more than 254 levels deep") from None


def check_numbers(request: Mapping[str, object]) -> None:
    """Raises BadRequest where it has more inputs, outputs or parameters than any model needs."""
    levels = [request]
    for key, most in (("inputs", MAX_INPUTS), ("outputs", MAX_OUTPUTS)):
        entries = request.get(key)
        if isinstance(entries, list):
            require_few_entries(key, len(entries), most)
            levels += [entry for entry in entries if isinstance(entry, dict)]
    require_few_parameters(level.get("parameters") for level in levels)


def check_names(entries: object, key: str) -> None:
    """Raises BadRequest where two inputs, or two outputs, have one name: Triton answers of them as it likes."""
    known = set()
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        if name in known:
            raise BadRequest(f"{key}[{index}] '{name[:80]}' already exists in the request; name each of the {key} once")
        known.add(name)


def _check_input(entry: dict[str, Any], size: int, where: str) -> None:
    if "name" in entry:
        where = f"{where} '{str(entry['name'])[:80]}'"
    if "shape" in entry:
        check_shape(entry["shape"], size, where)
    if "data" in entry:
        _check_range(entry, where)


def parse(head: bytes) -> dict[str, Any]:
    """The JSON part as an object. Raises BadRequest."""
    require_parsable(head)
    try:
        request = orjson.loads(head)
    except orjson.JSONDecodeError as error:
        if head[:3] == b"\xef\xbb\xbf":
            raise BadRequest("the request begins with a byte-order mark; JSON is sent without one") from None
        if b"NaN" in head or b"Infinity" in head:
            raise BadRequest(
                "JSON has no NaN or Infinity; send such values in the binary tensor extension "
                "(Inference-Header-Content-Length)"
            ) from None
        raise BadRequest(f"the request is not valid JSON: {error}") from None
    if not isinstance(request, dict):
        raise BadRequest(f"the request must be a JSON object, not {json_type(request)}")
    return request


def _check_range(entry: dict[str, Any], where: str) -> None:
    datatype = entry.get("datatype")
    bounds = INTEGER_RANGES.get(datatype) if isinstance(datatype, str) else None
    if bounds is None:
        return
    low, high = bounds
    for items, kinds in lists(entry["data"]):
        if float in kinds:  # 64-bit integers that orjson reads as a float, and fractions, which Triton would cut off
            bad = next(item for item in items if type(item) is float)
            raise BadRequest(f"{where}: {bad} is not an integer that {datatype} holds")
        integers = items if kinds == {int} else [item for item in items if type(item) is int]
        for bad in (min(integers, default=0), max(integers, default=0)):
            if not low <= bad <= high:
                raise BadRequest(f"{where}: {bad} is outside {datatype}'s {low}…{high}")


def lists(data: object) -> Iterator[tuple[list[Any], set[type]]]:
    """Each list in nested `data` with the types of its elements. Elements are only touched in C: a body may hold millions."""
    waiting = [data] if isinstance(data, list) else []
    while waiting:
        items = waiting.pop()
        kinds = set(map(type, items))
        yield items, kinds
        if list in kinds:
            waiting.extend(item for item in items if type(item) is list)


def require_json_outputs(head: bytes, binary_only: Set[str]) -> None:
    """`binary_only`: the outputs of the model that have no JSON form. Raises BadRequest where one is asked for as JSON.

    Triton 2.51 takes a listed output as JSON unless it says `binary_data` itself, whatever `binary_data_output` says.
    """
    request = parse(head)
    listed = request.get("outputs")
    if isinstance(listed, list) and listed:
        asked = {str(entry.get("name")) for entry in listed if isinstance(entry, dict) and not _is_other(entry)}
    else:
        is_binary = _parameters(request).get("binary_data_output") is True
        asked = set() if is_binary else set(binary_only)
    if missing := sorted(asked & binary_only):
        raise BadRequest(
            f"output '{missing[0]}' is FP16 or BF16, which have no JSON form; ask for it with the parameter binary_data: true"
        )


def _is_other(entry: dict[str, Any]) -> bool:
    """Whether it comes back in binary, or as classes, which are text."""
    parameters = _parameters(entry)
    return parameters.get("binary_data") is True or "classification" in parameters


def _parameters(entry: dict[str, Any]) -> dict[str, Any]:
    found = entry.get("parameters")
    return found if isinstance(found, dict) else {}
