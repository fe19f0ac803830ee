"""A gRPC request becomes v2's JSON with binary tensors, and an answer becomes gRPC's: pure tables. What is refused is in tests/gateway/grpc."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from serving import errors
from serving.protocol import grpc_v2, v2
from serving.protocol import protobuf_wire as wire

TYPED: list[tuple[str, str, list[Any], Any]] = [
    ("BOOL", "bool_contents", [True, False], np.bool_),
    ("INT8", "int_contents", [-128, 127], np.int8),
    ("INT16", "int_contents", [-(2**15), 2**15 - 1], np.int16),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1], np.int32),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], np.int64),
    ("UINT8", "uint_contents", [0, 255], np.uint8),
    ("UINT16", "uint_contents", [0, 2**16 - 1], np.uint16),
    ("UINT32", "uint_contents", [0, 2**32 - 1], np.uint32),
    ("UINT64", "uint64_contents", [0, 2**64 - 1], np.uint64),
    ("FP32", "fp32_contents", [1.5, float("nan")], np.float32),
    ("FP64", "fp64_contents", [1e-300, float("inf")], np.float64),
]


def asked(request: Any, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
    head, blobs = grpc_v2.translated(grpc_v2.opened(request.SerializeToString()), **more)
    return json.loads(head), [bytes(blob) for blob in blobs]


def typed(datatype: str, shape: list[int], **contents: Any) -> Any:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype=datatype, shape=shape).contents.CopyFrom(pb.InferTensorContents(**contents))
    return request


@pytest.mark.parametrize(("datatype", "field", "values", "dtype"), TYPED)
def test_elements_become_the_bytes_of_the_tensor(datatype: str, field: str, values: list[Any], dtype: Any) -> None:
    head, [blob] = asked(typed(datatype, [1, 2], **{field: values}))
    assert blob == np.array(values, dtype).tobytes()
    assert head["inputs"] == [
        {"name": "x", "shape": [1, 2], "datatype": datatype, "parameters": {"binary_data_size": len(blob)}}
    ]


def test_more_elements_than_are_packed_at_once_are_all_there() -> None:
    values = list(range(grpc_v2.NUM_AT_ONCE + 3))
    assert asked(typed("INT32", [len(values)], int_contents=values))[1] == [
        np.arange(len(values), dtype="<i4").tobytes()
    ]


def test_texts_are_written_with_their_lengths() -> None:
    _, [blob] = asked(typed("BYTES", [2], bytes_contents=[b"a\0", b""]))
    assert blob == b"\x02\0\0\0a\0\0\0\0\0"


def test_contents_that_come_in_two_parts_are_one() -> None:
    """As protobuf has it for a field that comes twice."""
    part = typed("FP32", [2], fp32_contents=[1]).SerializeToString()
    tensor = pb.ModelInferRequest.FromString(part).inputs[0].SerializeToString()
    again = b"\x2a\x06" + b"\x32\x04" + np.float32(2).tobytes()  # contents, in them fp32_contents
    message = grpc_v2.wire.field_head(5, len(tensor + again)) + tensor + again
    _, [blob] = grpc_v2.translated(grpc_v2.opened(message))
    assert bytes(blob) == np.array([1, 2], np.float32).tobytes()


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "INT64"])
def test_a_tensor_without_elements_has_no_bytes(datatype: str) -> None:
    head, blobs = asked(typed(datatype, [0, 3]))
    assert (blobs, head["inputs"][0]["parameters"]) == ([b""], {"binary_data_size": 0})


def test_raw_tensors_are_views_of_the_message() -> None:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(8), bytes(4)])
    request.inputs.add(name="x", datatype="FP16", shape=[4])
    request.inputs.add(name="y", datatype="BF16", shape=[2])
    message = request.SerializeToString()
    _, blobs = grpc_v2.translated(grpc_v2.opened(message))
    assert [isinstance(blob, memoryview) and blob.obj is message for blob in blobs] == [True, True]


def test_everything_a_client_may_say_is_in_the_json() -> None:
    request = pb.ModelInferRequest(model_name="m", model_version="3", id='"7"', raw_input_contents=[bytes(4)])
    request.inputs.add(name="x\n", datatype="FP32", shape=[1]).parameters["of"].string_param = "input"
    request.outputs.add(name="y").parameters["classification"].int64_param = 3
    for name, kind, value in (
        ("timeout", "int64_param", 5),
        ("priority", "uint64_param", 2**64 - 1),
        ("share", "double_param", 0.5),
        ("flag", "bool_param", False),
    ):
        setattr(request.parameters[name], kind, value)
    envelope = grpc_v2.opened(request.SerializeToString())
    assert (envelope.model, envelope.version) == ("m", "3")
    assert asked(request)[0] == {
        "id": '"7"',
        "inputs": [
            {"name": "x\n", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4, "of": "input"}}
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True, "classification": 3}}],
        "parameters": {"timeout": 5, "priority": 2**64 - 1, "share": 0.5, "flag": False},
    }


def test_all_outputs_are_asked_for_in_binary_where_none_is_named() -> None:
    assert asked(typed("FP32", [1], fp32_contents=[1]))[0]["parameters"] == {"binary_data_output": True}


def test_a_usual_request_needs_no_second_look() -> None:
    """Its JSON is sent as it was written, without being parsed."""
    request = pb.ModelInferRequest(model_name="m", id="7", raw_input_contents=[bytes(16)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.outputs.add(name="y")
    head, _ = grpc_v2.translated(grpc_v2.opened(request.SerializeToString()))
    v2.check_head(head, 200)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_only_a_stream_may_ask_for_an_empty_response_at_its_end(is_streamed: bool) -> None:
    request = typed("FP32", [1], fp32_contents=[1])
    request.parameters[grpc_v2.FINAL_ASKED].bool_param = True
    head, _ = asked(request, is_streamed=is_streamed)
    assert (grpc_v2.FINAL_ASKED in head["parameters"]) is not is_streamed


@given(st.binary(max_size=300))
def test_any_bytes_are_translated_or_refused(message: bytes) -> None:
    try:
        head, blobs = grpc_v2.translated(grpc_v2.opened(message))
        v2.check_head(head, len(message) + sum(map(len, blobs)))
    except errors.RequestError:
        pass


# -- answers ----------------------------------------------------------------------------------------------------------


def answered(head: dict[str, Any], rest: bytes, **more: Any) -> Any:
    text = json.dumps(head).encode()
    return pb.ModelInferResponse.FromString(b"".join(grpc_v2.answer([text + rest], len(text), "asked", **more)))


OUTPUT = {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}


def test_an_answer_has_the_name_that_was_asked_for_and_its_tensors_in_order() -> None:
    second = {**OUTPUT, "name": "z", "shape": [1], "parameters": {"binary_data_size": 4, "of": "output"}}
    head = {"model_name": "asked-fp32", "model_version": "1", "id": "7", "outputs": [OUTPUT, second]}
    response = answered(
        {**head, "parameters": {"a": True, "b": 2, "c": 0.5, "d": "x", "e": 2**64 - 1}}, b"12345678abcd"
    )
    assert (response.model_name, response.model_version, response.id) == ("asked", "1", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("y", "FP32", [1, 2]),
        ("z", "FP32", [1]),
    ]
    assert list(response.raw_output_contents) == [b"12345678", b"abcd"]
    assert response.outputs[1].parameters["of"].string_param == "output"
    kinds = {name: value.WhichOneof("parameter_choice") for name, value in response.parameters.items()}
    assert kinds == {
        "a": "bool_param",
        "b": "int64_param",
        "c": "double_param",
        "d": "string_param",
        "e": "uint64_param",
    }


@pytest.mark.parametrize("size", [1, 3, 8, 50, 1000])
def test_an_answer_in_parts_is_the_same_however_it_was_cut(size: int) -> None:
    second = {**OUTPUT, "name": "z", "shape": [1], "parameters": {"binary_data_size": 4}}
    text = json.dumps({"model_version": "1", "outputs": [OUTPUT, second]}).encode()
    body = text + b"12345678abcd"
    whole = b"".join(grpc_v2.answer([body], len(text), "asked"))
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    assert b"".join(grpc_v2.answer(parts, len(text), "asked")) == whole
    with pytest.raises(errors.Internal):
        grpc_v2.answer([*parts[:-1], parts[-1][:-1]], len(text), "asked")


def test_an_answer_of_empty_tensors_alone_is_json_to_its_end() -> None:
    empty = {**OUTPUT, "shape": [0, 2], "parameters": {"binary_data_size": 0}}
    body = json.dumps({"model_version": "1", "outputs": [empty]}).encode()
    response = pb.ModelInferResponse.FromString(b"".join(grpc_v2.answer([body], None, "asked")))
    assert list(response.raw_output_contents) == [b""]


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"", 0),
        (b"[]", 2),
        (b"{}", 2),
        (b"not json", 8),
        (json.dumps({"outputs": [OUTPUT]}).encode() + b"short", len(json.dumps({"outputs": [OUTPUT]}))),
        (json.dumps({"outputs": [{**OUTPUT, "parameters": {}}]}).encode(), None),
        (json.dumps({"outputs": [{**OUTPUT, "parameters": None}]}).encode(), None),
        (
            json.dumps({"outputs": [{**OUTPUT, "shape": "x"}]}).encode() + bytes(8),
            len(json.dumps({"outputs": [OUTPUT]})) - 3,
        ),
    ],
)
def test_an_answer_that_cannot_be_read_is_internal(body: bytes, length: int | None) -> None:
    with pytest.raises(errors.Internal):
        grpc_v2.answer([body], length, "asked")


def test_a_streamed_answer_is_the_last_of_its_request_and_carries_the_receipt() -> None:
    text = json.dumps({"model_version": "1", "outputs": [OUTPUT]}).encode()
    pieces = grpc_v2.answer([text + bytes(8)], len(text), "asked", is_streamed=True)
    pieces.append(grpc_v2.with_parameters({"tandem-pool": "cpu"}))
    response = pb.ModelStreamInferResponse.FromString(b"".join(grpc_v2.streamed(pieces)))
    assert not response.error_message
    assert response.infer_response.parameters["triton_final_response"].bool_param
    assert response.infer_response.parameters["tandem-pool"].string_param == "cpu"
    assert list(response.infer_response.raw_output_contents) == [bytes(8)]


def test_an_error_in_a_stream_says_of_which_request() -> None:
    response = pb.ModelStreamInferResponse.FromString(
        grpc_v2.stream_error("no", "7", "m", {"tandem-error": "bad_request"})
    )
    assert (response.error_message, response.infer_response.id, response.infer_response.model_name) == ("no", "7", "m")
    assert response.infer_response.parameters["tandem-error"].string_param == "bad_request"


def _field(number: int, value: bytes) -> bytes:
    return wire.field_head(number, len(value)) + value


def test_what_protobuf_would_make_objects_of_all_at_once_is_bounded_before() -> None:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1]).SerializeToString()
    plain = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4)]).SerializeToString()
    entry = _field(2, _field(1, b"p") + _field(2, b"\x10\x01"))
    name = _field(1, b"y" * 10_000)
    with pytest.raises(errors.BadRequest, match="dimensions"):
        grpc_v2.translated(grpc_v2.opened(plain + _field(5, tensor + _field(3, b"\x01" * 100_000))))
    for outputs in ([_field(6, name + entry * 5_000)], [_field(6, name + entry * 50)] * 100):
        with pytest.raises(errors.BadRequest, match="outputs"):
            grpc_v2.opened(plain + _field(5, tensor) + b"".join(outputs))
    head, _ = grpc_v2.translated(grpc_v2.opened(plain + _field(5, tensor) + _field(6, name) * 100))
    assert len(json.loads(head)["outputs"]) == 100
    long = pb.ModelInferRequest.InferInputTensor(name="x" * 10_000, datatype="FP32", shape=[1] * 64)
    assert grpc_v2.translated(grpc_v2.opened(plain + _field(5, long.SerializeToString())))[1]
