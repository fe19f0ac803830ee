"""What an answer of Triton's means, and what of its words a client reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from serving import errors
from serving.gateway.fleet.upstream import Answer
from serving.gateway.request import triton_response

HEAD = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}'


def error_of(
    status: int, text: str, head: bytes = HEAD, *, versioned: bool = False, served: str = "m-int8"
) -> errors.RequestError:
    route = SimpleNamespace(name="m", versioned=versioned)
    request: Any = SimpleNamespace(route=route, head=head, header_length=None)
    destination: Any = SimpleNamespace(name=served)
    return triton_response.error_of(Answer(status, None, orjson.dumps({"error": text})), request, destination)


@pytest.mark.protocol(
    "v2 HTTP", "BYTES that are not UTF-8, asked for as JSON", "refused: JSON is UTF-8; ask for binary", item=12
)
@pytest.mark.parametrize("length", [None, 5])
def test_text_that_is_no_utf_8_is_not_passed_on_as_json(length: int | None) -> None:
    body = "{é}".encode() + (b"" if length is None else b"\xff")
    good = Answer(200, None if length is None else 4, body)
    assert triton_response.client_body(good, None) == (body, good.header_length)
    with pytest.raises(errors.BadRequest, match="binary_data: true"):
        triton_response.client_body(Answer(200, length, b"{\xff}  \xff"), None)


@pytest.mark.protocol(
    "v2 HTTP",
    "Triton's words for what went wrong, without paths, request ids and the names of variants",
    "supported",
    item=21,
)
@pytest.mark.parametrize(
    ("status", "text", "kind", "told"),
    [
        (400, "[request id: <id_unknown>] bad input for model 'm-int8'", errors.BadRequest, "bad input for model 'm'"),
        (400, "m-int8 and m-int8_0 and m-int8-x and am-int8", errors.BadRequest, "m and m_0 and m-int8-x and am-int8"),
        (400, "cannot open /srv/models/m-int8/1/model.onnx here", errors.BadRequest, "cannot open … here"),
        (
            500,
            "it broke; At: /opt/x/model.py(12): execute",
            errors.Internal,
            "the model failed on this request: it broke",
        ),
        (
            500,
            "Unable to parse 'priority': attempt to access JSON",
            errors.BadRequest,
            "Unable to parse 'priority': attempt to access JSON",
        ),
        (
            500,
            "failed to parse the request JSON buffer: Invalid value. at 7",
            errors.BadRequest,
            "failed to parse the request JSON buffer: Invalid value. at 7",
        ),
        (501, "not for m-int8", errors.Unsupported, "not for m"),
        (404, "whatever", errors.BadRequest, "whatever"),
    ],
)
def test_whose_fault_it_was_and_what_is_told(
    status: int, text: str, kind: type[errors.RequestError], told: str
) -> None:
    error = error_of(status, text)
    assert (type(error), str(error)) == (kind, told)


def test_a_500_for_a_request_that_is_wrong_is_the_clients_mistake_and_says_where() -> None:
    error = error_of(500, "whatever", HEAD.replace(b"[1],", b"[2],"))
    assert isinstance(error, errors.BadRequest)
    assert "inputs[0] 'x': shape [2] holds 2" in str(error)


def test_a_version_that_is_not_there_is_404() -> None:
    assert isinstance(error_of(404, "unknown", versioned=True), errors.NotFound)


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b'{"error":3}'])
def test_what_is_no_error_of_tritons_gives_no_reason(body: bytes) -> None:
    request: Any = SimpleNamespace(route=SimpleNamespace(name="m", versioned=False), head=HEAD, header_length=None)
    told = triton_response.error_of(Answer(400, None, body), request, SimpleNamespace(name="m"))
    assert str(told).endswith("no reason")  # type: ignore[arg-type]


@pytest.mark.protocol(
    "v2 HTTP",
    "the name that was asked for, also inside binary answers, with Inference-Header-Content-Length anew",
    "supported",
    item=8,
)
def test_the_name_in_an_answer_becomes_the_one_that_was_asked_for() -> None:
    head = b'{"model_name":"m-int8","id":"\\"model_name\\":\\"m-int8\\""}'
    old, new = b'"model_name":"m-int8"', b'"model_name":"m"'
    body, length = triton_response.client_body(Answer(200, len(head), head + b"blob"), (old, new))
    assert length == len(head) - 5
    assert body == head.replace(b'"m-int8",', b'"m",', 1) + b"blob"
    other = b'{"model_name":"other"}'
    assert triton_response.client_body(Answer(200, None, other), (old, b"")) == (other, None)
    assert triton_response.client_body(Answer(200, 2, b"{}" + old), (old, b"")) == (b"{}" + old, 2)


def _json(*outputs: bytes) -> bytes:
    return b'{"model_name":"m-int8","outputs":[%b]}' % b",".join(outputs)


NUMBERS = b'{"name":"y","datatype":"FP32","shape":[1,3],"parameters":{"a":"b"},"data":[0.5,-1e-7,3]}'
WORDS = '{"name":"t","datatype":"BYTES","shape":[2],"data":["NaN] é😀 \\\\\\"data\\\\\\":[","Infinity"]}'.encode()
NOT_A_NUMBER = b'{"name":"n","datatype":"FP64","shape":[1,3],"data":[0.5,NaN,1]}'
INFINITE = b'{"name":"i","datatype":"FP32","shape":[2],"data":[0,-Infinity]}'
OLD, NEW = b'"model_name":"m-int8"', b'"model_name":"m"'
ANSWERS = {
    "numbers and texts": (_json(WORDS, NUMBERS, WORDS), None),
    "NaN": (_json(WORDS, NUMBERS, NOT_A_NUMBER), None),
    "infinity": (_json(INFINITE, WORDS), None),
    "no UTF-8": (_json(WORDS, b'{"name":"t","datatype":"BYTES","shape":[1],"data":["\xc3"]}'), None),
    "cut off in a letter": (_json(WORDS) + b"\xc3", None),
    "binary behind it": (_json(NUMBERS) + b"NaN\xff" + OLD, len(_json(NUMBERS))),
    "no name": (b'{"outputs":[%b]}' % NUMBERS, None),
    "no name in the JSON part": (b"{}" + OLD, 2),
}


@pytest.mark.parametrize("size", [1, 2, 5, 17, 64, 4096])
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("rename", [None, (OLD, NEW)])
def test_a_long_answer_is_what_it_is_in_one_go_however_it_came(
    name: str, size: int, rename: tuple[bytes, bytes] | None
) -> None:
    body, length = ANSWERS[name]

    def outcome(told: Callable[[], tuple[bytes, int | None]]) -> tuple[bytes, int | None] | str:
        try:
            return told()
        except errors.BadRequest as error:
            return str(error)

    def long() -> tuple[bytes, int | None]:
        start, *rest = (body[at : at + size] for at in range(0, len(body), size))
        parts, told = asyncio.run(triton_response.long_client_body(Answer(200, length, start, rest), rename))
        return b"".join(parts), told

    expected = outcome(lambda: triton_response.client_body(Answer(200, length, body), rename))
    assert outcome(long) == expected
    assert isinstance(expected, str) == (name in ("NaN", "infinity", "no UTF-8", "cut off in a letter"))


def test_others_have_their_turn_while_a_long_answer_is_looked_through() -> None:
    num_bytes = 40 * triton_response.IN_ONE_GO_BYTES

    async def run() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(others())
        await triton_response.long_client_body(Answer(200, None, b"a" * num_bytes), (OLD, NEW))
        counting.cancel()
        return turns

    assert asyncio.run(run()) >= 40
