"""Takes long arrays out of JSON before it is parsed, and reads them piece by piece: numbers into NumPy, texts as they stand.

A parser holds Python's lock until it is done, and makes an object of each element. What is left without the arrays is small (`budget.py`),
and a piece is read in 1 ms; whoever reads a long one does it on a thread. Rule: what is taken here as JSON is JSON; where a piece cannot
be read, the caller tells why.
"""

from __future__ import annotations

import codecs
import re
import secrets
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from serving.errors import BadRequest
from serving.protocol.budget import ARRAYS_OF_TEXTS, HEAD_BYTES, IN_BINARY, INPUTS, NESTING, SPACE_BYTES, TEXT_BYTES

PIECE_BYTES = 128 * 1024  # read in 0.5 ms; `{},` again and again, which only explaining a mistake reads, in 4 ms
FIND_BYTES = 4 * 2**20  # looked through in 1 ms for one letter
LONG_BYTES = 4096  # of a text that is read by itself
BEFORE_BYTES = 4096  # of a colon and white space between a key and its array; a guess at what nobody writes
SPACES = b" \t\r\n"
BEGIN = re.compile(rb"\s*+:\s*+\[")
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
INSIDE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # of a text
UNITS = re.compile(  # of a text, none of which is half a character: a pair of surrogates is one
    rb'(?:[^"\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\[^u])*+',
    re.DOTALL,
)
STRINGS = re.compile(STRING, re.DOTALL)
STEP = re.compile(rb'(?:[^"\]]++|' + STRING + rb")*+", re.DOTALL)  # up to a bracket that closes
BRACKETS = re.compile(rb"(" + STRING + rb")|[\[\]]", re.DOTALL)
TEXT = b"\0"  # stands for one
END = re.compile(rb"\]\s*+(?:\}|,\s*+" + STRING + rb"\s*+:)", re.DOTALL)  # of an array that is an object's member
CLASSES = bytes(code if code in b"[]," else ord("d") for code in range(256))
OPENS, CLOSES, COMMA, ELEMENT = b"[],d"  # as they are after CLASSES
WITHOUT_BRACKETS = bytes(ord(" ") if code in b"[]" else code for code in range(256))
_TOKEN = secrets.token_hex(8)  # nobody else writes it into a request

Text = bytes | memoryview
Kind = Literal["d", "i", "u"]


class Array(NamedTuple):
    """Where the elements stand: behind the bracket that opens, and before the one that closes."""

    begin: int
    end: int


class Unreadable(Exception):
    """A piece that is not what it should be; `piece` is JSON between brackets, if it is JSON at all."""

    def __init__(self, piece: bytes) -> None:
        super().__init__("a piece cannot be read")
        self.piece = piece


def cut(body: bytes, key: bytes) -> tuple[bytes, dict[str, Array]]:
    """The JSON with a text in the place of each array that is the member `key` of an object, and the arrays by these texts.

    Raises BadRequest, or TooLarge where there is more beside them than any request has.
    """
    quoted = b'"%b"' % key
    kept: list[bytes] = []
    arrays: dict[str, Array] = {}
    at = search = size = 0
    while True:
        found = body.find(quoted, search, at + HEAD_BYTES.most - size + len(quoted))
        if found < 0:
            break
        search = found + len(quoted)
        begins = BEGIN.match(body, search, search + BEFORE_BYTES)
        if begins is None:
            continue
        array = Array(begins.end(), _end(body, begins.end()))
        name = f"{_TOKEN}{len(arrays)}"
        arrays[name] = array
        INPUTS.check(len(arrays))
        kept += (body[at : array.begin - 1], b'"%b"' % name.encode())
        size += array.begin - at
        at = search = array.end + 1
    HEAD_BYTES.check(size + len(body) - at, way_out=IN_BINARY)
    kept.append(body[at:])
    return b"".join(kept), arrays


def _end(body: bytes, begin: int) -> int:
    """Where the array's closing bracket is. Raises BadRequest."""
    brace = _find(body, b"}", begin, len(body))
    mark = _find(body, b'"', begin, len(body) if brace < 0 else brace)
    stop = mark if mark >= 0 else brace
    if stop < 0:
        raise _endless()
    low = max(begin, stop - PIECE_BYTES)
    before = body[low:stop].rstrip(SPACES)
    if mark >= 0 and before.endswith(b","):
        before = before[:-1].rstrip(SPACES)
    elif mark >= 0:
        before = b""
    if before.endswith(b"]"):
        return low + len(before) - 1
    return _end_of_texts(body, begin)


