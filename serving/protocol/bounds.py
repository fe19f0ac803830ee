"""How much may one request hold, over HTTP or gRPC? Counted in its bytes, before any object is made of them.

A parser makes an object of each value: 60 kB of gzip became 20 million, which held everybody up for seconds and
filled 2 GB, and Triton takes a time that grows with the square of the parameters. What a tensor holds is bounded by
the shape that the request gives it, everything else by numbers here. Rules: pure functions of bytes and counts; every
message says the number and the most; none of these is a setting, because no model needs more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

import numpy as np

from serving.errors import BadRequest
from serving.protocol.json_values import PIECE_BYTES, outside_texts

MAX_PARAMETERS = 64  # over all levels, but for those that say where binary tensors are. 16,000 kept Triton busy for 1.4 s, 50,000 for 15 s
MAX_INPUTS = MAX_OUTPUTS = 1024  # tables with one input for each column have hundreds; 200,000 took 30 s
MAX_OBJECTS = 2 + 2 * (MAX_INPUTS + MAX_OUTPUTS)  # the request, each input and output, and the parameters of each
MAX_MEMBERS = 8 * MAX_OBJECTS  # an input has five
# What is parsed into objects: texts, truth values, requests that are wrong. Of either the slowest take 0.05 s (orjson, 2-core x86-64).
MAX_VALUES = 2**19
MAX_LISTS = 2**16
SMALL_BYTES = 8 * 1024  # whatever is in it is parsed in 0.1 ms
BYTES_PER_ELEMENT = 128  # of JSON: 25 digits, and lines of their own for it and for brackets around it
LEAST_BYTES = 2**20  # of any request: names, parameters, an id. A guess, not measured
MAX_SPACE_BYTES = 4 * 2**20  # beside what each value may have around it; read in 10 ms
SPACE = ord(" ")  # and all below it, of which JSON takes tab, CR and LF
LONG_SHAPE = 2000  # bytes; 64 dimensions have fewer
SHAPE = re.compile(rb'"shape"\s*:\s*\[([\d,\s]*)\]')
BINARY = frozenset({"binary_data", "binary_data_output", "binary_data_size"})
WAY_OUT = "send it in the binary tensor extension, or in several requests"


def require_bounded(head: bytes) -> None:
    """Of a v2 request in JSON, or the JSON part of one. Takes 0.3 ms for 1.6 MB of numbers. Raises BadRequest."""
    if len(head) <= SMALL_BYTES:
        return
    if len(head) > MAX_SPACE_BYTES:
        _require_little_space(head)
    _require_few(head, b"{", MAX_OBJECTS, "objects")
    _require_few(head, b":", MAX_MEMBERS, "members of objects")
    if _num(head, b"[") <= MAX_LISTS and _num(head, b",") <= MAX_LISTS:
        return
    num_lists, num_elements = _as_said(head)
    # Each number may stand in brackets of its own, which Triton does not mind.
    _require_few(head, b"[", num_lists + num_elements + MAX_LISTS, "lists beside those of its shapes")
    _require_few(head, b",", num_lists + num_elements + MAX_LISTS, "values beside those of its shapes")


def require_parsable(head: bytes) -> None:
    """Before objects are made of all of it. Raises BadRequest."""
    if len(head) > SMALL_BYTES:
        _require_few(head, b"[", MAX_LISTS, "lists", WAY_OUT)
        _require_few(head, b",", MAX_VALUES, "values that are not numbers alone", WAY_OUT)


def require_few_entries(what: str, number: int, most: int) -> None:
    """`what`: inputs, outputs. Raises BadRequest."""
    if number > most:
        raise BadRequest(f"the request has {number} {what}; at most {most} are taken")


def require_few_parameters(levels: Iterable[object]) -> None:
    """`levels`: the parameters of the request, of each input and of each output; what is no mapping does not count. Raises BadRequest."""
    number = sum(sum(name not in BINARY for name in each) for each in levels if isinstance(each, Mapping))
    require_few_entries("parameters, over all levels", number, MAX_PARAMETERS)


def most_bytes(num_elements: int) -> int:
    """Of a request to a model whose inputs hold so many numbers at most, however they are written."""
    return LEAST_BYTES + BYTES_PER_ELEMENT * num_elements


def _require_few(head: bytes, mark: bytes, most: int, what: str, way_out: str = "no model needs so many") -> None:
    """Texts may have the mark, too; that is looked at where there are more of it than may be."""
    if _num(head, mark) > most:
        number = 0
        for piece in outside_texts(head):
            number += piece.count(mark)
            if number > most:
                raise BadRequest(f"the request has more than {most} {what}; {way_out}")


def _require_little_space(head: bytes) -> None:
    """Beyond what `most_bytes` lets each value have: 60 MB of it, 60 kB of gzip, kept all others waiting for half a second."""
    pieces = (head[start : start + PIECE_BYTES] for start in range(0, len(head), PIECE_BYTES))
    if _is_much_space(pieces) and _is_much_space(outside_texts(head)):
        raise BadRequest(
            f"the request has more than {MAX_SPACE_BYTES} bytes of white space that no value needs; send it without"
        )


def _is_much_space(pieces: Iterable[bytes]) -> bool:
    left = MAX_SPACE_BYTES
    for piece in pieces:
        num_spaces = int(np.count_nonzero(np.frombuffer(piece, np.uint8) <= SPACE))
        if num_spaces > len(piece) // 2:
            left -= max(0, num_spaces - BYTES_PER_ELEMENT * (_num(piece, b",") + _num(piece, b"[")))
            if left < 0:
                return True
    return False


def _num(head: bytes, mark: bytes) -> int:
    """Four times as fast as `bytes.count`. In pieces, because what is compared makes as many bytes again."""
    read = np.frombuffer(head, np.uint8)
    pieces = (read[start : start + PIECE_BYTES] for start in range(0, len(read), PIECE_BYTES))
    return sum(int(np.count_nonzero(piece == mark[0])) for piece in pieces)


def _as_said(head: bytes) -> tuple[int, int]:
    """The lists and elements that tensors of the request's shapes have as nested lists."""
    num_lists = num_elements = at = 0
    for _ in range(MAX_INPUTS):
        at = head.find(b'"shape"', at)
        if at < 0:
            break
        found = SHAPE.match(head, at, at + LONG_SHAPE)
        at += 1
        if found is None:
            continue
        shape = [int(size) for size in found[1].split(b",") if size.strip().isdigit()]
        num_elements += min(prod(shape), len(head))
        num_lists += min(sum(prod(shape[:level]) for level in range(len(shape))), len(head))
    return num_lists, num_elements
