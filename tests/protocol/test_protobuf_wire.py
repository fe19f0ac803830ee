"""Tensors are taken out of messages as protobuf itself would read them, and what is no message is told so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from serving.protocol import protobuf_wire as wire

RAW, INPUTS = 7, 5


def request(*raw: bytes) -> bytes:
    made = pb.ModelInferRequest(model_name="m", id="ü", raw_input_contents=raw)
    made.inputs.add(name="x", shape=[1, 2**40])
    made.parameters["p"].double_param = 1.5
    return made.SerializeToString()


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_what_is_taken_out_and_what_is_left_make_the_message(raw: list[bytes]) -> None:
    rest, taken = wire.take_out(request(*raw), (RAW,))
    assert [bytes(value) for value in taken[RAW]] == raw
    assert pb.ModelInferRequest.FromString(rest) == pb.ModelInferRequest.FromString(request())
    pieces = [piece for value in raw for piece in (wire.field_head(RAW, len(value)), value)]
    assert pb.ModelInferRequest.FromString(rest + b"".join(pieces)) == pb.ModelInferRequest.FromString(request(*raw))


def test_values_are_views_of_the_message_and_not_copies() -> None:
    message = request(bytes(100))
    [value] = wire.take_out(message, (RAW,))[1][RAW]
    assert value.obj is message


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(message: bytes) -> None:
    try:
        rest, taken = wire.take_out(message, (RAW, INPUTS))
    except wire.Malformed:
        return
    assert len(rest) + sum(len(value) for values in taken.values() for value in values) <= len(message)


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a",  # no length
        b"\x0a\x05abc",  # shorter than its length
        b"\x0a" + b"\xff" * 9 + b"\x01",  # as long as 2^64 - 1
        b"\x0a" + b"\x80" * 10 + b"\x00",  # a number in eleven bytes
        b"\x80",  # a tag cut off
        b"\x0b\x0c",  # a group
        b"\x0e",  # no wire type
        b"\x09\x00\x00",  # 8 bytes cut off
        b"\x0d\x00",  # 4 bytes cut off
        b"\x08",  # a number cut off
        b"\x0a\x00" * wire.GRPC_FIELDS.most,
    ],
)
def test_what_is_cut_off_or_endless_is_malformed(message: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.take_out(message, (RAW,))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 2**21, 2**35])
def test_lengths_are_written_as_they_are_read(size: int) -> None:
    head = wire.field_head(RAW, size)
    assert head[0] == RAW << 3 | 2
    assert wire._varint(memoryview(head), 1) == (size, len(head))


def test_a_field_is_the_only_one_or_it_is_not() -> None:
    alone = pb.InferTensorContents(fp32_contents=[1, 2]).SerializeToString()
    both = pb.InferTensorContents(fp32_contents=[1, 2], fp64_contents=[1]).SerializeToString()
    assert wire.only_field(alone, 6) == alone[2:]
    assert wire.only_field(alone, 7) is None
    assert wire.only_field(both, 6) is None
    assert wire.only_field(b"", 6) is None
    with pytest.raises(wire.Malformed):
        wire.only_field(b"\x32\x80", 6)
