"""Messages that cost little to send and much to read, as in `tests/gateway/http/test_bounds.py`: refused before they are parsed."""

from __future__ import annotations

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from serving.protocol.protobuf_wire import field_head
from tests.gateway.grpc.conftest import Speaking, double, refused
from tests.gateway.http.test_bounds import MIB, MODEL, peak_bytes


def with_field(message: bytes, number: int, value: bytes) -> bytes:
    return message + field_head(number, len(value)) + value


def parameter(index: int) -> bytes:
    """An entry of a map of parameters."""
    return with_field(with_field(b"", 1, b"p%d" % index), 2, b"\x10\x01")


def grpc_messages() -> dict[str, bytes]:
    plain: bytes = pb.ModelInferRequest(model_name=MODEL).SerializeToString()
    one: bytes = double(MODEL).SerializeToString()
    tensor: bytes = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4]).SerializeToString()
    texts: bytes = pb.ModelInferRequest.InferInputTensor(name="x", datatype="BYTES", shape=[1, 4]).SerializeToString()
    whole: bytes = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT32", shape=[1, 4]).SerializeToString()
    entries = [parameter(index) for index in range(3000)]
    return {
        "parameters": one + b"".join(with_field(b"", 4, entry) for entry in entries[:100]),
        "3,000 parameters": one + b"".join(with_field(b"", 4, entry) for entry in entries),
        "parameters of an input": with_field(
            plain, 5, tensor + b"".join(with_field(b"", 4, entry) for entry in entries)
        ),
        "parameters of an output": with_field(one, 6, b"".join(with_field(b"", 2, entry) for entry in entries)),
        "inputs": plain + with_field(b"", 5, tensor) * 1025,
        "outputs": one + with_field(b"", 6, b"") * 1025,
        "empty fields": one + with_field(b"", 6, b"") * 1_000_000,
        "dimensions": with_field(plain, 5, with_field(b"", 2, b"FP32") + with_field(b"", 3, b"\x01" * 500_000)),
        "texts": with_field(plain, 5, with_field(texts, 5, b"\x42\x00" * (4 * MIB))),
        "numbers": with_field(plain, 5, with_field(whole, 5, with_field(b"", 2, b"\x01" * (8 * MIB)))),
        "numbers one by one": with_field(plain, 5, with_field(tensor, 5, b"\x35\x00\x00\x00\x00" * MIB)),
    }


@pytest.mark.parametrize("name", grpc_messages())
def test_a_message_of_more_than_any_model_needs_is_refused(speaking: Speaking, name: str) -> None:
    before = peak_bytes(speaking.running)
    message = grpc_messages()[name]
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(speaking.url, options=options) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        code, _, metadata = refused(infer, message)
    assert (code, metadata["tandem-error"]) == (grpc.StatusCode.INVALID_ARGUMENT, "bad_request")
    assert "tandem-pool" not in metadata  # which says what worked on it, also where that failed
    assert peak_bytes(speaking.running) - before < 64 * MIB + 4 * len(message)
