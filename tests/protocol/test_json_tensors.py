"""Large JSON as binary tensors: the same numbers, the same refusals, and nothing that cannot be one goes that way."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import BadRequest, RequestError, TooLarge, Unsupported
from serving.protocol import json_arrays, v2


def request(**entry: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5], **entry}]}


def converted(value: object, most_bytes: int = 2**26) -> tuple[v2.Binary, list[bytes]]:
    """And its tensors, each in one."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    binary = v2.to_binary(body, len(body), most_bytes)
    return binary, [b"".join(tensor) for tensor in binary.tensors if not isinstance(tensor, int)]


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
    binary, tensors = converted(request(datatype=datatype, shape=[2, 3], data=data))
    assert tensors == [np.array(numbers, DTYPES[datatype]).tobytes()]
    [entry] = orjson.loads(binary.head)["inputs"]
    assert entry == {
        "name": "x",
        "shape": [2, 3],
        "datatype": datatype,
        "parameters": {"binary_data_size": len(tensors[0])},
    }


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=20
    )
)
def test_fp32_is_rounded_once_from_double(numbers: list[float]) -> None:
    _, tensors = converted(request(shape=[len(numbers)], data=numbers))
    with np.errstate(over="ignore"):
        assert tensors == [np.array(numbers, np.float64).astype(np.float32).tobytes()]


def test_everything_else_of_the_request_is_kept() -> None:
    body = {
        "id": "é",
        "parameters": {"timeout": 9, "mine": [1]},
        **request(),
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        "other": {"a": None},
    }
    body["inputs"].append({"name": "t", "shape": [1], "datatype": "BYTES", "data": ["ü"]})
    binary, tensors = converted(body)
    assert binary.checked.timeout_us == 9
    assert tensors == [np.array([1, 2.5], "<f4").tobytes(), b"\2\0\0\0" + "ü".encode()]
    sent = orjson.loads(binary.head)
    assert [entry["parameters"] for entry in sent["inputs"]] == [{"binary_data_size": 8}, {"binary_data_size": 6}]
    assert {k: v for k, v in sent.items() if k != "inputs"} == {k: v for k, v in body.items() if k != "inputs"}


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ('["a","ü\\n","\\u00e9"]', ["a", "ü\n", "é"]),
        (' [ "a" , [ "b\\"]" ] , ["[,"] ] ', ["a", 'b"]', "[,"]),
        ("[]", []),
        ('["","\\\\"]', ["", "\\"]),
    ],
)
@pytest.mark.parametrize("piece", [4, 5, 7, 2**17])
def test_texts_become_their_bytes_behind_their_lengths(
    monkeypatch: pytest.MonkeyPatch, elements: str, expected: list[str], piece: int
) -> None:
    monkeypatch.setattr(json_arrays, "PIECE_BYTES", piece)
    body = f'{{"inputs":[{{"data":{elements},"name":"t","shape":[{len(expected)}],"datatype":"BYTES"}}]}}'
    _, tensors = converted(body.encode())
    assert tensors == [b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in expected)]


def test_truth_values_become_bytes() -> None:
    _, tensors = converted(request(datatype="BOOL", shape=[4], data=[True, [False], 1, 0]))
    assert tensors == [b"\1\0\1\0"]


@pytest.mark.parametrize("text", ["18446744073709551616", "-9223372036854775809", "100000000000000000000"])
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_floats_may_be_written_as_whole_numbers_of_any_size(text: str, datatype: str) -> None:
    """JavaScript and Go write 1e20 so."""
    _, tensors = converted(
        b'{"inputs":[{"name":"x","shape":[2],"datatype":"%b","data":[%b,1.5]}]}' % (datatype.encode(), text.encode())
    )
    assert tensors == [np.array([float(text), 1.5], DTYPES[datatype]).tobytes()]


@pytest.mark.parametrize("datatype", [*DTYPES, "BOOL", "BYTES"])
@pytest.mark.parametrize(("shape", "data"), [([0], []), ([2, 0], [[], []]), ([0, 3], [])])
def test_tensors_may_have_no_elements(datatype: str, shape: list[int], data: list[Any]) -> None:
    assert converted(request(datatype=datatype, shape=shape, data=data))[1] == [b""]


def test_an_array_may_stand_far_from_its_key() -> None:
    assert converted(ENTRY % (b"\n" + b" " * 200 + b"[1]"))[1] == [np.array([1], "<f4").tobytes()]


def test_tensors_that_came_in_binary_keep_their_place() -> None:
    there = {"name": "b", "shape": [1], "datatype": "FP16", "parameters": {"binary_data_size": 2}}
    body = {"inputs": [there, *request()["inputs"], there | {"name": "c"}]}
    binary, tensors = converted(b" \n" + json.dumps(body).encode() + b" " * 100)
    assert [tensor if isinstance(tensor, int) else "made" for tensor in binary.tensors] == [2, "made", 2]
    assert tensors == [np.array([1, 2.5], "<f4").tobytes()]


