"""Requests that cost little to send and much to read: refused by what their bytes hold, before objects are made of them and Triton is asked.

`unbatched.any` takes any number of rows, so that nothing is refused by what its inputs can hold; `digits` takes 32 rows of 64 numbers.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serving.protocol import budget
from tests.gateway.conftest import SAMPLE, Reply, Running

MIB = 2**20
SIZE = 24 * MIB  # unpacked
MODEL = "unbatched.any"
ENTRY = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
SMALL = json.dumps({"inputs": [ENTRY]}).encode()
TEXTS = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"%b","data":['


def repeated(before: bytes, one: bytes, after: bytes) -> bytes:
    return before + one * (SIZE // len(one)) + after


def peak_bytes(running: Running) -> int:
    """The most memory that the gateway ever had."""
    status = Path(f"/proc/{running.program.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


# Each is made where it is sent: together they are 360 MB.
LARGE = {
    "objects that mean nothing": partial(repeated, SMALL[:-1] + b',"outputs":[', b"{},", b"{}]}"),
    "objects alone": partial(repeated, b"[", b"{},", b"{}]"),
    "one key again and again": partial(repeated, SMALL[:-1], b',"a":1', b"}"),
    "lists as data": partial(repeated, TEXTS % b"FP32", b"[],", b"[]]}]}"),
    "lists as truth values": partial(repeated, TEXTS % b"BOOL", b"[],", b"[]]}]}"),
    "truth values": partial(repeated, TEXTS % b"BOOL", b"true,", b"true]}]}"),
    "texts": partial(repeated, TEXTS % b"BYTES", b'"",', b'""]}]}'),
    "numbers for four": partial(repeated, TEXTS % b"FP32", b"1,", b"1]}]}"),
    "dimensions": partial(repeated, b'{"inputs":[{"name":"x","datatype":"FP32","data":[],"shape":[1', b",1", b"]}]}"),
    "numbers as outputs": partial(repeated, SMALL[:-1] + b',"outputs":[', b"1,", b"1]}"),
    "numbers as an id": partial(repeated, SMALL[:-1] + b',"id":[', b"1,", b"1]}"),
    "white space": partial(repeated, b"{", b" ", b"}"),
    "lines": partial(repeated, SMALL[:-1], b"\r\n", b"}"),
    "tabs around a text": partial(repeated, SMALL[:-1] + b',"id":"' + b" a" * MIB + b'"', b"\t", b"}"),
    "lists in lists": partial(repeated, SMALL[:-1] + b',"id":[', b"[[1],[1]],", b"1]}"),
}


@pytest.fixture
def unasked(gateway: Running) -> Iterator[Running]:
    """The gateway's memory does not grow by more than three times what was unpacked, and the next request is answered."""
    before = peak_bytes(gateway)
    yield gateway
    assert peak_bytes(gateway) - before < 3 * SIZE
    assert gateway.infer(SMALL, MODEL).status == 200


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("way", ["JSON", "head of binary"])
def test_what_unpacks_to_millions_of_values_is_refused_before_they_are(unasked: Running, name: str, way: str) -> None:
    body = LARGE[name]()
    headers = {"Content-Encoding": "gzip"}
    if way == "head of binary":
        headers["Inference-Header-Content-Length"] = str(len(body))
    is_refused(unasked.infer(gzip.compress(body, 1), MODEL, headers))


def is_refused(reply: Reply) -> None:
    words = {400: "bad_request", 413: "too_large"}
    assert reply.headers["Tandem-Error"] == words.get(reply.status), reply.body[:200]
    assert "Tandem-Pool" not in reply.headers  # which says what worked on it, also where that failed


def many(**more: Any) -> bytes:
    return json.dumps({"inputs": [ENTRY], **more}).encode()


def parameters(number: int, name: str = "p") -> dict[str, int]:
    return {f"{name}{index}": index for index in range(number)}


COUNTS: dict[str, Callable[[], bytes]] = {
    "parameters": lambda: many(parameters=parameters(65)),
    "16,000 parameters": lambda: many(parameters=parameters(16_000)),
    "parameters of an input": lambda: many(inputs=[{**ENTRY, "parameters": parameters(65)}]),
    "parameters of an output": lambda: many(outputs=[{"name": "y", "parameters": parameters(65)}]),
    "parameters over all levels": lambda: many(
        parameters=parameters(22),
        inputs=[{**ENTRY, "parameters": parameters(22)}],
        outputs=[{"name": "y", "parameters": parameters(22)}],
    ),
    "inputs": lambda: many(inputs=[{**ENTRY, "name": f"x{index}"} for index in range(1025)]),
    "50,000 inputs": lambda: many(inputs=[{**ENTRY, "name": f"x{index}"} for index in range(50_000)]),
    "outputs": lambda: many(outputs=[{"name": f"y{index}"} for index in range(1025)]),
    "dimensions": lambda: many(inputs=[{**ENTRY, "shape": [1] * 65}]),
    "members": lambda: json.dumps({"inputs": [ENTRY], **parameters(100_000)}).encode(),
}


@pytest.mark.parametrize("name", COUNTS)
def test_more_than_any_model_needs_is_refused_with_the_number(unasked: Running, name: str) -> None:
    body = COUNTS[name]()
    is_refused(unasked.infer(body, MODEL))
    is_refused(unasked.infer(body, MODEL, {"Inference-Header-Content-Length": str(len(body))}))


def test_as_much_as_may_be_reaches_triton(gateway: Running) -> None:
    rows = 40_000
    for data, indent in (
        ([[1, 2, 3, 4]] * rows, None),
        ([1, 2, 3, 4] * rows, 1),
        ([[[1], [2], [3], [4]]] * rows, 8),
    ):
        nested = {**ENTRY, "shape": [rows, 4], "data": data}
        reply = gateway.infer(json.dumps({"inputs": [nested]}, indent=indent).encode(), MODEL)
        assert reply.status == 200, reply.body[:200]


def test_a_body_that_no_request_to_the_model_can_have_is_not_read(gateway: Running) -> None:
    largest = budget.most_bytes(32 * 64)
    for size, status in ((largest, 200), (largest + 1, 413)):
        reply = gateway.infer(SAMPLE + b" " * (size - len(SAMPLE)))
        assert (reply.status, "Tandem-Pool" in reply.headers) == (status, status == 200), reply.body[:200]
        packed = gzip.compress(SAMPLE + b" " * (size - len(SAMPLE)), 1)
        assert gateway.infer(packed, headers={"Content-Encoding": "gzip"}).status == status
