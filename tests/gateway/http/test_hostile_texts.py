"""What real Triton says of wrong requests, as clients see it: no path, process, traceback or variant; and nobody reaches shared memory."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.gateway.conftest import SAMPLE, Running

pytestmark = pytest.mark.triton
INTERNAL = re.compile(
    r"/(?:root|home|tmp|usr|opt|var|work)\b|\.py\b|\.so\b|\.cc\b|Traceback|site-packages|model_repo|[Ss]tub|shm|\bpid\b|127\.0\.0\.1|localhost"
    r"|-fp32|-int8|-fp16|0x[0-9a-f]{6,}"
)
DIGITS = json.loads(SAMPLE)


def body(*entries: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(entries), **more}).encode()


def x(**change: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **change}


def digits(**change: Any) -> bytes:
    return body({**DIGITS["inputs"][0], **change})


WRONG: list[tuple[str, str, bytes]] = [
    ("wrong dimensions", "digits", digits(shape=[1, 3], data=[1, 2, 3])),
    ("too many dimensions", "digits", digits(shape=[1] * 12 + [1])),
    ("another type", "digits", digits(datatype="FP64")),
    ("a type that is none", "digits", digits(datatype="FLOAT")),
    ("another input", "digits", digits(name="nobody")),
    ("no input", "digits", body()),
    ("an input twice", "double.any", body(x(), x())),
    ("an input too many", "double.any", body(x(), x(name="y"))),
    ("an output that is none", "double.any", body(x(), outputs=[{"name": "nobody"}])),
    ("an output twice", "double.any", body(x(), outputs=[{"name": "y"}, {"name": "y"}])),
    ("a batch too large", "double.any", body(x(shape=[17, 4], data=[1] * 68))),
    ("no batch", "double.any", body(x(shape=[4]))),
    ("an empty shape", "double.any", body(x(shape=[]))),
    ("a missing input", "optional.any", body(x(name="k"))),
    ("a model that fails", "ragged.any", body(x(shape=[1, 3], data=[1, 2, 3]))),
    ("a model that answers too few rows", "collapsing.any", body(x(shape=[2, 4], data=[1] * 8))),
    ("two dimensions that do not fit", "unbatched.any", body(x(shape=[2, 2, 1]))),
    ("a priority", "double.any", body(x(), parameters={"priority": 7})),
    ("classes of many", "double.any", body(x(), outputs=[{"name": "y", "parameters": {"classification": 2**31 - 1}}])),
    ("texts for numbers", "double.any", body(x(data=["a", "b", "c", "d"]))),
    ("an id that is none", "double.any", body(x(), id=5)),
    ("another version", "digits/versions/99", SAMPLE),
    ("another model", "nobody", SAMPLE),
]


@pytest.mark.protocol("hostile input", "Triton's texts without paths, processes, tracebacks and variants", "supported")
@pytest.mark.parametrize(("model", "wrong"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_no_message_tells_what_is_inside(gateway: Running, model: str, wrong: bytes) -> None:
    reply = gateway.infer(wrong, model)
    text = reply.body.decode()
    assert reply.status in (200, 400, 404, 500), text
    assert INTERNAL.search(text) is None, text
    if reply.status == 500:  # the model's own failure alone
        assert model in ("ragged.any", "collapsing.any")


def test_binary_requests_that_lie_tell_nothing_either(gateway: Running) -> None:
    for size, blob in ((16, 8), (8, 16), (0, 16), (16, 0), (2**31 - 1, 16)):
        entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": size}}
        head = body(entry)
        reply = gateway.infer(head + bytes(blob), "double.any", {"Inference-Header-Content-Length": str(len(head))})
        assert reply.status == 400, (size, blob, reply.body)
        assert INTERNAL.search(reply.body.decode()) is None, reply.body


SPELLINGS = [
    '"shared_memory_region"',
    '"shared_memory_byte_size"',
    '"shared_memory_offset"',
    '"Shared_Memory_Region"',
    '"SHARED_MEMORY_REGION"',
    '"\\u0073hared_memory_region"',
    '"shared\\u005Fmemory_region"',
    '"\\u0053HARED_MEMORY_region"',
    '"shared_memory_anything"',
]
PLACES = [
    '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4],"parameters":{%s:"r"}}]}',
    '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","parameters":{%s:"r"}}]}',
    '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","parameters":{"a":1,%s:"r","b":2}}]}',
    '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}],"outputs":[{"name":"y","parameters":{%s:"r"}}]}',
    '{"parameters":{%s:"r"},"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}',
]
TWICE = [
    '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","parameters":{%s:"r"},"parameters":{}}]}',
    '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","parameters":{%s:"r"}}],"inputs":[]}',
    '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4],"parameters":{"binary_data_size":16,%s:"r"}}]}',
]


@pytest.mark.protocol(
    "hostile input", "shared memory in any spelling, over HTTP", "refused: tensors are sent in the request", item=27
)
@pytest.mark.parametrize("place", [*PLACES, *TWICE])
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_shared_memory_is_400_in_any_spelling_and_place(gateway: Running, place: str, is_large: bool) -> None:
    """Large bodies take another way, on which they become binary."""
    for spelling in SPELLINGS:
        text = (place % spelling).encode() + b" " * (200_000 if is_large else 0)
        reply = gateway.infer(text, "double.any")
        assert reply.status == 400, text[:200]
        assert "Unable to find" not in reply.body.decode(), "Triton looked for the region"
        if place in PLACES:
            assert "shared memory" in reply.json()["error"], text[:200]


def test_shared_memory_is_400_in_binary_requests_too(gateway: Running) -> None:
    for spelling in SPELLINGS:
        head = (PLACES[2] % spelling).replace('"a":1', '"binary_data_size":16').encode()
        reply = gateway.infer(head + bytes(16), "double.any", {"Inference-Header-Content-Length": str(len(head))})
        assert reply.status == 400
        assert "shared memory" in reply.json()["error"]