ENTRY = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":%b}]}'


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"no",
        b"[]",
        b"{}",
        b'{"inputs":3}',
        b'{"inputs":[3]}',
        b"\xef\xbb\xbf" + ENTRY % b"[1]",
        ENTRY % b"[NaN]",
        ENTRY % b"[1" + b"0" * 400 + b"]",
        ENTRY % b"[1]]",
        ENTRY % b"[1,]",
        ENTRY % b"[,1]",
        ENTRY % b"[[1]",
        ENTRY % (b" " * 5000 + b"[1]"),
        (ENTRY % b"[1]").replace(b'"data"', b'"d\\u0061ta"'),
        (ENTRY % b"[-false]").replace(b"FP32", b"BOOL"),
        (ENTRY % b"[[]").replace(b"[1]", b"[0]"),
        ENTRY % b"[1",
        ENTRY % b'["a"',
        ENTRY % b'["a',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"inputs":[]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1],"data":[2]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"id":"\xff"}',
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"data":[1]}',
        request(data=["1", 2]),
        request(data=[None, 2]),
        request(data=[{"a": [1]}, 2]),
        request(data=3),
        request(datatype="INT32", data=[1.0, 2]),
        request(datatype="UINT8", data=[-1, 2]),
        request(datatype="UINT64", data=[2**64, 2]),
        request(datatype="BYTES", data=["a", 1]),
        request(datatype="BYTES", data=["a"]),
        request(datatype="BYTES", data=["a", "b", "c"]),
        request(datatype="BOOL", data=[True, 2]),
        request(datatype="BOOL", data=[True, None]),
        request(datatype="FP16"),
        request(datatype=["FP32"]),
        request(parameters={"binary_data_size": 8}),
        {"inputs": request()["inputs"] * 300},
        ENTRY % (b"[" * 3000 + b"]" * 3000),
        ENTRY % (b"[" * 200 + b"1" + b"]" * 200),
    ],
)
@pytest.mark.parametrize("piece", [3, 2**17])
def test_what_is_no_request_is_the_clients_mistake(monkeypatch: pytest.MonkeyPatch, bad: object, piece: int) -> None:
    monkeypatch.setattr(json_arrays, "PIECE_BYTES", piece)
    with pytest.raises(BadRequest):
        converted(bad)


def test_tensors_of_more_bytes_than_a_body_may_have_are_not_made() -> None:
    with pytest.raises(TooLarge, match="more than 15 bytes"):
        converted(request(datatype="FP64"), 15)


@pytest.mark.parametrize(
    ("bad", "kind", "said"),
    [
        (request(data=[1]), BadRequest, "inputs[0] 'x': shape [1, 2] holds 2 elements but 'data' has 1"),
        (request(data=[[1], [2, [3]]]), BadRequest, "'data' has 3"),
        (request(shape=[2**32 + 1, 4]), BadRequest, "dimension over"),
        (request(shape=[-1, 2]), BadRequest, "0 or more"),
        (request(shape=[9999, 9999]), BadRequest, "more than a body of"),
        (request(shape=[9] * 1_000), BadRequest, "1000 dimensions"),
        (request(shape=[9] * 300_000), BadRequest, "more than 49152 JSON values"),
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


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(alphabet='a"[],\\{}:é', max_size=4),
    st.lists,
    max_leaves=12,
)


@given(
    VALUES,
    st.sampled_from([*DTYPES, "BOOL", "BYTES"]),
    st.lists(st.integers(-1, 5), max_size=3),
    st.sampled_from([3, 8, 2**17]),
    st.sampled_from([None, 1]),
)
def test_what_is_converted_would_have_been_in_order_as_json(
    data: object, datatype: str, shape: list[int], piece: int, indent: int | None
) -> None:
    body = json.dumps(request(data=data, datatype=datatype, shape=shape), indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(RequestError):
        patch.setattr(json_arrays, "PIECE_BYTES", piece)
        converted(body)
        v2.check_head(body)
        assert v2.explain(body, binary=False) is None


@given(st.lists(st.integers(-128, 127), max_size=20), st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_wherever_pieces_end_the_numbers_are_the_same(
    numbers: list[int], piece: int, is_nested: bool, indent: int | None
) -> None:
    data: Any = [[[number]] for number in numbers] if is_nested else numbers
    body = json.dumps(request(datatype="INT8", shape=[len(numbers)], data=data), indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "PIECE_BYTES", piece)
        assert b"".join(converted(body)[1]) == np.array(numbers, "i1").tobytes()
