"""Takes tensors out of a protobuf message, and puts them into one, without copying them.

protobuf's own parser copies every bytes field, and its reader copies it again; a view of the message that came needs neither. What the
other fields mean is protobuf's own to read (`grpc_v2.py`). Rule: no length is believed before it is compared with what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from serving.protocol.budget import GRPC_DESCRIPTION_BYTES, GRPC_FIELDS

LENGTH_DELIMITED = 2
SIZES = {1: 8, 5: 4}  # wire type -> bytes, of those with a fixed size


class Malformed(ValueError):
    """These bytes are no protobuf message, or one that nobody makes in earnest."""


def take_out(message: bytes | memoryview, numbers: Sequence[int]) -> tuple[bytes, dict[int, list[memoryview]]]:
    """The message without these length-delimited fields, and of each of them its values, in order, as views.

    Raises Malformed, or TooLarge where so much is left that it is not copied.
    """
    view = memoryview(message)
    taken: dict[int, list[memoryview]] = {number: [] for number in numbers}
    rest: list[memoryview] = []
    at, kept_from, end = 0, 0, len(view)
    for _ in range(GRPC_FIELDS.most):
        if at == end:
            rest.append(view[kept_from:])
            GRPC_DESCRIPTION_BYTES.check(sum(map(len, rest)), "the message")
            return b"".join(rest), taken
        begin = at
        tag, at = _varint(view, at)
        if tag & 7 == LENGTH_DELIMITED:
            size, at = _varint(view, at)
            if size > end - at:
                raise Malformed("a field is longer than the message")
            values = taken.get(tag >> 3)
            if values is not None:
                values.append(view[at : at + size])
                rest.append(view[kept_from:begin])
                kept_from = at + size
            at += size
        else:
            at = _after(view, at, tag & 7)
    raise Malformed(f"it has {GRPC_FIELDS.most} fields or more")


def require_few_fields(message: bytes | memoryview, most: int) -> None:
    """Before a message of small fields is parsed. Raises Malformed."""
    view = memoryview(message)
    at, end = 0, len(view)
    for _ in range(most + 1):
        if at >= end:
            return
        tag, at = _varint(view, at)
        if tag & 7 == LENGTH_DELIMITED:
            size, at = _varint(view, at)
            at += size
        else:
            at = _after(view, at, tag & 7)
    raise Malformed(f"it has more than {most} elements")


def only_field(message: bytes | memoryview, number: int) -> memoryview | None:
    """The value of a length-delimited field where it is all that the message has, else None. Raises Malformed."""
    view = memoryview(message)
    if len(view) < 2:
        return None
    tag, at = _varint(view, 0)
    if tag != number << 3 | LENGTH_DELIMITED:
        return None
    size, at = _varint(view, at)
    return view[at:] if size == len(view) - at else None


def field_head(number: int, size: int) -> bytes:
    """What stands before the `size` bytes of a length-delimited field."""
    return bytes([number << 3 | LENGTH_DELIMITED]) + _encoded(size)


def _after(view: memoryview, at: int, kind: int) -> int:
    """Where a field ends that begins there and has no length."""
    if kind == 0:
        return _varint(view, at)[1]
    if kind not in SIZES or at + SIZES[kind] > len(view):
        raise Malformed("a field is cut off, or of a kind that is not in use any more")
    return at + SIZES[kind]


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):  # ten bytes at most
        if at >= len(view):
            break
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed("a number is cut off or too long")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
