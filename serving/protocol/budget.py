"""How much may one request hold, on any surface? Counted in its bytes, before any object is made of them.

A parser makes an object of each value: 60 kB of gzip became 20 million, which held all up for seconds and filled 2 GB; and Triton's time
grows with the square of the parameters. Each limit is a row of `LIMITS` with its reason, of which docs/limits.md is made. Arrays of numbers
and texts are not counted here: `json_arrays.py` reads them piece by piece. Rules: pure functions of bytes and counts, for every edge alike;
each error names the limit and its value; none of these is a setting, because no model needs more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serving.errors import BadRequest, TooLarge


@dataclass(frozen=True, slots=True)
class Limit:
    """At most so many of `what` in one request. `is_size`: of bytes, so that more is 413 and not 400."""

    what: str
    most: int
    reason: str
    is_size: bool = False

    def check(self, number: int, where: str = "the request", way_out: str = "no model needs so many") -> None:
        """Raises BadRequest or TooLarge."""
        if number > self.most:
            raise self.exceeded(f"{number}", where, way_out)

    def exceeded(
        self, number: str = "", where: str = "the request", way_out: str = "no model needs so many"
    ) -> BadRequest | TooLarge:
        has = f"{number} {self.what}; at most {self.most} are taken" if number else f"more than {self.most} {self.what}"
        return (TooLarge if self.is_size else BadRequest)(f"{where} has {has}; {way_out}")


IN_BINARY = "send it in the binary tensor extension, or in several requests"
INPUTS = Limit("inputs", 1024, "Tables with one input for each column have hundreds. 200,000 took Triton 17 s.")
OUTPUTS = Limit("outputs", 1024, "As many as inputs; Triton looks each of them up.")
PARAMETERS = Limit(
    "parameters, over all levels",
    64,
    "Those that say where binary tensors are do not count. Triton's time grows with the square: 16,000 took 1.4 s, 50,000 took 15 s.",
)
DIMENSIONS = Limit(
    "dimensions",
    64,
    "Twice what NumPy 1 holds, in which the embedded Triton hands tensors over; the product of millions takes minutes.",
)
NESTING = Limit(
    "levels of nesting",
    128,
    "Sixty-four dimensions as nested lists, and what is around them. 50,000 levels kill Triton 2.51.",
)
OBJECTS = Limit(
    "JSON objects",
    2 + 2 * (INPUTS.most + OUTPUTS.most),
    "The request, each input and output, and the parameters of each. 65,000 are parsed in 4 ms.",
)
MEMBERS = Limit(
    "members of JSON objects",
    8 * OBJECTS.most,
    "An input has five. Each is a name and a value that are made and looked up.",
)
VALUES = Limit(
    "JSON values beside the data of its tensors",
    3 * 2**14,
    "Shapes of 1,024 inputs with 32 dimensions each. So many lists are parsed in 4 ms, the slowest that there is.",
)
HEAD_BYTES = Limit(
    "bytes of JSON beside the data of its tensors",
    2**20,
    "1,024 inputs and as many outputs, written with line breaks, are 0.6 MB. Parsed in 1 ms where it is text.",
    is_size=True,
)
ARRAYS_OF_TEXTS = Limit(
    "lists of texts", 2**16, "In one tensor that is no flat list; each is looked at by itself, 1 µs."
)
TEXTS = Limit(
    "texts in one tensor",
    2**19,
    "In JSON or binary. Each takes the gateway 0.3 µs, in pieces of 128 KiB, and Triton 1.1 µs: 10,000,000 took 12 s.",
)
TEXT_BYTES = Limit(
    "bytes in one text with escapes",
    2 * 2**20,
    "It is read in one go, 1.4 ms per MiB. Texts without escapes are not copied and may have any.",
    is_size=True,
)
SPACE_BYTES = Limit(
    "bytes of white space between two elements", 2**20, "They are looked through in one go.", is_size=True
)
GRPC_FIELDS = Limit(
    "fields of a gRPC message",
    4096,
    "Two for each tensor, one for each output and parameter; an empty one takes 0.3 µs.",
)
GRPC_TEXTS = Limit(
    "texts in bytes_contents",
    2**16,
    "protobuf makes objects of all at once, in 20 ms; raw_input_contents has no such limit.",
)
GRPC_DESCRIPTION_BYTES = Limit(
    "bytes of a gRPC message beside its tensors", 2 * 2**20, "Parsed in one go by protobuf.", is_size=True
)
CONTROL_BYTES = Limit(
    "bytes of a request to load, unload or list models", 64 * 1024, "It has one parameter or none.", is_size=True
)
ROW_BYTES = Limit(
    "bytes of JSON for each element that a model's inputs can hold",
    128,
    "25 digits, and lines of their own for it and for the brackets around it. A body beyond 1 MiB and this is not read.",
    is_size=True,
)
TOKEN_BYTES = Limit(
    "bytes of JSON for each token that a request for embeddings may have",
    16,
    "English has 4 to 5, escaped Chinese 6 to 12. A body beyond 1 MiB and this is not parsed: 6 MB take 5 ms.",
    is_size=True,
)
LIMITS = (
    INPUTS,
    OUTPUTS,
    PARAMETERS,
    DIMENSIONS,
    NESTING,
    OBJECTS,
    MEMBERS,
    VALUES,
    HEAD_BYTES,
    TEXTS,
    ARRAYS_OF_TEXTS,
    TEXT_BYTES,
    SPACE_BYTES,
    ROW_BYTES,
    TOKEN_BYTES,
    GRPC_FIELDS,
    GRPC_TEXTS,
    GRPC_DESCRIPTION_BYTES,
    CONTROL_BYTES,
)

SMALL_BYTES = 8 * 1024  # whatever is in it is parsed in 0.1 ms
PIECE_BYTES = (
    64 * 1024
)  # between two of which other threads have their turn: the slowest kind, marks of texts alone, takes 1 ms
BEGINS = (b",", b"[", b"{")  # a value, wherever they stand outside of a text; a text begins with a quotation mark
NAMED_BYTES = 64 * 1024  # a key that comes twice is named where the JSON has no more: 1 ms
BINARY = frozenset(
    {"binary_data", "binary_data_output", "binary_data_size"}
)  # of the binary tensor extension, which only HTTP has


def require_few(head: bytes) -> None:
    """Of JSON of more than `SMALL_BYTES` from which the data of tensors were taken. Raises BadRequest or TooLarge."""
    HEAD_BYTES.check(len(head), way_out=IN_BINARY)
    _require_few(head, (b"{",), OBJECTS)
    _require_few(head, (b":",), MEMBERS)
    _require_few(head, (b",", b"["), VALUES)


def _require_few(head: bytes, marks: tuple[bytes, ...], limit: Limit) -> None:
    """Texts may have the mark, too; that is looked at where there are more of it than may be."""
    if sum(map(head.count, marks)) > limit.most:
        number = 0
        for piece in outside_texts(head):
            number += sum(map(piece.count, marks))
            if number > limit.most:
                raise limit.exceeded()


def require_few_values(body: bytes, most: int, way_out: str) -> None:
    """Of JSON that is parsed as a whole. Texts count twice, or three times in an array. Raises BadRequest."""
    if len(body) <= most:
        return
    found = 0
    for piece in outside_texts(body):
        found += piece.count(b'"') + sum(map(piece.count, BEGINS))
        if found > most:
            raise BadRequest(
                f"the body, read as JSON, holds more values than any right request has ({most}); {way_out}"
            )


def outside_texts(body: bytes) -> Iterator[bytes]:
    """What stands outside of texts, in pieces, with both marks of each text."""
    is_text, half = False, b""
    for start in range(0, len(body), PIECE_BYTES):
        piece = half + body[start : start + PIECE_BYTES]
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            half = b"\\" if piece.endswith(b"\\") else b""
            piece = piece.removesuffix(half)
        else:
            half = b""
        parts = piece.split(b'"')
        yield b"".join(parts[is_text::2]) + b'"' * (len(parts) - 1)
        is_text ^= not len(parts) % 2


def require_clear(head: bytes, value: object) -> None:
    """That no object has a key twice, of which each reader takes another, and that lists are not deeper than any model needs.

    `value`: what `head` says, parsed. Raises BadRequest.
    """
    num_members = depth = 0
    level: list[Any] = [value]
    while level:
        depth += 1
        below: list[Any] = []
        for one in level:
            if type(one) is dict:
                num_members += len(one)
                one = one.values()
            kinds = set(map(type, one))
            if dict in kinds or list in kinds:
                below += [each for each in one if type(each) is dict or type(each) is list]
        level = below
    NESTING.check(depth, way_out="no tensor has so many dimensions")
    if head.count(b":") != num_members and sum(piece.count(b":") for piece in outside_texts(head)) != num_members:
        raise BadRequest(f"the request has {_twice(head)} twice in one object; give each key once")


def _twice(head: bytes) -> str:
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        known: set[str] = set()
        found.extend(key for key, _ in pairs if key in known or known.add(key))  # type: ignore[func-returns-value]

    if len(head) <= NAMED_BYTES:
        json.loads(head, object_pairs_hook=look)
    return f"'{found[0][:80]}'" if found else "a key"


def require_few_parameters(levels: Iterable[object]) -> None:
    """`levels`: the parameters of the request, of each input and of each output; what is no mapping does not count. Raises BadRequest."""
    PARAMETERS.check(sum(sum(name not in BINARY for name in each) for each in levels if isinstance(each, Mapping)))


def most_bytes(num_elements: int) -> int:
    """Of a request to a model whose inputs hold so many numbers at most, however they are written."""
    return HEAD_BYTES.most + ROW_BYTES.most * num_elements
