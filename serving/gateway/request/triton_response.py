"""What an answer of Triton's means: whose fault an error was, and what the client is told.

Triton says 500 for mistakes of clients and for processes that are gone, and its texts name what is internal. `inference.py` decides which
answers are tried again elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from codecs import getincrementaldecoder

import orjson

from serving import errors
from serving.gateway.fleet.upstream import Answer
from serving.gateway.request.dispatch import InferRequest
from serving.gateway.request.route import Destination
from serving.protocol import v2

REQUEST_ID = re.compile(rb"\[request id: [^\]]*\]")  # the client's words in Triton's text
# What Triton 2.51 says, with 500, of JSON that it cannot read: the client's mistake, whether or not `explain` finds it.
UNREADABLE = re.compile(
    r"failed to parse the request JSON|Unable to parse '|attempt to access JSON|Cannot get length of JSON"
)
PATHS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")
TRACEBACK = re.compile(r"(?:;|,)?\s+At:\s.*", re.DOTALL)  # of a Python backend: files and lines
MAX_EXPLAINED_BYTES = (
    4 * 2**20
)  # reading so much JSON takes 40 ms, in which nobody else is answered; Triton's own text is told of more
NAN, INFINITY = NO_NUMBERS = (b"NaN", b"Infinity")  # as Triton writes them into JSON
# As Triton writes an output that may hold them, up to its first element. These bytes cannot stand inside a JSON string.
FLOATS = re.compile(
    rb'"name":"((?:[^"\\]|\\.)*)","datatype":"FP(?:32|64)","shape":\[[\d,]*\](?:,"parameters":\{[^{}]*\})?,"data":\['
)
DATA = b'"data":['  # the same
DESCRIPTION_BYTES = 16 * 1024  # of an output, before its elements; a guess at what nobody needs
# Of an answer's JSON, looked through before others have their turn: in 0.1 to 0.25 ms (AMD EPYC).
IN_ONE_GO_BYTES = 128 * 1024
NAME_WITHIN_BYTES = 8 * 2**20  # of an answer, before which only the request's own id may stand, escaped
UNNAMED_DATATYPE = "invalid datatype for input"  # Triton's words for `float32`; ours name it and those that there are
DIED = re.compile(rb"Stub process|is not healthy|[Ff]ailed to (?:get|receive) .*stub")


def has_died(answer: Answer) -> bool:
    """Whether it says that the model's process is gone."""
    return answer.status == 500 and DIED.search(REQUEST_ID.sub(b"", answer.body)) is not None


def error_of(answer: Answer, request: InferRequest, destination: Destination) -> errors.RequestError:
    """What a status other than 200 stands for, with a text of ours. A model that is away is told by `infer.py`."""
    name = request.route.name
    text = _text(answer.body, destination.name, name)
    is_unclear = answer.status == 500 or text.startswith(UNNAMED_DATATYPE)
    if is_unclear and request.header_length != 0 and len(request.head) <= MAX_EXPLAINED_BYTES:
        mistake = v2.explain(request.head, binary=request.header_length is not None)
        if mistake is not None:
            return mistake
    if answer.status == 500 and UNREADABLE.match(text):
        return errors.BadRequest(text)
    if answer.status == 404 and request.route.versioned:
        return errors.NoSuchModel(f"'{name}' has no such version", model=name)
    if answer.status == 501:
        return errors.Unsupported(text)
    if answer.status < 500:
        return errors.BadRequest(text)
    return errors.Internal(f"the model failed on this request: {text}")


