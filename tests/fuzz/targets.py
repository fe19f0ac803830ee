"""What fuzzers call: each function takes bytes, does with them what the gateway does with a client's, and checks what must hold of it.

A refusal is fine; any other exception is a finding, and so is an answer that an independent reading (Python's json module, NumPy) does not
share. Rule: a target needs nothing but its bytes, so that a finding is one file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any
from urllib.parse import unquote

import numpy as np
import orjson

from serving import errors
from serving.gateway.http import head as http_head
from serving.gateway.request import request_headers
from serving.preprocessing.containers import BadImage
from serving.protocol import classify, grpc_v2, openai, protobuf_wire, v2

Target = Callable[[bytes], None]
MAX_TEXTS = MAX_IMAGES = 8
MAX_TOKENS = 100
GOOD = "exit code 0"  # the last line of a fuzzer that found nothing
FEW_ELEMENTS = 10**6  # for which Triton can make room whatever the body is


class Finding(AssertionError):
    """Something does not hold."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise Finding(what)


class Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, equal ones too."""


def read_independently(data: bytes) -> Any:
    """None where it is no JSON. Equal keys are all there."""
    with suppress(ValueError, RecursionError):
        return json.loads(data.decode(), object_pairs_hook=Pairs)
    return None


def every(pairs: object, key: str) -> list[Any]:
    """Every value of this key of an object."""
    return [value for name, value in pairs if name == key] if isinstance(pairs, Pairs) else []


def has_twice(value: object) -> bool:
    """Whether an object in it has a key twice."""
    if isinstance(value, Pairs):
        return len({key for key, _ in value}) < len(value) or any(has_twice(one) for _, one in value)
    return isinstance(value, list) and any(map(has_twice, value))


def entries_of(request: object, key: str) -> list[Any]:
    return [entry for value in every(request, key) if isinstance(value, list) for entry in value]


def v2_head(data: bytes) -> None:
    """The JSON part of an inference, in a body that has a few bytes more than it."""
    size = len(data) + 64
    v2.num_rows(data)
    v2.rows_and_length(data)
    try:
        checked = v2.check_head(data, size)
    except errors.RequestError:
        return
    request = read_independently(data)
    require(not data or request is not None, "what is no JSON is sent on")
    require(not has_twice(request), "one key stands twice in an object")
    parameters = every(request, "parameters")
    for entry in entries_of(request, "inputs") + entries_of(request, "outputs"):
        parameters += every(entry, "parameters")
    for name in (name for one in parameters if isinstance(one, Pairs) for name, _ in one):
        require(not name.lower().startswith("shared_memory"), f"Triton sees the parameter {name}")
    for entry in entries_of(request, "inputs"):
        for shape in every(entry, "shape"):
            if isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape):
                room = max(size, FEW_ELEMENTS)
                require(prod(shape) <= room, f"Triton makes room for {prod(shape)} elements")
    for own in every(request, "parameters"):
        for timeout in every(own, "timeout"):
            require((timeout or None) == checked.timeout_us, f"a time-out of {timeout} is not counted")


def v2_explain(data: bytes) -> None:
    for binary in (False, True):
        error = v2.explain(data, binary=binary)
        require(error is None or str(error), "a mistake without words")
    with suppress(errors.RequestError):
        v2.require_json_outputs(v2.check_head(data).request, {"y", "z"})


def v2_json_tensors(data: bytes) -> None:
    """Large JSON that becomes binary: the numbers are those that were sent, and nothing passes that `check_head` refuses."""
    try:
        binary = v2.to_binary(data, len(data), 16 * max(1, len(data)))
    except errors.RequestError:
        return
    request = read_independently(data)
    require(request is not None, "what is no JSON is sent on")
    require(not has_twice(request), "one key stands twice in an object")
    require(v2.check_head(data).timeout_us == binary.checked.timeout_us, "the time-out is another in binary")
    inputs = orjson.loads(data)["inputs"]
    described = orjson.loads(binary.head)["inputs"]
    tensors = iter(binary.tensors)
    for said, made in zip(inputs, described, strict=True):
        tensor = next(tensors)
        if isinstance(tensor, int):
            require("data" not in said, "data are taken for a binary tensor")
            continue
        blob = b"".join(tensor)
        require(len(blob) == made["parameters"]["binary_data_size"], "a size is wrong")
        if said["datatype"] == "BYTES":
            texts = [text.encode() for text in _flat(said["data"])]
            require(blob == b"".join(len(text).to_bytes(4, "little") + text for text in texts), "the texts are others")
            continue
        kind = {"BOOL": "|b1", "FP32": "<f4", "FP64": "<f8"}.get(said["datatype"]) or _integer(said["datatype"])
        numbers = list(_flat(said["data"]))
        with np.errstate(over="ignore"):
            wide = np.array(numbers, np.float64 if kind[-2] == "f" else object)
            require(wide.astype(kind).tobytes() == blob, "the numbers are others")
    require(next(tensors, None) is None, "a tensor too many")


def _integer(datatype: str) -> str:
    return f"<{'u' if datatype.startswith('U') else 'i'}{int(datatype.lstrip('UINT')) // 8}"


def _flat(data: list[Any]) -> list[Any]:
    found: list[Any] = []
    waiting: list[Any] = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(reversed(item))
        else:
            found.append(item)
    return found


def openai_embeddings(data: bytes) -> None:
    try:
        request = openai.read_embeddings(data, MAX_TEXTS, MAX_TOKENS)
    except errors.RequestError as error:
        openai.error_body(error)
        return
    many = request.texts if request.texts is not None else request.ids
    require(many is not None and 1 <= len(many) <= MAX_TEXTS and all(many), "it holds no text, or too many")
    require((request.texts is None) != (request.ids is None), "texts and tokens at once")
    for text in request.texts or []:
        require(isinstance(text, str), "a text is none")
    for ids in request.ids or []:
        require(all(type(token) is int for token in ids), "a token is no number")


def classify_body(data: bytes) -> None:
    """The first line is the Content-Type, the second the query, the rest the body."""
    kind, _, rest = data.partition(b"\n")
    query, _, body = rest.partition(b"\n")
    try:
        request = classify.read(body, kind or None, query, MAX_IMAGES)
    except errors.RequestError as error:
        require(str(error).isprintable() or "\\" in repr(str(error)), "an error without words")
        return
    require(1 <= len(request.images) <= MAX_IMAGES, "it holds no image, or too many")
    require(request.top_k is None or request.top_k >= 1, "top_k is none")
    for image in request.images:
        with suppress(BadImage):
            require(classify.file_of(image), "an image of no bytes")


def grpc_request(data: bytes) -> None:
    """A ModelInferRequest as it becomes Triton's."""
    with suppress(protobuf_wire.Malformed):
        rest, taken = protobuf_wire.take_out(data, (5, 7))
        size = len(rest) + sum(len(value) for values in taken.values() for value in values)
        require(size <= len(data), "there is more than there was")
    try:
        envelope = grpc_v2.opened(data)
        head, blobs = grpc_v2.translated(envelope)
    except errors.RequestError:
        return
    require(envelope.size == len(data), "the size is another")
    said = orjson.loads(head)
    sizes = [entry["parameters"]["binary_data_size"] for entry in said["inputs"]]
    require(sizes == [len(blob) for blob in blobs], "a size is wrong")
    v2_head(head)


