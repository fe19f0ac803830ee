"""What was wrong with a v2 request, read thoroughly.

Used after Triton answered 5xx, which it also does for mistakes of the client (malformed JSON, a wrong element count).
"""

from __future__ import annotations

from math import prod
from typing import Any

from serving.errors import BadRequest, RequestError
from serving.protocol.v2.datatypes import BINARY_ONLY, DATATYPES, HOLDS, check_shape
from serving.protocol.v2.head import lists, parse
from serving.protocol.v2.parameters import json_type


def explain(head: bytes, *, binary: bool, body_size: int | None = None) -> RequestError | None:
    """Reads a request (its JSON part; `binary` where tensors follow it) thoroughly; the first mistake of the client, or None."""
    try:
        return mistake_in(parse(head), binary=binary, size=len(head) if body_size is None else body_size)
    except RequestError as error:
        return error


def mistake_in(request: dict[str, Any], *, binary: bool, size: int) -> BadRequest | None:
    """As `explain`, of JSON that was read; `size`: of the whole body."""
    try:
        _explain(request, binary, size)
    except BadRequest as error:
        return error
    return None


def _explain(request: dict[str, Any], binary: bool, size: int) -> None:
    inputs = request.get("inputs")
    if not isinstance(inputs, list):
        raise BadRequest(
            "the request lacks 'inputs'" if inputs is None else f"'inputs' must be an array, not {json_type(inputs)}"
        )
    if "id" in request and not isinstance(request["id"], str):
        raise BadRequest(f"'id' must be a string, not {json_type(request['id'])}")
    for index, entry in enumerate(inputs):
        _explain_input(entry, f"inputs[{index}]", binary, size)
    outputs = request.get("outputs", [])
    if not isinstance(outputs, list):
        raise BadRequest(f"'outputs' must be an array, not {json_type(outputs)}")
    for index, entry in enumerate(outputs):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise BadRequest(f"outputs[{index}] needs a 'name'")


def described(entry: object, where: str, size: int) -> tuple[str, str, list[int]]:
    """The place with its name, the datatype and the shape of one of the inputs of a body of `size` bytes. Raises BadRequest."""
    if not isinstance(entry, dict):
        raise BadRequest(f"{where} must be an object, not {json_type(entry)}")
    name = entry.get("name")
    if not isinstance(name, str):
        raise BadRequest(f"{where} lacks 'name'")
    where = f"{where} '{name[:80]}'"
    datatype = entry.get("datatype")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise BadRequest(
            f"{where}: 'datatype' must be one of {', '.join(sorted(DATATYPES))}, not {str(datatype)[:40]!r}"
        )
    shape = check_shape(entry.get("shape"), size, where, datatype)
    if datatype in BINARY_ONLY and "data" in entry:
        raise BadRequest(f"{where}: {datatype} has no JSON form; send it in the binary tensor extension")
    return where, datatype, shape


def _explain_input(entry: object, where: str, binary: bool, size: int) -> None:
    # Without tensors behind it the JSON is all there is; a part of it alone says nothing of the whole body's size.
    where, datatype, shape = described(entry, where, size if not binary else 2**63)
    assert isinstance(entry, dict)
    if "data" not in entry:
        parameters = entry.get("parameters") or {}
        if not binary or not isinstance(parameters, dict) or "binary_data_size" not in parameters:
            raise BadRequest(f"{where} has no 'data' and no binary part")
        given = parameters["binary_data_size"]
        if type(given) is not int or given < 0:
            raise BadRequest(f"{where}: 'binary_data_size' must be a number of bytes, not {given!r}")
        return
    _explain_data(entry["data"], datatype, shape, where)


def _explain_data(data: object, datatype: str, shape: list[int], where: str) -> None:
    if not isinstance(data, list):
        raise BadRequest(f"{where}: 'data' must be an array, not {json_type(data)}")
    holds = HOLDS.get(datatype, {int, bool})
    count = 0
    for items, kinds in lists(data):
        count += len(items) if list not in kinds else sum(type(item) is not list for item in items)
        if wrong := kinds - holds - {list}:
            bad = next(item for item in items if type(item) in wrong)
            raise BadRequest(f"{where}: an element is {json_type(bad)}, which {datatype} does not hold")
    if count != prod(shape):
        raise wrong_count(where, shape, count)


def wrong_count(where: str, shape: list[int], count: int | str) -> BadRequest:
    return BadRequest(f"{where}: shape {str(shape)[:80]} holds {prod(shape)} elements but 'data' has {count}")
