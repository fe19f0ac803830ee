"""Requests that no client library sends: each is told what is wrong with it, and the gateway goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.gateway.grpc.conftest import Speaking, double, refused

pytestmark = pytest.mark.triton

INVALID = grpc.StatusCode.INVALID_ARGUMENT
INFER = "/inference.GRPCInferenceService/ModelInfer"

NAMED_Y = pb.ModelInferRequest.InferRequestedOutputTensor(name="y")


def changed(change: Callable[[Any], Any], **fields: Any) -> Any:
    request = double(**fields)
    change(request)
    return request


def typed(datatype: str, shape: list[int], **contents: Any) -> Any:
    request = pb.ModelInferRequest(model_name="double.any")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=shape)
    tensor.contents.CopyFrom(pb.InferTensorContents(**contents))
    return request


ROWS: dict[str, tuple[Any, str]] = {
    "contents beside raw": (
        changed(lambda r: r.inputs[0].contents.fp32_contents.extend([1])),
        "beside raw_input_contents",
    ),
    "more raw tensors than inputs": (double(raw_input_contents=[bytes(16), b""]), "all of them or none"),
    "a raw tensor that is too short": (double(raw_input_contents=[bytes(15)]), "has 16 bytes, not 15"),
    "a raw tensor that is too long": (double(raw_input_contents=[bytes(17)]), "has 16 bytes, not 17"),
    "a raw tensor for nothing": (pb.ModelInferRequest(model_name="double.any", raw_input_contents=[b"x"]), "0 inputs"),
    "an input named twice": (
        changed(lambda r: r.inputs.add().CopyFrom(r.inputs[0]), raw_input_contents=[bytes(16)] * 2),
        "inputs[1]",
    ),
    "an output named twice": (changed(lambda r: r.outputs.extend([NAMED_Y, NAMED_Y])), "outputs[1]"),
    "a negative dimension": (changed(lambda r: r.inputs[0].shape.__setitem__(0, -1)), "0 or more"),
    "2^32 squared elements": (
        changed(lambda r: r.inputs[0].shape.__setitem__(slice(None), [2**32, 2**32])),
        "a dimension over",
    ),
    "2^64 elements in 64 bits": (
        changed(lambda r: r.inputs[0].shape.__setitem__(slice(None), [2**62, 4])),
        "a dimension over",
    ),
    "65536 squared elements": (
        changed(lambda r: r.inputs[0].shape.__setitem__(slice(None), [2**16, 2**16])),
        "holds 4294967296 elements",
    ),
    "a thousand dimensions": (changed(lambda r: r.inputs[0].shape.extend([1] * 1000)), "1002 dimensions"),
    "a datatype that is none": (
        changed(lambda r: setattr(r.inputs[0], "datatype", "FP128")),
        "'datatype' must be one of",
    ),
    "no datatype": (changed(lambda r: setattr(r.inputs[0], "datatype", "")), "'datatype' must be one of"),
    "too few elements": (typed("FP32", [1, 4], fp32_contents=[1, 2, 3]), "holds 4 elements but fp32_contents has 3"),
    "too many elements": (typed("FP64", [1, 4], fp64_contents=[1] * 5), "holds 4 elements but fp64_contents has 5"),
    "no elements": (typed("FP32", [1, 4]), "holds 4 elements"),
    "the wrong field": (typed("FP32", [1, 4], fp64_contents=[1] * 4), "sent in fp32_contents, not in fp64_contents"),
    "two fields": (typed("FP32", [1, 1], fp32_contents=[1], int_contents=[1]), "not in int_contents"),
    "FP16 in elements": (typed("FP16", [1, 1], fp32_contents=[1]), "raw_input_contents"),
    "BF16 in elements": (typed("BF16", [1, 1], fp32_contents=[1]), "raw_input_contents"),
    "an INT8 of 128": (typed("INT8", [1, 1], int_contents=[128]), "outside what INT8 holds"),
    "a UINT8 of 256": (typed("UINT8", [1, 1], uint_contents=[256]), "outside what UINT8 holds"),
    "an INT16 of -32769": (typed("INT16", [1, 1], int_contents=[-32769]), "outside what INT16 holds"),
}


@pytest.mark.protocol(
    "v2 gRPC", "`raw_input_contents` holds all tensors or none, of the sizes that shapes say", "supported", item=10
)
@pytest.mark.parametrize("row", ROWS)
def test_tensors_that_contradict_themselves_are_told_where(stub: Any, row: str) -> None:
    request, said = ROWS[row]
    code, text, metadata = refused(stub.ModelInfer, request)
    assert (code, metadata["tandem-error"]) == (INVALID, "bad_request")
    assert said in text


@pytest.mark.protocol(
    "hostile input", "shared memory in any spelling, over gRPC", "refused: tensors are sent in the request", item=27
)
@pytest.mark.parametrize("where", ["parameters", "inputs", "outputs"])
@pytest.mark.parametrize(
    "name",
    [
        "shared_memory_region",
        "Shared_Memory_offset",
        "SHARED_MEMORY_BYTE_SIZE",
        "triton_x",
        "tandem_x",
        "headers",
    ],
)
def test_reserved_parameters_are_refused_wherever_they_stand(stub: Any, where: str, name: str) -> None:
    request = double()
    request.outputs.add(name="y")
    holder = request if where == "parameters" else getattr(request, where)[0]
    holder.parameters[name].string_param = "mine"
    code, text, _ = refused(stub.ModelInfer, request)
    assert code is INVALID
    assert name in text


@pytest.mark.parametrize("where", ["parameters", "inputs", "outputs"])
@pytest.mark.parametrize("name", ["binary_data", "binary_data_output", "binary_data_size"])
def test_what_only_http_has_means_nothing_here(stub: Any, where: str, name: str) -> None:
    """KServe's SDK sends it all the same."""
    request = double()
    request.outputs.add(name="y")
    holder = request if where == "parameters" else getattr(request, where)[0]
    holder.parameters[name].int64_param = 3
    assert stub.ModelInfer(request).raw_output_contents == stub.ModelInfer(double()).raw_output_contents