def _end_of_texts(body: bytes, at: int) -> int:
    num_closed = 0
    while at < len(body):
        found = STEP.match(body, at, at + PIECE_BYTES)
        assert found is not None
        stop = found.end()
        if body[stop : stop + 1] == b"]":
            if END.match(body, stop):
                return stop
            num_closed += 1
            if num_closed > ARRAYS_OF_TEXTS.most:
                raise ARRAYS_OF_TEXTS.exceeded(way_out=IN_BINARY)
            stop += 1
        at = stop if stop > at else _end_of_text(body, at)
    raise _endless()


def _end_of_text(body: bytes, at: int) -> int:
    """Behind the text that begins there. Raises BadRequest."""
    at += 1
    while at < len(body):
        found = INSIDE.match(body, at, at + PIECE_BYTES)
        assert found is not None
        stop = found.end()
        if body[stop : stop + 1] == b'"':
            return stop + 1
        if stop == at:
            break
        at = stop
    raise _endless()


def _endless() -> BadRequest:
    return BadRequest("the request is not valid JSON: an array or a text in it does not end")


def _find(body: bytes, letter: bytes, begin: int, end: int) -> int:
    for start in range(begin, end, FIND_BYTES):
        found = body.find(letter, start, min(end, start + FIND_BYTES))
        if found >= 0:
            return found
    return -1


