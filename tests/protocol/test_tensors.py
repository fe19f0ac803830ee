"""Arrays of the gateway's own making go to Triton and come back as v2 says."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from serving.errors import Internal
from serving.protocol.tensors import binary_request, float_output


def answer(*outputs: tuple[str, str, list[int], bytes]) -> tuple[bytes, int]:
    entries = [
        {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, kind, shape, data in outputs
    ]
    head = orjson.dumps({"outputs": entries})
    return head + b"".join(data for *_, data in outputs), len(head)


def test_a_request_says_where_each_tensor_lies() -> None:
    first, second = np.arange(6, dtype=np.int64).reshape(2, 3), np.ones((2, 3), np.float32)
    head, chunks = binary_request({"a": first, "b": second}, ["y"])
    assert chunks[0] is head
    assert b"".join(chunks[1:]) == first.tobytes() + second.tobytes()
    request = orjson.loads(head)
    assert [(t["name"], t["datatype"], t["shape"]) for t in request["inputs"]] == [
        ("a", "INT64", [2, 3]),
        ("b", "FP32", [2, 3]),
    ]
    assert [t["parameters"]["binary_data_size"] for t in request["inputs"]] == [48, 24]
    assert request["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]


def test_an_array_that_is_not_in_one_piece_is_sent_in_order() -> None:
    _, chunks = binary_request({"a": np.arange(6, dtype=np.int32).reshape(2, 3).T}, ["y"])
    assert np.frombuffer(chunks[1], np.int32).tolist() == [0, 3, 1, 4, 2, 5]


def test_an_output_is_found_among_others() -> None:
    y = np.arange(4, dtype=np.float32)
    body, length = answer(("x", "INT64", [1], bytes(8)), ("y", "FP32", [2, 2], y.tobytes()))
    np.testing.assert_array_equal(float_output(body, length, "y"), y.reshape(2, 2))


@pytest.mark.parametrize(
    "broken",
    [
        answer(("x", "FP32", [1], bytes(4))),
        answer(("y", "FP16", [1], bytes(2))),
        answer(("y", "FP32", [3], bytes(8))),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1]}]}', None),
        (b'{"error":"x"}', None),
        (b"", None),
        (b"[]", None),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[9],"parameters":{"binary_data_size":36}}]}', None),
    ],
)
def test_an_answer_without_the_output_is_the_models_fault(broken: tuple[bytes, int | None]) -> None:
    with pytest.raises(Internal, match="'y' of FP32"):
        float_output(*broken, "y")