@pytest.mark.parametrize(
    ("set_it", "said"),
    [
        (lambda p: p["timeout"].__setattr__("string_param", "soon"), "microseconds"),
        (lambda p: p["timeout"].__setattr__("int64_param", -1), "microseconds"),
        (lambda p: p["priority"].__setattr__("string_param", "high"), "whole number"),
        (lambda p: p["share"].__setattr__("double_param", float("nan")), "finite"),
        (lambda p: p["nothing"].SetInParent(), "no value"),
        (lambda p: p["triton_enable_empty_final_response"].__setattr__("bool_param", True), "reserved"),
    ],
)
def test_parameters_of_the_wrong_kind_are_refused(stub: Any, set_it: Callable[[Any], None], said: str) -> None:
    request = double()
    set_it(request.parameters)
    code, text, _ = refused(stub.ModelInfer, request)
    assert code is INVALID
    assert said in text


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (double("nobody"), grpc.StatusCode.NOT_FOUND),
        (double(""), grpc.StatusCode.NOT_FOUND),
        (double("double.any/versions/1"), grpc.StatusCode.NOT_FOUND),
        (double("ungated"), grpc.StatusCode.NOT_FOUND),
        (double(model_version="7"), grpc.StatusCode.NOT_FOUND),
        (double(model_version="-1"), grpc.StatusCode.NOT_FOUND),
        (double(model_version="1/../2"), grpc.StatusCode.NOT_FOUND),
        (double(model_version="1" * 40), grpc.StatusCode.NOT_FOUND),
    ],
)
def test_what_is_not_there_is_not_found(stub: Any, request_: Any, code: grpc.StatusCode) -> None:
    assert refused(stub.ModelInfer, request_)[0] is code


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 50,
        b"\x0a",
        b"\x2a\x05abc",
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0b\x0c",
        b"\x0a\x02\xff\xfe",
        b"\x0a\x0adouble.any\x2a\x02\x0a\x05",
        b"\x0a\x0adouble.any\x2a\x04\x0a\x02\xff\xfe",
    ],
)
def test_bytes_that_are_no_message_are_refused(speaking: Speaking, message: bytes) -> None:
    with grpc.insecure_channel(speaking.url) as channel:
        code, text, _ = refused(channel.unary_unary(INFER), message)
    assert code is INVALID
    assert "not a" in text


def test_millions_of_empty_fields_are_refused_at_once(speaking: Speaking) -> None:
    gateway = psutil.Process(speaking.running.program.pid)
    before = gateway.cpu_times()
    with grpc.insecure_channel(speaking.url) as channel:
        ask = channel.unary_unary(INFER)
        assert "fields" in refused(ask, b"\x0a\x0adouble.any" + b"\x2a\x00" * 2_000_000, timeout=60)[1]
        parameters = b"\x22\x00" * 9_000 + b"\x0a" + b"\xff\xff\x7f" + bytes(2**21 - 1)
        assert refused(ask, parameters, timeout=60)[0] is INVALID
    assert gateway.cpu_times().user - before.user < 5


def test_an_unknown_method_and_an_unknown_service_are_unimplemented(speaking: Speaking) -> None:
    with grpc.insecure_channel(speaking.url) as channel:
        for path in (
            "/inference.GRPCInferenceService/Nothing",
            "/other.Service/ModelInfer",
            "/grpc.health.v1.Health/Nothing",
            "/grpc.reflection.v1.ServerReflection/Nothing",
        ):
            assert refused(channel.unary_unary(path), b"")[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.protocol(
    "hostile input",
    "messages over `limits.max_body_bytes`, also once decompressed, over gRPC",
    "refused: RESOURCE_EXHAUSTED",
)
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_over_the_limit_is_refused_also_once_decompressed(speaking: Speaking, compression: Any) -> None:
    with speaking.stub(max_send_message_length=-1) as stub:
        code, _, _ = refused(stub.ModelInfer, double(raw_input_contents=[bytes(65 * 2**20)]), compression=compression)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.ModelInfer(double()).model_name == "double.any"


def test_metadata_over_the_limit_is_refused(stub: Any) -> None:
    code, _, _ = refused(stub.ModelInfer, double(), metadata=[("mine", "x" * 20_000)])
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ([("tandem-deadline-ms", "soon")], "milliseconds"),
        ([("tandem-deadline-ms", "0")], "more than 0"),
        ([("tandem-priority", "0")], "from 1"),
        ([("tandem-pool", "moon")], "the pools here are"),
        ([("tandem-variant", "int2")], "int2"),
        ([("tandem-pool", "cpu"), ("tandem-pool", "kinds")], "more than once"),
        ([("authorization", "a"), ("authorization", "b")], "more than once"),
    ],
)
def test_metadata_that_make_no_sense_are_refused(stub: Any, metadata: list[tuple[str, str]], said: str) -> None:
    code, text, _ = refused(stub.ModelInfer, double(), metadata=metadata)
    assert code is INVALID
    assert said in text


def test_more_rpcs_at_once_than_a_connection_has_streams_are_all_answered(speaking: Speaking) -> None:
    """gRPC's own guards would refuse a third of them with RST_STREAM, or cancel them without a word."""
    with speaking.stub() as stub:
        calls = [stub.ServerLive.future(pb.ServerLiveRequest()) for _ in range(2500)]
        assert {call.code() for call in calls} == {grpc.StatusCode.OK}
