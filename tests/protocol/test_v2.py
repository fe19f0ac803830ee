"""What is refused before Triton sees it, and what is explained once Triton gave up."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import BadRequest, RequestError, Unsupported
from serving.protocol import v2
from serving.protocol.budget import PARAMETERS


def request(**entry: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **entry}]}


def body(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "good",
    [
        request(),
        request(data=[[1.5, 2.5]]),
        request(datatype="INT8", data=[-128, 127]),
        request(datatype="UINT64", data=[0, 2**64 - 1]),
        request(datatype="INT64", data=[-(2**63), 2**63 - 1]),
        {**request(), "parameters": {"binary_data_output": True}, "id": "7"},
        {**request(), "parameters": {"mine": 3}, "outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
        {**request(), "parameters": {"timeout": 0}},
        {**request(), "parameters": None},
        request(name="a parameters INT \\u0041"),
    ],
)
def test_ordinary_requests_pass(good: object) -> None:
    assert v2.check_head(body(good)).timeout_us is None


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(
    "data",
    [
        "1,2,",
        "1 2",
        "1,,2",
        "1.,2",
        "01,2",
        "-,2",
        "1e,2",
        "NaN,2",
        "1]2",
        '1,2],"data":[3,4',
        '1,2],"x":[3,4',
        "{},2",
        "",
    ],
)
def test_what_is_wrong_is_refused_after_a_request_alike_but_for_its_numbers(data: str, space: str) -> None:
    def like(data: str) -> bytes:
        return f'{{"inputs":[{{"name":"x","shape":[1,2],"datatype":"FP32","data":{space}[{data}]}}]}}'.encode()

    hidden = f'{{"inputs":[{{"name":"x","shape":[1,2],"datatype":"FP32","data":{space}}}]}}'.encode()
    fresh: list[str] = []
    for _ in range(2):
        for one in (like(data), hidden):
            try:
                v2.check_head(one)
                fresh.append("")
            except RequestError as error:
                fresh.append(str(error))
        v2.check_head(like("1.5,-2e-3"))
        v2.check_head(like("3,4"))
    assert fresh[:2] == fresh[2:]
    assert fresh[1]


@pytest.mark.parametrize(
    ("good", "wrong"), [("[1, 2]", "\0"), ("[1, 2]", "\0 [1]"), ('["a]b", "c"]', '[1]b", "c"]'), ("[]", "\0")]
)
def test_what_is_no_json_is_refused_however_much_it_is_like_a_request_before(good: str, wrong: str) -> None:
    def like(data: str, datatype: str) -> bytes:
        return f'{{"inputs":[{{"name":"x","shape":[2],"datatype":"{datatype}","data":{data}}}]}}'.encode()

    for datatype in ("BYTES", "FP32"):
        v2.check_head(like(good, datatype), 100)
        with pytest.raises(BadRequest):
            v2.check_head(like(wrong, datatype), 1000)


def test_sizes_are_looked_at_in_every_request_that_is_like_one_before() -> None:
    good = body(request(shape=[30, 30], name="sizes"))
    assert len(good) < 900
    v2.check_head(good, 2000)
    with pytest.raises(BadRequest):
        v2.check_head(good)
    whole = body(request(datatype="UINT8", name="bounds"))
    v2.check_head(whole)
    with pytest.raises(BadRequest, match="300"):
        v2.check_head(whole.replace(b"[1, 2]}", b"[1, 300]}"))


def test_a_timeout_is_read_in_microseconds() -> None:
    assert v2.check_head(body({**request(), "parameters": {"timeout": 2500}})).timeout_us == 2500


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (request(datatype="UINT8", data=[1, 300]), "300 is outside UINT8's 0…255"),
        (request(datatype="INT8", data=[[-129]]), "-129 is outside"),
        (request(datatype="INT32", data=[2**31]), "INT32"),
        (request(datatype="UINT32", data=[-1]), "UINT32"),
        (request(datatype="UINT64", data=[2**64]), "UINT64"),
        (request(shape=[2**32 + 1, 4], data=[1, 2, 3, 4]), "dimension over 2147483647"),
        (request(shape=[2**64, 4]), "'shape'"),
        (request(shape=[99_999, 99_999]), "more than a body of"),
        (request(shape=[999_999_999], data=[]), "more than a body of"),
        (request(shape=[0, 2**40]), "dimension over"),
        (request(shape=[9] * 1_000), "1000 dimensions"),
        (request(shape=[9] * 300_000), "more than 49152 JSON values"),
        (request(shape=[1.0, 2], id="\\u0041"), "'shape'"),
        (request(datatype="INT64", data=[1.5]), "is not an integer"),
        (request(parameters={"shared_memory_region": "r"}), "shared memory"),
        (request(parameters={"Shared_Memory_Offset": 1}), "shared memory"),
        ({**request(), "outputs": [{"name": "y", "parameters": {"shared_memory_byte_size": 1}}]}, "outputs[0]"),
        ({**request(), "parameters": {"triton_x": 1}}, "reserved"),
        ({**request(), "parameters": {"tandem_x": 1}}, "reserved"),
        ({**request(), "parameters": {"headers": 1}}, "reserved"),
        ({**request(), "parameters": {"timeout": -1}}, "microseconds"),
        ({**request(), "parameters": {"timeout": "1"}}, "microseconds"),
        ({**request(), "parameters": [1]}, "must be an object"),
    ],
)
def test_what_must_not_reach_triton_is_refused_with_its_place(bad: object, said: str) -> None:
    with pytest.raises(BadRequest) as error:
        v2.check_head(body(bad))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}', "NaN"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[-Infinity]}]}', "Infinity"),
        (b"\xef\xbb\xbf" + body(request()), "byte-order mark"),
        (body(request())[:-1] + b',"id":"\xff"}', "UTF-8"),
        (b"[]", "an array"),
        (b'"inputs"', "a string"),
    ],
)
def test_what_triton_takes_and_json_does_not_have_is_refused(bad: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        v2.check_head(bad)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "INT", "shape", 'a "shape":[9999999999] b', "é"])
def test_such_words_inside_strings_are_fine(name: str) -> None:
    assert v2.check_head(json.dumps({**request(name=name), "id": name}, ensure_ascii=False).encode()).timeout_us is None


@pytest.mark.parametrize("name", sorted(v2.SEQUENCE_PARAMETERS))
def test_sequences_are_not_offered(name: str) -> None:
    with pytest.raises(Unsupported):
        v2.check_head(body({**request(), "parameters": {name: 1}}))


def test_names_hidden_by_escapes_are_found() -> None:
    hidden = (
        body(request(datatype="UINT8", data=[300]))
        .replace(b"UINT8", b"\\u0055\\u0049\\u004eT8")
        .replace(b"INT", b"\\u0049NT")
    )
    with pytest.raises(BadRequest, match="300"):
        v2.check_head(hidden)


@pytest.mark.parametrize("depth", [1_000, 5_000, 60_000])
def test_nesting_that_kills_triton_is_refused(depth: int) -> None:
    with pytest.raises(BadRequest):
        v2.check_head(b'{"inputs":[{"data":' + b"[" * depth + b"]" * depth + b"}]}")


def test_many_flat_brackets_pass() -> None:
    flat = request(shape=[1500, 1], data=[[1]] * 1500)
    assert v2.check_head(body(flat)).timeout_us is None


def test_parameters_that_a_model_may_read_are_told_up_to_the_limit() -> None:
    most = {f"p{index}": index for index in range(PARAMETERS.most)}
    assert v2.check_head(body({**request(), "parameters": {"timeout": 0, "mine": 3}})).unknown == "'mine'"
    assert v2.check_head(body({**request(), "parameters": most})).unknown
    with pytest.raises(BadRequest, match=f"{PARAMETERS.most + 1} parameters"):
        v2.check_head(body({**request(), "parameters": most | {"more": 1}}))
    for level in (
        request(parameters={"mine": 1}),
        {**request(), "outputs": [{"name": "y", "parameters": {"mine": 1}}]},
    ):
        with pytest.raises(BadRequest, match="'mine'"):
            v2.check_head(body(level))


@pytest.mark.parametrize(
    "twice",
    [
        b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[1],"data":[300],"data":[3]}]}',
        b'{"inputs":[{"name":"x","shape":[1],"parameters":{"shared_memory_region":"r"},"parameters":{}}]}',
        b'{"inputs":[],"parameters":{"sequence_id":5},"parameters":{}}',
        b'{"inputs":[],"parameters":{"a:":5},"p\\u0061rameters":{}}',
    ],
)
def test_two_equal_keys_are_refused_and_named(twice: bytes) -> None:
    """Triton takes the first, orjson the last."""
    with pytest.raises(BadRequest, match=r"'(data|parameters)' twice"):
        v2.check_head(twice)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"classification": "x"}, "classification must be a whole number"),
        ({"classification": -5}, "classification must be 1 or more"),
        ({"binary_data": "x"}, "binary_data must be true or false"),
        ({"priority": "x"}, "priority must be a whole number"),
        ({"binary_data_size": "8"}, "binary_data_size must be a number"),
        ({"binary_data_size": -1}, "binary_data_size must be 0 or more"),
        ({"classification": 2**40}, "classification must be 2147483647 or less"),
        ({"priority": -1}, "priority must be 0 or more"),
    ],
)
def test_parameters_of_the_wrong_type_are_the_clients_mistake(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        v2.check_head(body(request(parameters=parameters)))


@pytest.mark.parametrize(
    "data", ["[" + "1," * 500_000 + "1]", "[" * 500 + "1" + "]" * 500, "[" + "[]," * 400_000 + "[]]"]
)
def test_a_large_integer_tensor_is_looked_at_element_by_element_in_c_alone(data: str) -> None:
    head = ('{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":' + data + "}]}").encode()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        with contextlib.suppress(RequestError):
            v2.check_head(head)
        v2.explain(head, binary=False)
    finally:
        sys.setprofile(None)
    assert calls < 10_000_000  # each element once; once for each of 90 levels was 90 million


@pytest.mark.parametrize(("value", "size", "length"), [(None, 9, None), (b"0", 9, 0), (b"9", 9, 9), (b"007", 9, 7)])
def test_the_length_header_is_a_number_of_bytes(value: bytes | None, size: int, length: int | None) -> None:
    assert v2.inference_header_length(value, size) == length


@pytest.mark.parametrize(
    "value",
    [b"", b"abc", b"123x", b"123, 123", b"-1", b"+1", b" 1", b"1.0", b"0x10", b"10", b"9" * 40, "²".encode("latin-1")],
)
def test_a_length_header_that_triton_would_misread_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest):
        v2.inference_header_length(value, 9)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"not json", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}', "NaN"),
        (b"[]", "an array"),
        (b"{}", "lacks 'inputs'"),
        (body({"inputs": {}}), "'inputs' must be an array"),
        (body({"inputs": [1]}), "inputs[0] must be an object"),
        (body({"inputs": [{}]}), "inputs[0] lacks 'name'"),
        (body(request(datatype="FLOAT")), "'datatype' must be one of"),
        (body(request(datatype=None)), "'datatype' must be one of"),
        (body(request(shape=[-1])), "'shape' must be"),
        (body(request(shape="1")), "'shape' must be"),
        (body(request(shape=[True])), "'shape' must be"),
        (body(request(data=[1])), "shape [1, 2] holds 2 elements but 'data' has 1"),
        (body(request(data=[1, "2"])), "an element is a string"),
        (body(request(data=7)), "'data' must be an array"),
        (body(request(datatype="FP16")), "no JSON form"),
        (body(request(datatype="BYTES", data=["a", 1])), "an element is a number"),
        (body(request(datatype="BOOL", data=[True, None])), "an element is null"),
        (body({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}), "no 'data'"),
        (body({**request(), "outputs": 3}), "'outputs' must be an array"),
        (body({**request(), "outputs": [{}]}), "outputs[0]"),
        (body({**request(), "id": 3}), "'id' must be a string"),
    ],
)
def test_a_clients_mistake_is_explained(bad: bytes, said: str) -> None:
    error = v2.explain(bad, binary=False)
    assert error is not None
    assert said in str(error)


@pytest.mark.parametrize(
    "good",
    [
        request(),
        request(datatype="BOOL", data=[True, False]),
        request(datatype="BYTES", data=["a", "é"]),
        {**request(), "outputs": []},
    ],
)
def test_nothing_is_explained_where_the_client_made_no_mistake(good: object) -> None:
    assert v2.explain(body(good), binary=False) is None


def test_binary_inputs_need_their_size() -> None:
    entry = {"name": "x", "shape": [1], "datatype": "FP16", "parameters": {"binary_data_size": 2}}
    assert v2.explain(body({"inputs": [entry]}), binary=True) is None
    assert v2.explain(body({"inputs": [{**entry, "parameters": {"binary_data_size": "2"}}]}), binary=True) is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["inputs", "name", "shape", "datatype", "data", "parameters", "outputs", "timeout", "id"]) | st.text(max_size=4), inner, max_size=5),
    max_leaves=30,
)  # fmt: skip


@given(JSON)
def test_any_json_is_either_passed_or_refused_with_an_error_of_ours(value: object) -> None:
    for read in (v2.check_head, lambda head: v2.explain(head, binary=False)):
        with contextlib.suppress(RequestError):
            read(body(value))


@given(st.binary(max_size=200))
def test_any_bytes_are_either_passed_or_refused_with_an_error_of_ours(value: bytes) -> None:
    with contextlib.suppress(RequestError):
        v2.check_head(value)
    v2.explain(value, binary=True)


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        (b'{"inputs":[{"name":"x","shape":[7,3],"datatype":"FP32"}]}', 7),
        (b'{"inputs": [{"shape" : [ 12 , 3], "name": "x"}, {"shape": [1]}]}', 12),
        (b'{"inputs":[{"name":"\\"shape\\":[9]","shape":[2]}]}', 2),
        (b'{"inputs":[{"name":"x","shape":[]}]}', 1),
        (b'{"inputs":[{"name":"x","shape":[0]}]}', 1),
        (b"", 1),
    ],
)
def test_the_rows_of_a_request_are_the_first_dimension_of_its_first_tensor(head: bytes, rows: int) -> None:
    assert v2.num_rows(head) == rows
    assert v2.rows_and_length(head)[0] == rows


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b'{"inputs":[{"name":"ids","shape":[7,512],"datatype":"INT64"},{"shape":[1,2]}]}', (7, 512)),
        (b'{"inputs":[{"shape":[ 7 , 512 , 3 ]}]}', (7, 512)),
        (b'{"inputs":[{"shape":[7]},{"shape":[7,9]}]}', (7, 1)),
        (b'{"inputs":[{"shape":[7,0]}]}', (7, 1)),
        (b"", (1, 1)),
    ],
)
def test_the_length_of_a_text_is_the_second_dimension(head: bytes, found: tuple[int, int]) -> None:
    assert v2.rows_and_length(head) == found
