"""Large JSON as binary tensors: the same numbers, the same refusals, and nothing that cannot be one goes that way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import BadRequest, RequestError, Unsupported
from serving.protocol import v2


def request(**entry: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5], **entry}]}


def converted(value: object) -> v2.Binary | None:
    return v2.JsonTensors().to_binary(value if isinstance(value, bytes) else json.dumps(value).encode())


DTYPES = {
    "FP32": "<f4", "FP64": "<f8", "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
}  # fmt: skip


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("is_nested", [False, True])
def test_numbers_become_the_bytes_that_numpy_makes_of_them(datatype: str, is_nested: bool) -> None:
    low, high = v2.INTEGER_RANGES.get(datatype, (-3.25e38, 3.25e38))
    numbers = [low, high, 0, 1, 7, 100]
    data = [numbers[:3], numbers[3:]] if is_nested else numbers
    binary = converted(request(datatype=datatype, shape=[2, 3], data=data))
    assert binary is not None
    assert binary.tensors == [np.array(numbers, DTYPES[datatype]).tobytes()]
    [entry] = orjson.loads(binary.head)["inputs"]
    assert entry == {
        "name": "x",
        "shape": [2, 3],
        "datatype": datatype,
        "parameters": {"binary_data_size": len(binary.tensors[0])},
    }


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=20
    )
)
def test_fp32_is_rounded_once_from_double(numbers: list[float]) -> None:
    binary = converted(request(shape=[len(numbers)], data=numbers))
    assert binary is not None
    with np.errstate(over="ignore"):
        assert binary.tensors == [np.array(numbers, np.float64).astype(np.float32).tobytes()]


def test_everything_else_of_the_request_is_kept() -> None:
    body = {
        "id": "é",
        "parameters": {"timeout": 9, "mine": [1]},
        **request(parameters={"mine": 2}),
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        "other": {"a": None},
    }
    body["inputs"].append({"name": "t", "shape": [1], "datatype": "BYTES", "data": ["ü"]})
    binary = converted(body)
    assert binary is not None
    assert binary.timeout_us == 9
    assert len(binary.tensors) == 1
    sent = orjson.loads(binary.head)
    assert sent["inputs"][0]["parameters"] == {"mine": 2, "binary_data_size": 8}
    assert sent["inputs"][1] == body["inputs"][1]
    assert {k: v for k, v in sent.items() if k != "inputs"} == {k: v for k, v in body.items() if k != "inputs"}


@pytest.mark.parametrize(
    "stays",
    [
        b"",
        b"no",
        b"[]",
        b"{}",
        b'{"inputs":3}',
        b'{"inputs":[3]}',
        b'{"inputs":[]}',
        b'\xef\xbb\xbf{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"inputs":[]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1],"data":[2]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"id":"\xff"}',
        request(data=[True, 1]),
        request(data=["1", 2]),
        request(data=[None, 2]),
        request(data=3),
        request(data=[1e400, 2]),
        request(datatype="INT32", data=[1.0, 2]),
        request(datatype="UINT8", data=[-1, 2]),
        request(datatype="UINT64", data=[2**64, 2]),
        request(datatype="BYTES", data=["a", "b"]),
        request(datatype="BOOL", data=[True, False]),
        request(datatype="FP16"),
        request(datatype=["FP32"]),
        request(parameters={"binary_data_size": 8}),
        {"inputs": request()["inputs"] * 300},
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + b"[" * 3000 + b"]" * 3000 + b"}]}",
    ],
)
def test_what_is_no_tensor_of_numbers_or_has_to_be_explained_stays_json(stays: object) -> None:
    assert converted(stays) is None


@pytest.mark.parametrize(
    ("bad", "kind", "said"),
    [
        (request(data=[1]), BadRequest, "inputs[0] 'x': shape [1, 2] holds 2 elements but 'data' has 1"),
        (request(data=[[1], [2, [3]]]), BadRequest, "'data' has 3"),
        (request(shape=[2**32 + 1, 4]), BadRequest, "dimension over"),
        (request(shape=[-1, 2]), BadRequest, "0 or more"),
        (request(shape=[9999, 9999]), BadRequest, "more than a body of"),
        (request(shape=[9] * 1_000), BadRequest, "1000 dimensions"),
        (request(shape=[9] * 1_000_000), BadRequest, "more than 65536 values"),
        (request(datatype="UINT8", data=[1, 256]), BadRequest, "256 is outside UINT8's 0…255"),
        (request(datatype="INT16", data=[-(2**15) - 1, 0]), BadRequest, "outside INT16"),
        (request(parameters={"shared_memory_region": "r"}), BadRequest, "shared memory"),
        (request(parameters=[1]), BadRequest, "must be an object"),
        ({**request(), "parameters": {"sequence_id": 1}}, Unsupported, "sequence"),
        ({**request(), "outputs": [{"name": "y", "parameters": {"triton_x": 1}}]}, BadRequest, "outputs[0].parameters"),
    ],
)
def test_what_must_not_reach_triton_is_refused_on_this_way_too(bad: object, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as error:
        converted(bad)
    assert said in str(error.value)


def test_after_a_refusal_that_somebody_still_holds_the_next_request_is_converted() -> None:
    """A parser serves nobody while anything of its last document is alive, and an error holds the frames that it passed."""
    tensors = v2.JsonTensors()
    with pytest.raises(BadRequest) as held:
        tensors.to_binary(json.dumps(request(data=[1])).encode())
    assert tensors.to_binary(json.dumps(request()).encode()) is not None
    assert held.value


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False), st.lists, max_leaves=12)


@given(VALUES, st.sampled_from([*DTYPES, "BOOL", "BYTES"]), st.lists(st.integers(-1, 5), max_size=3))
def test_what_is_converted_would_have_been_in_order_as_json(data: object, datatype: str, shape: list[int]) -> None:
    body = json.dumps(request(data=data, datatype=datatype, shape=shape)).encode()
    try:
        binary = v2.JsonTensors().to_binary(body)
    except RequestError:
        binary = None
    if binary is not None:
        v2.check_head(body)
        assert v2.explain(body, binary=False) is None
