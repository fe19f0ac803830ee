"""What must be known of an Open Inference Protocol v2 request before Triton sees it, and what was wrong once Triton gave up.

`check_head` runs on every request and is cheap: it parses the JSON only where a byte search says that something in it needs a look.
`explain` is the thorough reading, used after Triton answered 5xx, which it also does for mistakes of the client
(malformed JSON, a wrong element count). Tensors in binary form are never looked into.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from serving.errors import BadRequest, Unsupported

# Triton 2.51 narrows these silently when they come as JSON (UINT8 300 becomes 44); wider ones it refuses itself.
INTEGER_RANGES: dict[str, tuple[int, int]] = {
    "INT8": (-(2**7), 2**7 - 1),
    "INT16": (-(2**15), 2**15 - 1),
    "INT32": (-(2**31), 2**31 - 1),
    "INT64": (-(2**63), 2**63 - 1),
    "UINT8": (0, 2**8 - 1),
    "UINT16": (0, 2**16 - 1),
    "UINT32": (0, 2**32 - 1),
    "UINT64": (0, 2**64 - 1),
}
DATATYPES = frozenset({*INTEGER_RANGES, "BOOL", "FP16", "FP32", "FP64", "BF16", "BYTES"})
# Types of JSON values, as Python reads them, that a tensor's elements may have; the other datatypes are integers.
HOLDS: dict[str, set[type]] = {"BOOL": {bool, int}, "BYTES": {str}, "FP32": {int, float}, "FP64": {int, float}}
BINARY_ONLY = frozenset({"FP16", "BF16"})  # Triton carries them in the binary extension only
# 50,000 levels of nesting kill Triton 2.51. What has more brackets than this is parsed, and orjson refuses over 1,024 levels; a batch of
# 32 images as nested lists has about 300.
MAX_BRACKETS = 1000
# What every binary request carries: where its tensors are. Its quotes cannot stand inside a JSON string, which would escape them.
BINARY_PARAMETERS = re.compile(
    rb'"parameters"\s*:\s*\{\s*"(?:binary_data_size"\s*:\s*\d+|binary_data(?:_output)?"\s*:\s*(?:true|false))\s*\}'
)
SHAPE = re.compile(
    rb'"shape"\s*:\s*\[\s*(\d{1,9})(?:\s*,\s*(\d{1,9}))?'
)  # the quotes cannot stand inside a JSON string
TYPED_PARAMETERS: dict[str, tuple[set[type], str]] = {
    "binary_data": ({bool}, "true or false"),
    "binary_data_output": ({bool}, "true or false"),
    "binary_data_size": ({int}, "a number of bytes"),
    "classification": ({int}, "a whole number"),
    "priority": ({int}, "a whole number"),
}
SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})


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
    first = SHAPE.search(head)
    return max(1, int(first[1])) if first else 1


def rows_and_length(head: bytes) -> tuple[int, int]:
    """The first two dimensions of the first tensor: the batch, and of a text how many tokens each has; 1 where it says none."""
    first = SHAPE.search(head)
    return (max(1, int(first[1])), max(1, int(first[2] or 1))) if first else (1, 1)


def check_head(head: bytes) -> Head:
    """Refuses what must not reach Triton in the JSON part of a request (bytes, UTF-8).

    Raises BadRequest or Unsupported. Bodies without escapes, many brackets, integers in JSON, and parameters other than the
    binary extension's own, which are nearly all, pass after a few byte searches.
    """
    num_parameters = head.count(
        b"parameters"
    )  # find and count take half the time of `in`, which first tries bytes as a number
    if (
        head.find(b"\\u") < 0
        and (head.find(b"INT") < 0 or head.find(b'"data"') < 0)
        and (num_parameters == 0 or num_parameters == len(BINARY_PARAMETERS.findall(head)))
        and head.count(b"[") + head.count(b"{") <= MAX_BRACKETS
    ):
        return PLAIN
    request = _parse(head)
    timeout_us = _check_parameters(request.get("parameters"), "parameters")
    for key in ("inputs", "outputs"):
        entries = request.get(key)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                _check_parameters(entry.get("parameters"), f"{key}[{index}].parameters")
                if key == "inputs" and "data" in entry:
                    _check_range(entry, f"inputs[{index}]")
    try:
        return Head(timeout_us, orjson.dumps(request))
    except TypeError:  # orjson reads 1,024 levels and writes 254
        raise BadRequest("the request is nested more than 254 levels deep") from None


def _parse(head: bytes) -> dict[str, Any]:
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
        raise BadRequest(f"the request must be a JSON object, not {_json_type(request)}")
    return request


def _check_parameters(parameters: object, where: str) -> int | None:
    """Refuses reserved names; returns `timeout` in microseconds if set."""
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise BadRequest(f"{where} must be an object, not {_json_type(parameters)}")
    for name in parameters:
        lower = name.lower()
        if lower.startswith("shared_memory"):
            raise BadRequest(f"{where}.{name}: shared memory is not offered here; send the tensor in the request")
        if lower.startswith(("triton_", "tandem_")) or lower == "headers":
            raise BadRequest(f"{where}.{name} is a reserved name")
    for name, (kinds, what) in TYPED_PARAMETERS.items():
        if name in parameters and type(parameters[name]) not in kinds:
            raise BadRequest(f"{where}.{name} must be {what}, not {_json_type(parameters[name])}")
    if type(parameters.get("classification")) is int and parameters["classification"] < 1:
        raise BadRequest(f"{where}.classification must be 1 or more")
    if where == "parameters":
        if used := SEQUENCE_PARAMETERS & parameters.keys():
            raise Unsupported(f"parameters.{min(used)}: models that keep a sequence's state are not served")
        timeout = parameters.get("timeout")
        if timeout is not None:
            if type(timeout) is not int or timeout < 0:
                raise BadRequest("parameters.timeout must be a whole number of microseconds, 0 or more")
            return timeout or None
    return None


def _check_range(entry: dict[str, Any], where: str) -> None:
    datatype = entry.get("datatype")
    bounds = INTEGER_RANGES.get(datatype) if isinstance(datatype, str) else None
    if bounds is None:
        return
    low, high = bounds
    for items, kinds in _lists(entry["data"]):
        if float in kinds:  # 64-bit integers that orjson reads as a float, and fractions, which Triton would cut off
            bad = next(item for item in items if type(item) is float)
            raise BadRequest(f"{where} '{entry.get('name')}': {bad} is not an integer that {datatype} holds")
        integers = items if kinds == {int} else [item for item in items if type(item) is int]
        for bad in (min(integers, default=0), max(integers, default=0)):
            if not low <= bad <= high:
                raise BadRequest(f"{where} '{entry.get('name')}': {bad} is outside {datatype}'s {low}…{high}")


def _lists(data: object) -> Iterator[tuple[list[Any], set[type]]]:
    """Each list in nested `data` with the types of its elements. Elements are only touched in C: a body may hold millions."""
    waiting = [data] if isinstance(data, list) else []
    while waiting:
        items = waiting.pop()
        kinds = set(map(type, items))
        yield items, kinds
        if list in kinds:
            waiting.extend(item for item in items if type(item) is list)


def _json_type(value: object) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def explain(head: bytes, *, binary: bool) -> BadRequest | None:
    """Reads a request (its JSON part; `binary` where tensors follow it) thoroughly; the first mistake of the client, or None."""
    try:
        _explain(_parse(head), binary)
    except BadRequest as error:
        return error
    return None


def _explain(request: dict[str, Any], binary: bool) -> None:
    inputs = request.get("inputs")
    if not isinstance(inputs, list):
        raise BadRequest(
            "the request lacks 'inputs'" if inputs is None else f"'inputs' must be an array, not {_json_type(inputs)}"
        )
    if "id" in request and not isinstance(request["id"], str):
        raise BadRequest(f"'id' must be a string, not {_json_type(request['id'])}")
    for index, entry in enumerate(inputs):
        _explain_input(entry, f"inputs[{index}]", binary)
    outputs = request.get("outputs", [])
    if not isinstance(outputs, list):
        raise BadRequest(f"'outputs' must be an array, not {_json_type(outputs)}")
    for index, entry in enumerate(outputs):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise BadRequest(f"outputs[{index}] needs a 'name'")


def _explain_input(entry: object, where: str, binary: bool) -> None:
    if not isinstance(entry, dict):
        raise BadRequest(f"{where} must be an object, not {_json_type(entry)}")
    name = entry.get("name")
    if not isinstance(name, str):
        raise BadRequest(f"{where} lacks 'name'")
    where = f"{where} '{name}'"
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise BadRequest(f"{where}: 'datatype' must be one of {', '.join(sorted(DATATYPES))}, not {datatype!r}")
    if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
        raise BadRequest(f"{where}: 'shape' must be an array of numbers, 0 or more, not {shape!r}")
    if "data" not in entry:
        parameters = entry.get("parameters") or {}
        if not binary or "binary_data_size" not in parameters:
            raise BadRequest(f"{where} has no 'data' and no binary part")
        size = parameters["binary_data_size"]
        if type(size) is not int or size < 0:
            raise BadRequest(f"{where}: 'binary_data_size' must be a number of bytes, not {size!r}")
        return
    if datatype in BINARY_ONLY:
        raise BadRequest(f"{where}: {datatype} has no JSON form; send it in the binary tensor extension")
    _explain_data(entry["data"], datatype, shape, where)


def _explain_data(data: object, datatype: str, shape: list[int], where: str) -> None:
    if not isinstance(data, list):
        raise BadRequest(f"{where}: 'data' must be an array, not {_json_type(data)}")
    expected = 1
    for dimension in shape:
        expected *= dimension
    holds = HOLDS.get(datatype, {int, bool})
    count = 0
    for items, kinds in _lists(data):
        count += len(items) if list not in kinds else sum(type(item) is not list for item in items)
        if wrong := kinds - holds - {list}:
            bad = next(item for item in items if type(item) in wrong)
            raise BadRequest(f"{where}: an element is {_json_type(bad)}, which {datatype} does not hold")
    if count != expected:
        raise BadRequest(f"{where}: shape {shape} holds {expected} elements but 'data' has {count}")
