"""Messages that cost little to send and much to read, as in `tests/gateway/http/test_bounds.py`: refused before they are parsed."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from serving.protocol.protobuf_wire import field_head
from tests.gateway.grpc.conftest import Speaking, double, refused
from tests.gateway.http.test_bounds import MIB, MODEL, peak_bytes


def with_field(message: bytes, number: int, value: bytes) -> bytes:
    return message + field_head(number, len(value)) + value


def parameters(field: int, number: int) -> bytes:
    """The entries of a map of parameters."""
    return b"".join(
        with_field(b"", field, with_field(with_field(b"", 1, b"p%d" % index), 2, b"\x10\x01"))
        for index in range(number)
    )


PLAIN: bytes = pb.ModelInferRequest(model_name=MODEL).SerializeToString()
ONE: bytes = double(MODEL).SerializeToString()
TENSOR: bytes = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4]).SerializeToString()
TEXTS: bytes = pb.ModelInferRequest.InferInputTensor(name="x", datatype="BYTES", shape=[1, 4]).SerializeToString()
WHOLE: bytes = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT32", shape=[1, 4]).SerializeToString()

# Each is made where it is sent: together they are 40 MB.
MESSAGES: dict[str, Callable[[], bytes]] = {
    "parameters": lambda: ONE + parameters(4, 100),
    "3,000 parameters": lambda: ONE + parameters(4, 3000),
    "parameters of an input": lambda: with_field(PLAIN, 5, TENSOR + parameters(4, 3000)),
    "parameters of an output": lambda: with_field(ONE, 6, parameters(2, 3000)),
    "inputs": lambda: PLAIN + with_field(b"", 5, TENSOR) * 1025,
    "outputs": lambda: ONE + with_field(b"", 6, b"") * 1025,
    "empty fields": lambda: ONE + with_field(b"", 6, b"") * 1_000_000,
    "dimensions": lambda: with_field(PLAIN, 5, with_field(b"", 2, b"FP32") + with_field(b"", 3, b"\x01" * 500_000)),
    "texts": lambda: with_field(PLAIN, 5, with_field(TEXTS, 5, b"\x42\x00" * (4 * MIB))),
    "numbers": lambda: with_field(PLAIN, 5, with_field(WHOLE, 5, with_field(b"", 2, b"\x01" * (8 * MIB)))),
    "numbers one by one": lambda: with_field(PLAIN, 5, with_field(TENSOR, 5, b"\x35\x00\x00\x00\x00" * MIB)),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_more_than_any_model_needs_is_refused(speaking: Speaking, name: str) -> None:
    before = peak_bytes(speaking.running)
    message = MESSAGES[name]()
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(speaking.url, options=options) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        code, _, metadata = refused(infer, message)
    assert (code, metadata["tandem-error"]) == (grpc.StatusCode.INVALID_ARGUMENT, "bad_request")
    assert "tandem-pool" not in metadata  # which says what worked on it, also where that failed
    assert peak_bytes(speaking.running) - before < 64 * MIB + 4 * len(message)