def client_body(answer: Answer, rename: tuple[bytes, bytes] | None) -> tuple[bytes, int | None]:
    """An answer with 200 under the name that was asked for, and the length of its JSON part where tensors follow.

    Triton writes BYTES as they are, and no reader takes that for JSON where it is not UTF-8. The bytes `"model_name":"…"` cannot stand
    inside a JSON string (its quotes would be escaped), and the JSON part comes first.
    Raises BadRequest for what JSON cannot hold: the client asked for it so.
    """
    _, length, body, _ = answer
    text = body if length is None else body[:length]
    # A byte is found five times as quickly as a word, and most answers have neither.
    if not text.isascii() or (b"N" in text and NAN in text) or (b"I" in text and INFINITY in text):
        check = _JsonCheck()
        check.feed(text)
        check.finish()
    if rename is None or (at := text.find(rename[0])) < 0:
        return body, length
    old, new = rename
    return body[:at] + new + body[at + len(old) :], None if length is None else length + len(new) - len(old)


async def long_client_body(answer: Answer, rename: tuple[bytes, bytes] | None) -> tuple[list[bytes], int | None]:
    """The same in pieces, between which others have their turn; nothing is copied but what has the name."""
    parts, length = [answer.start, *answer.rest], answer.header_length
    check, left = _JsonCheck(), sum(map(len, parts)) if length is None else length
    for part in parts:
        for start in range(0, min(len(part), left), IN_ONE_GO_BYTES):
            check.feed(part[start : min(start + IN_ONE_GO_BYTES, left)])
            await asyncio.sleep(0)
        left = max(0, left - len(part))
    check.finish()
    if rename is None:
        return parts, length
    old, new = rename
    begin = b""
    for number, part in enumerate(parts, 1):
        searched, begin = max(0, len(begin) - len(old)), begin + part
        if (at := begin.find(old, searched, length)) >= 0:
            renamed = begin[:at] + new + begin[at + len(old) :]
            return [renamed, *parts[number:]], None if length is None else length + len(new) - len(old)
        if len(begin) > NAME_WITHIN_BYTES or (length is not None and len(begin) >= length):
            break
    return parts, length


class _JsonCheck:
    """Whether an answer's JSON, as it comes piece by piece, is UTF-8 and its numbers are numbers. Raises BadRequest."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")()
        self._kept = b""  # of what came before, as far as something may begin there
        self._output: bytes | None = None  # of floats, whose elements come now

    def feed(self, piece: bytes) -> None:
        try:
            self._decoder.decode(piece)
        except UnicodeDecodeError:
            raise _no_utf8() from None
        self._require_numbers(self._kept + piece)

    def finish(self) -> None:
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise _no_utf8() from None

    def _require_numbers(self, text: bytes) -> None:
        """Texts may have the words, so that only outputs of floats are looked at."""
        at = 0
        while True:
            if self._output is not None:
                end = text.find(b"]", at)
                word = next((word for word in NO_NUMBERS if text.find(word, at, end if end >= 0 else None) >= 0), None)
                if word is not None:
                    raise errors.BadRequest(
                        f"output '{self._output.decode()}' holds {word.decode()}, which JSON has not; ask for it with the parameter "
                        "binary_data: true"
                    )
                if end < 0:
                    self._kept = text[max(at, len(text) - len(NO_NUMBERS[-1])) :]
                    return
                at, self._output = end + 1, None
            begins = text.find(DATA, at)
            if begins < 0:
                self._kept = text[max(at, len(text) - DESCRIPTION_BYTES) :]
                return
            begins += len(DATA)
            floats = FLOATS.search(text, max(at, begins - DESCRIPTION_BYTES), begins)
            at, self._output = begins, None if floats is None else floats[1]


def _no_utf8() -> errors.BadRequest:
    return errors.BadRequest(
        "an output of BYTES is not UTF-8, so it has no JSON form; ask for it with the parameter binary_data: true"
    )


def _text(body: bytes, served: str, name: str) -> str:
    """Triton's message without what is internal: the variant's name, request ids, paths."""
    try:
        text = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "Triton gave no reason"
    if not isinstance(text, str):
        return "Triton gave no reason"
    text = TRACEBACK.sub("", re.sub(r"\[request id: [^\]]*\]\s*", "", text))
    text = re.sub(rf"(?<![\w.-]){re.escape(served)}(?=_\d|(?![\w-]))", lambda _: name, text)
    return PATHS.sub("…", text)[:500]