def grpc_answer(data: bytes) -> None:
    """Triton's answer as it becomes gRPC's. The first two bytes say where its JSON ends."""
    length = int.from_bytes(data[:2], "little")
    for header_length in (length, None):
        with suppress(errors.Internal):
            grpc_v2.answer(data[2:], header_length, "m")


def http_request_head(data: bytes) -> None:
    """Method, target, version and headers, as the parser hands them over: a line each."""
    first, *lines = data.split(b"\n")
    method, _, rest = first.partition(b" ")
    target, _, version = rest.rpartition(b" ")
    headers = [(name.lower(), value) for name, _, value in (line.partition(b":") for line in lines)]
    try:
        http_head.check(version.decode("latin-1"), method, target, headers)
    except errors.RequestError:
        return
    require([name for name, _ in headers].count(b"host") <= 1, "two hosts")
    path = unquote(target.partition(b"?")[0].decode("ascii"), errors="strict")
    require(path.startswith("/"), "no path")
    require(not {".", ".."} & set(path.split("/")), "a path that leads elsewhere")
    require(unquote(path) == path, "a path that can be decoded twice")


def header_values(data: bytes) -> None:
    """What stands in headers that say something of a request."""
    for read in (
        lambda: request_headers.wait_s(data),
        lambda: request_headers.priority(data, 1),
        lambda: v2.inference_header_length(data, 100),
    ):
        with suppress(errors.RequestError):
            read()


TARGETS: dict[str, Target] = {
    one.__name__: one
    for one in (
        v2_head,
        v2_explain,
        v2_json_tensors,
        openai_embeddings,
        classify_body,
        grpc_request,
        grpc_answer,
        http_request_head,
        header_values,
    )
}
