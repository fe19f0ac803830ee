"""What must be known of a v2 request before Triton sees it.

`check_head` parses the JSON part of every request, which is small: of a large one the data of its tensors have been taken out
(`json_tensors.py`).
Rule: Triton is sent what was checked here, so whatever two readers could take for two things is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from itertools import chain
from typing import Any, NamedTuple

import orjson

from serving.errors import BadRequest
from serving.protocol.budget import (
    INPUTS,
    OUTPUTS,
    SMALL_BYTES,
    TEXTS,
    require_clear,
    require_few,
    require_few_parameters,
)
from serving.protocol.v2.datatypes import INTEGER_RANGES, MAX_DIMENSION, check_shape
from serving.protocol.v2.parameters import check_parameters, json_type, unknown

FIRST = re.compile(rb'"shape"\s*:\s*\[\s*(\d{1,9})')
SHAPE = re.compile(
    rb'"shape"\s*:\s*\[\s*(\d{1,9})(?:\s*,\s*(\d{1,9}))?'
)  # the quotes cannot stand inside a JSON string


# What `_is_usual` knows, and how many inputs, outputs and dimensions it looks at.
TOP_KEYS = frozenset({"inputs", "outputs", "parameters", "id", "model_name"})  # the last is in what KServe's SDK sends
INPUT_KEYS = frozenset({"name", "shape", "datatype", "data", "parameters"})
OUTPUT_KEYS = frozenset({"name", "parameters"})
SCALARS = frozenset({int, float, bool, str})
INTEGERS = {int}
LISTS = {list}
FEW = 16
# Requests are alike but for their numbers: what stands around those is kept, where it was found good, at most half a megabyte of it.
# Guesses, not measured.
MAX_FORMS, MAX_FORM_BYTES = 512, 1024
DATA = b'"data":'
OF_NUMBERS = b"0123456789+-.eE, []"
CUT = b"\0"  # which no JSON has
_forms: dict[bytes, tuple[int, Head]] = {}  # with the fewest bytes of a request that had it


class Head(NamedTuple):
    """What the gateway needs of a request's JSON: what is asked for, parsed, and `timeout_us`, None where the client set none.

    `unknown`: names of its own parameters that only a model can read, as an error has them.
    """

    request: Mapping[str, Any]
    timeout_us: int | None = None
    unknown: str = ""

    def require_known(self, model: str, *, takes_parameters: bool) -> None:
        """Raises BadRequest where the model's backend would drop parameters in silence."""
        if self.unknown and not takes_parameters:
            raise BadRequest(
                f"the parameters {self.unknown} are unknown, and the backend of '{model}' reads none; leave them out"
            )