def without_long_texts(body: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """The JSON with a short text in the place of each long one, and the long ones by these, between their marks. Raises BadRequest."""
    kept: list[bytes] = []
    found: dict[str, memoryview] = {}
    at = end = 0
    while (begin := _find(body, b'"', end, len(body))) >= 0:
        end = _end_of_text(body, begin)
        if end - begin > LONG_BYTES:
            name = f"{_TOKEN}{len(found)}"
            found[name] = memoryview(body)[begin + 1 : end - 1]
            kept += (body[at:begin], b'"%b"' % name.encode())
            at = end
    kept.append(body[at:])
    return b"".join(kept), found


def in_pieces(text: memoryview) -> Iterator[str]:
    """What a text of JSON says, between its marks. Raises Unreadable."""
    at = 0
    while at < len(text):
        found = UNITS.match(text, at, min(at + PIECE_BYTES, len(text)))
        end = at if found is None else found.end()
        while at < end < len(text) and text[end] & 0xC0 == 0x80:  # in the middle of a character
            end -= 1
        piece = bytes(text[at:end])
        try:
            if not piece:
                raise Unreadable(piece)
            yield orjson.loads(b'"%b"' % piece)
        except orjson.JSONDecodeError:
            raise Unreadable(piece) from None
        at = end


def rows_of_numbers(body: bytes, array: Array) -> Iterator[list[Any]]:
    """The elements of an array without texts, some at a time: all numbers, or all lists of numbers. Raises Unreadable, or BadRequest."""
    at, end = array
    if _find(body, b"[", at, end) < 0:
        yield from map(_read, _pieces(body, array))
        return
    while True:
        stop = body.rfind(b"]", at, min(end, at + PIECE_BYTES)) + 1
        if stop:
            yield _read(body[at:stop])
        else:  # one list that is longer than a piece
            close = _find(body, b"]", at, end)
            begin = body.find(b"[", at, at + BEFORE_BYTES) + 1
            if close < 0 or not begin or body[at : begin - 1].strip(SPACES):
                raise Unreadable(body[at : at + BEFORE_BYTES])
            yield [[number for piece in _pieces(body, Array(begin, close)) for number in _read(piece)]]
            stop = close + 1
        after = body[stop : min(end, stop + BEFORE_BYTES)]
        rest = after.lstrip(SPACES)
        if not rest and stop + len(after) == end:
            return
        if rest[:1] != b",":
            raise Unreadable(after)
        at = stop + len(after) - len(rest) + 1


def _read(piece: bytes) -> list[Any]:
    try:
        read: list[Any] = orjson.loads(b"[%b]" % piece)
    except orjson.JSONDecodeError:
        raise Unreadable(piece) from None
    return read


def count(body: bytes, array: Array) -> int:
    """How many elements it has where these are numbers and none of its lists is empty."""
    read = np.frombuffer(body, np.uint8)[array.begin : array.end]
    pieces = (read[start : start + FIND_BYTES] for start in range(0, len(read), FIND_BYTES))
    num_commas = sum(int(np.count_nonzero(piece == ord(","))) for piece in pieces)
    return num_commas + 1 if num_commas or not is_empty(body, array) else 0


def _is_wrong(codes: NDArray[np.uint8], brackets: NDArray[np.intp], new: NDArray[np.intp]) -> bool:
    """Whether a bracket stands beside what it cannot. `new`: those that are not the first of `codes`."""
    kinds, before = codes[new], codes[new - 1]
    if ((kinds == CLOSES) & (before == COMMA)).any():
        return True
    if ((kinds == OPENS) & (before != COMMA) & (before != OPENS)).any():
        return True
    left = brackets[:-1] if len(brackets) and brackets[-1] == len(codes) - 1 else brackets
    kinds, behind = codes[left], codes[left + 1]
    return bool((((kinds == OPENS) & (behind == COMMA)) | ((kinds == CLOSES) & (behind == ELEMENT))).any())


def is_empty(body: bytes, array: Array) -> bool:
    """Whether it has no element, though there may be lists in it."""
    starts = range(array.begin, array.end, PIECE_BYTES)
    return not any(
        body[start : min(array.end, start + PIECE_BYTES)].translate(None, b"[]," + SPACES) for start in starts
    )


class _Brackets:
    """Whether brackets stand where JSON has them, between elements that others look at."""

    def __init__(self, *, are_texts: bool = False) -> None:
        self._last, self._depth = b"[", 0
        self._wrong = (b",,", b"dd") if are_texts else ()  # of numbers, simdjson finds these

    def feed(self, piece: bytes) -> None:
        """Raises Unreadable."""
        marks = self._last + piece.translate(CLASSES, SPACES)
        codes = np.frombuffer(marks, np.uint8)
        brackets = np.flatnonzero(codes - OPENS <= CLOSES - OPENS)  # of bytes, where less than 0 is much
        new = brackets[1:] if len(brackets) and brackets[0] == 0 else brackets
        depths = np.cumsum(np.where(codes[new] == OPENS, 1, -1))
        if len(depths):
            low, high = self._depth + int(depths.min()), self._depth + int(depths.max())
            NESTING.check(high + 3, way_out="no tensor has so many dimensions")
            self._depth += int(depths[-1])
            if low < 0:
                raise Unreadable(piece)
        if _is_wrong(codes, brackets, new) or any(pair in marks for pair in self._wrong):
            raise Unreadable(piece)
        self._last = marks[-1:]

    def finish(self) -> None:
        if self._depth or self._last == b",":
            raise Unreadable(b"")


def require_empty(body: bytes, array: Array) -> None:
    """Of an array that is: that its lists are lists. Raises Unreadable."""
    brackets = _Brackets(are_texts=True)
    for start in range(array.begin, array.end, PIECE_BYTES):
        brackets.feed(body[start : min(array.end, start + PIECE_BYTES)])
    brackets.finish()


def numbers(body: bytes, array: Array, kind: Kind, *, are_truths: bool = False) -> Iterator[NDArray[Any]]:
    """The elements of nested lists, row by row, in simdjson's `kind`: `d`, `i` or `u`, of 64 bits. Raises Unreadable."""
    parser = simdjson.Parser()
    brackets = None if _find(body, b"[", array.begin, array.end) < 0 else _Brackets()
    for piece in _pieces(body, array):
        if are_truths:
            piece = piece.replace(b"true", b" 1 ").replace(b"false", b" 0 ")  # not `-false`, which would be -0
        plain = piece
        if brackets is not None:
            brackets.feed(piece + b",")
            plain = piece.translate(WITHOUT_BRACKETS)
        try:
            document: Any = parser.parse(b"[%b]" % plain)
            values = np.frombuffer(document.as_buffer(of_type=kind), f"{kind.replace('d', 'f')}8")
        except (ValueError, TypeError, RuntimeError):
            values = _wide(plain, kind)
        document = None  # a parser reads nothing while anything of its last document is alive
        if len(values) != plain.count(b",") + 1:
            raise Unreadable(plain)
        yield values
    if brackets is not None:
        brackets.feed(b"d")  # behind the comma that followed the last piece
        brackets.finish()


def _wide(plain: bytes, kind: Kind) -> NDArray[Any]:
    """Of a piece that has whole numbers of more than 64 bits, which simdjson does not read as floats. Raises Unreadable."""
    if kind == "d":
        try:
            values = orjson.loads(b"[%b]" % plain)
        except orjson.JSONDecodeError:
            raise Unreadable(plain) from None
        if set(map(type, values)) <= {int, float}:
            return np.array(values, np.float64)
    raise Unreadable(plain)


def _pieces(body: bytes, array: Array) -> Iterator[bytes]:
    """Between commas, which are left out."""
    at, end = array
    while True:
        stop = min(at + PIECE_BYTES, end)
        if stop < end:
            comma = body.rfind(b",", at, stop)
            if comma < 0:
                comma = body.find(b",", stop, stop + SPACE_BYTES.most)
                if comma < 0 and end - stop > SPACE_BYTES.most:
                    raise SPACE_BYTES.exceeded(way_out="send it without")
            stop = end if comma < 0 or comma > end else comma
        yield body[at:stop]
        if stop == end:
            return
        at = stop + 1


def texts(body: bytes, array: Array) -> Iterator[list[Text]]:
    """The elements of an array of texts, nested or not, in UTF-8. Raises Unreadable, BadRequest, or TooLarge."""
    at, end = array
    brackets = _Brackets(are_texts=True)
    while at < end:
        stop = at
        window = min(end, at + PIECE_BYTES)
        while (found := STEP.match(body, stop, window)) is not None:
            stop = found.end()
            if stop == window or body[stop : stop + 1] != b"]":
                break
            stop += 1
        if stop == at:
            stop = _end_of_text(body, at)
            brackets.feed(TEXT)
            yield [_long(memoryview(body)[at:stop])]
        else:
            yield _short(body[at:stop], brackets)
        at = stop
    brackets.finish()


def _short(piece: bytes, brackets: _Brackets) -> list[Text]:
    inner = piece.strip(SPACES)
    begins, ends = inner[:1] == b",", len(inner) > 1 and inner[-1:] == b","
    try:  # nearly all are texts alone, without lists
        found: list[Text] = list(map(str.encode, orjson.loads(b"[%b]" % inner[begins : len(inner) - ends])))
    except (orjson.JSONDecodeError, TypeError):
        return _short_in_lists(piece, brackets)
    brackets.feed(b"," * begins + (TEXT if found else b"") + b"," * ends)
    return found


def _short_in_lists(piece: bytes, brackets: _Brackets) -> list[Text]:
    outside = STRINGS.sub(TEXT, piece)
    if outside.translate(None, TEXT + b"[]," + SPACES):
        raise Unreadable(without_brackets(piece))
    brackets.feed(outside)
    if b"[" in outside or b"]" in outside:
        piece = b",".join(STRINGS.findall(piece))
    try:
        return [text.encode() for text in orjson.loads(b"[%b]" % piece.strip(b"," + SPACES))]
    except orjson.JSONDecodeError:
        raise Unreadable(piece) from None


def without_brackets(piece: bytes) -> bytes:
    """With a comma between two elements still, and none around them."""
    return BRACKETS.sub(rb"\1", piece).strip(b"," + SPACES)


def _long(text: memoryview) -> Text:
    """One text, with its marks, that does not fit into a piece."""
    read = np.frombuffer(text, np.uint8)
    starts = range(0, len(read), PIECE_BYTES)
    if any((read[start : start + PIECE_BYTES] == ord("\\")).any() for start in starts):
        TEXT_BYTES.check(len(text), "a text in the request", IN_BINARY)
        try:
            whole: str = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise Unreadable(bytes(text)) from None
        return whole.encode()
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in starts:
            if (read[start : start + PIECE_BYTES] < ord(" ")).any():
                raise Unreadable(bytes(text))
            decoder.decode(text[start : start + PIECE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise Unreadable(bytes(text)) from None
    return text[1:-1]