NOTHING = Head({})


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

    Takes 5 µs for a request of sixty numbers. Raises BadRequest, TooLarge or Unsupported.
    """
    if not head:  # raw binary has none
        return NOTHING
    size = len(head) if body_size is None else body_size
    form, numbers = _parts(head)
    known = _forms.get(form)
    if known is not None and known[0] <= size and _are_numbers(numbers):
        return known[1]
    request = parse(head)
    if not _is_usual(request, head, size):
        return check_request(request, head, size)
    checked = Head(request)
    if len(form) <= MAX_FORM_BYTES and (not numbers or (_takes_any_number(request) and _are_numbers(numbers))):
        if len(_forms) >= MAX_FORMS:
            _forms.clear()
        _forms[form] = size, Head({key: value for key, value in request.items() if key != "inputs"})
    return checked


def _parts(head: bytes) -> tuple[bytes, bytes]:
    """What stands around the first list of data, and that list; it is empty where there is none. A key in bytes stands in no text.

    Of a request without a list, the cut is at its end, where no other has one: bytes that hold a cut themselves are like none.
    """
    at = head.find(DATA)
    begins = head.find(b"[", at)
    if at < 0 or begins < 0 or head[at + len(DATA) : begins].strip():
        return head + CUT, b""
    ends = head.find(b"]", begins) + 1
    return head[:begins] + CUT + head[ends:], head[begins:ends]


def _are_numbers(data: bytes) -> bool:
    """Whether it is a list of numbers and of nothing else, or not there."""
    if data.translate(None, OF_NUMBERS):
        return False
    try:
        return not data or type(orjson.loads(data)) is list
    except orjson.JSONDecodeError:
        return False


def _takes_any_number(request: Mapping[str, Any]) -> bool:
    """Whether a usual request stays so with other numbers in its place: one input, whose numbers have no bounds of their own."""
    inputs = request["inputs"]
    datatype = inputs[0].get("datatype") if len(inputs) == 1 else None
    return type(datatype) is str and datatype not in INTEGER_RANGES


def _is_usual(request: dict[str, Any], head: bytes, size: int) -> bool:
    """Whether it says only what nearly all requests say, so that `check_request` would let it pass: in a fifth of its time."""
    inputs, outputs, own = request.get("inputs"), request.get("outputs", []), request.get("parameters")
    if type(inputs) is not list or type(outputs) is not list or not request.keys() <= TOP_KEYS:
        return False
    if len(inputs) > FEW or len(outputs) > FEW or type(request.get("id", "")) is not str:
        return False
    num_members = len(request)
    if own is not None:
        if type(own) is not dict or (own and (len(own) > 1 or type(own.get("binary_data_output")) is not bool)):
            return False
        num_members += len(own)
    names = set()
    for entry in inputs:
        if type(entry) is not dict or not entry.keys() <= INPUT_KEYS:
            return False
        num_members += len(entry)
        name, shape, parameters = entry.get("name"), entry.get("shape"), entry.get("parameters")
        if type(name) is not str or name in names or type(shape) is not list or len(shape) > FEW:
            return False
        names.add(name)
        num_elements = 1
        for each in shape:
            if type(each) is not int or not 0 <= each <= MAX_DIMENSION:
                return False
            num_elements *= each
        if num_elements > size or (num_elements > TEXTS.most and entry.get("datatype") == "BYTES"):
            return False
        if parameters is not None:
            where = parameters.get("binary_data_size") if type(parameters) is dict and len(parameters) == 1 else None
            if type(where) is not int or not 0 <= where <= size:
                return False
            num_members += 1
        if "data" in entry:
            data, datatype = entry["data"], entry.get("datatype")
            between = INTEGER_RANGES.get(datatype) if type(datatype) is str else None
            if type(data) is not list:
                return False
            kinds = set(map(type, data))
            for _ in shape:
                if kinds != LISTS:
                    break
                data = list(chain.from_iterable(data))
                kinds = set(map(type, data))
            if not kinds <= SCALARS or (
                between and (kinds != INTEGERS or min(data) < between[0] or max(data) > between[1])
            ):
                return False
    names = set()
    for entry in outputs:
        if type(entry) is not dict or not entry.keys() <= OUTPUT_KEYS:
            return False
        num_members += len(entry)
        name, parameters = entry.get("name"), entry.get("parameters")
        if type(name) is not str or name in names:
            return False
        names.add(name)
        if parameters is not None:
            if type(parameters) is not dict or len(parameters) != 1 or type(parameters.get("binary_data")) is not bool:
                return False
            num_members += 1
    return head.count(b":") == num_members


def check_request(request: dict[str, Any], head: bytes, size: int) -> Head:
    """The same, of JSON that was parsed. Raises BadRequest or Unsupported."""
    require_clear(head, request)
    check_numbers(request)
    timeout_us = check_parameters(request.get("parameters"), "parameters")
    for key in ("inputs", "outputs"):
        entries = request.get(key)
        if not isinstance(entries, list):
            continue
        check_names(entries, key)
        for index, entry in enumerate(entries):
            if isinstance(entry, dict):
                if "parameters" in entry:
                    check_parameters(entry["parameters"], f"{key}[{index}].parameters")
                if key == "inputs":
                    _check_input(entry, size, index)
    return Head(request, timeout_us, unknown(request.get("parameters"), "parameters"))


def check_numbers(request: Mapping[str, object]) -> None:
    """Raises BadRequest where it has more inputs, outputs or parameters than any model needs."""
    levels = [request]
    for key, limit in (("inputs", INPUTS), ("outputs", OUTPUTS)):
        entries = request.get(key)
        if isinstance(entries, list):
            limit.check(len(entries))
            levels += [entry for entry in entries if isinstance(entry, dict)]
    require_few_parameters(level["parameters"] for level in levels if "parameters" in level)


def check_names(entries: list[Any], key: str) -> None:
    """Raises BadRequest where two inputs, or two outputs, have one name: Triton answers of them as it likes."""
    known = set()
    for index, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        if name in known:
            raise BadRequest(f"{key}[{index}] '{name[:80]}' already exists in the request; name each of the {key} once")
        known.add(name)


def _check_input(entry: dict[str, Any], size: int, index: int) -> None:
    where = f"inputs[{index}] '{str(entry['name'])[:80]}'" if "name" in entry else f"inputs[{index}]"
    if "shape" in entry:
        check_shape(entry["shape"], size, where, entry.get("datatype"))
    if "data" in entry and entry.get("datatype") not in ("FP32", "FP64", "BYTES"):
        _check_range(entry, where)


def parse(head: bytes) -> dict[str, Any]:
    """The JSON part as an object. Raises BadRequest."""
    if len(head) > SMALL_BYTES:
        require_few(head)
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


def control(body: bytes) -> dict[str, Any]:
    """What a request to list, load or unload models says; it may be empty. Raises BadRequest."""
    request = parse(body) if body else {}
    require_clear(body, request)
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


def require_json_outputs(request: Mapping[str, Any], binary_only: Set[str]) -> None:
    """`binary_only`: the outputs of the model that have no JSON form. Raises BadRequest where one is asked for as JSON.

    Triton 2.51 takes a listed output as JSON unless it says `binary_data` itself, whatever `binary_data_output` says.
    """
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


def _parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    found = entry.get("parameters")
    return found if isinstance(found, dict) else {}
