"""OpenAI's bodies, sans-I/O: what a client asks of `/v1/embeddings`, what it is answered, what an error looks like.

Types and codes of errors are those that OpenAI's own API gives, so that clients that look at them decide as they would there; what it
has no code for has the word of `Tandem-Error`. What a text is to a model is not known here. Rules: every error names the field and the
way out; no element of a vector or a list is touched in Python, because a request may hold a million.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from serving import errors
from serving.documents.nearest import nearest
from serving.protocol.budget import HEAD_BYTES, TOKEN_BYTES, outside_texts, require_clear, require_few_values
from serving.protocol.json_arrays import Array, Unreadable, cut, in_pieces, rows_of_numbers, without_long_texts
from serving.protocol.json_arrays import texts as texts_of

INVALID = "invalid_request_error"
SERVER = "server_error"
# class -> (`type`, `code`), for its subclasses too; None where OpenAI has no code either
ERRORS: dict[type[errors.RequestError], tuple[str, str | None]] = {
    errors.BadRequest: (INVALID, None),
    errors.MethodNotAllowed: (INVALID, "method_not_supported"),
    errors.TooLarge: (INVALID, "too_large"),
    errors.Unauthenticated: (INVALID, "invalid_api_key"),
    errors.Forbidden: (INVALID, "insufficient_permissions"),
    errors.NotFound: (INVALID, "model_not_found"),
    errors.NoSuchPath: (INVALID, None),
    errors.RateLimited: ("rate_limit_error", "rate_limit_exceeded"),
    errors.QuotaExceeded: ("insufficient_quota", "insufficient_quota"),
    errors.Overloaded: (SERVER, "overloaded"),
    errors.NotReady: (SERVER, "not_ready"),
    errors.UpstreamLost: (SERVER, "upstream_lost"),
    errors.DeadlineExpired: (SERVER, "deadline_expired"),
    errors.Unsupported: (SERVER, "unsupported"),
    errors.Internal: (SERVER, "internal"),
}
FIELDS = ("model", "input", "encoding_format", "dimensions", "user", "truncate")
FORMATS = ("float", "base64")
HERE_BYTES = 128 * 1024  # parsed in one go: 0.5 ms
AT_ONCE = 2**15  # numbers of a list that are looked at in one go: 1 ms
VALUES_PER_TEXT = 3  # as they are counted: it, or its array of tokens, and what stands around them
OTHER_VALUES = 100  # those of all fields but `input`: 40, and any spare
INPUTS = "a text, an array of texts, an array of token ids, or an array of arrays of token ids"


def error_body(error: errors.RequestError) -> bytes:
    kind, code = next(ERRORS[cls] for cls in type(error).__mro__ if cls in ERRORS)
    return orjson.dumps({"error": {"message": str(error), "type": kind, "param": error.param, "code": code}})


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """Either `texts` or `ids` (tokens of the model's own tokenizer), at least one of them, none empty.

    `cut`: texts that are too long are cut. Whether there are so many `dimensions` the model knows.
    """

    model: str
    texts: list[str] | None
    ids: list[list[int]] | None
    is_base64: bool
    dimensions: int | None
    cut: bool


def read_embeddings(body: bytes, max_texts: int, max_tokens: int) -> EmbeddingsRequest:
    """The body of `POST /v1/embeddings`. Raises BadRequest with the field in `param`."""
    most_bytes = HEAD_BYTES.most + TOKEN_BYTES.most * max_tokens
    if len(body) > most_bytes:
        raise errors.TooLarge(
            f"the body has {len(body)} bytes; at most {most_bytes} are taken, {TOKEN_BYTES.most} for each of {max_tokens} tokens and 1 MiB",
            param="input",
        )
    most = max_tokens + VALUES_PER_TEXT * max_texts + OTHER_VALUES
    require_few_values(body, most, f"send {max_texts} texts and {max_tokens} tokens at most")
    given = _Given(body)
    try:
        request = orjson.loads(given.rest)
    except orjson.JSONDecodeError as error:
        raise errors.BadRequest(f"the request is not valid JSON: {error}") from None
    if not isinstance(request, dict):
        raise errors.BadRequest('the request must be a JSON object, such as {"model": "…", "input": "…"}')
    require_clear(given.rest, request)
    for name in request:
        if name not in FIELDS:
            _refuse(name[:100], f"unknown field '{name[:100]}'{nearest(name[:100], FIELDS)}")
    model = request.get("model")
    if not isinstance(model, str) or not model:
        _refuse("model", "'model' must be the name of a model; GET /v1/models lists them")
    encoding_format = request.get("encoding_format")
    if encoding_format is not None and encoding_format not in FORMATS:
        _refuse("encoding_format", "'encoding_format' must be 'float' or 'base64'")
    dimensions = request.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        _refuse("dimensions", "'dimensions' must be a whole number, 1 or more")
    cut = request.get("truncate")
    if cut is not None and type(cut) is not bool:
        _refuse("truncate", "'truncate' must be true or false")
    if not isinstance(request.get("user", ""), str | None):
        _refuse("user", "'user' must be a text")
    texts, ids = given.inputs(request.get("input"), max_texts)
    return EmbeddingsRequest(model, texts, ids, encoding_format == "base64", dimensions, bool(cut))


class _Given:
    """A body whose long texts and whose array `input`, where it is long, are read apart, in pieces. Raises BadRequest.

    `rest`: JSON, with short texts in the places of these.
    """

    def __init__(self, body: bytes) -> None:
        self.rest = self._body = body
        self._long: dict[str, memoryview] = {}
        self._arrays: dict[str, Array] = {}
        if len(body) > HERE_BYTES:
            self._body, self._long = without_long_texts(body)
            self.rest, self._arrays = cut(self._body, b"input")

    def inputs(self, said: Any, max_texts: int) -> tuple[list[str] | None, list[list[int]] | None]:
        """`said`: the member `input` of `rest`."""
        try:
            if isinstance(said, str) and said in self._arrays:
                said = self._elements(self._arrays[said], max_texts)
            elif isinstance(said, str):
                said = self._whole(said)
        except Unreadable:
            _refuse("input", f"'input' is not valid JSON, or not {INPUTS}")
        return _inputs(said, max_texts)

    def _whole(self, text: str) -> str:
        return "".join(in_pieces(self._long[text])) if text in self._long else text

    def _elements(self, array: Array, max_texts: int) -> list[Any]:
        """Raises Unreadable."""
        found: list[Any] = []
        has_texts = self._body.find(b'"', array.begin, array.end) >= 0
        if has_texts and any(b"[" in piece for piece in outside_texts(self._body[array.begin : array.end])):
            raise Unreadable(b"")
        for some in texts_of(self._body, array) if has_texts else rows_of_numbers(self._body, array):
            if has_texts:
                some = [self._whole(bytes(text).decode()) for text in some]
            elif set(map(type, some)) not in ({int}, {list}, set()):
                raise Unreadable(b"")
            found += some
            if len(found) > max_texts and type(found[0]) is not int:
                _refuse_more(max_texts)
        return found


def _inputs(given: Any, max_texts: int) -> tuple[list[str] | None, list[list[int]] | None]:
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        _refuse("input", f"'input' must be {INPUTS}")
    if not given:
        _refuse("input", f"'input' is empty; it must be {INPUTS}")
    kinds = set[type]().union(*(map(type, given[at : at + AT_ONCE]) for at in range(0, len(given), AT_ONCE)))
    if kinds == {int}:
        given, kinds = [given], {list}
    if len(given) > max_texts:
        _refuse_more(max_texts)
    if kinds == {str}:
        if "" in given:
            _refuse("input", f"'input' has an empty text, number {given.index('')}; leave it out")
        return given, None
    if kinds != {list}:
        _refuse("input", f"'input' must be {INPUTS}, and not mixed")
    for index, row in enumerate(given):
        if not row or not all(set(map(type, row[at : at + AT_ONCE])) == {int} for at in range(0, len(row), AT_ONCE)):
            what = "has" if row else "is empty; it must have"
            _refuse("input", f"'input' number {index} {what} {'something else than ' if row else ''}token ids")
    return None, given


def _refuse_more(max_texts: int) -> NoReturn:
    _refuse("input", f"'input' has more than {max_texts} texts, the most that are taken at once; send several requests")


def _refuse(param: str, message: str) -> NoReturn:
    raise errors.BadRequest(message, param=param)


def embeddings_body(model: str, vectors: NDArray[np.float32], num_tokens: int, *, is_base64: bool) -> bytes:
    """The answer. `vectors`: float32 [n, size], in the order of the request; `num_tokens`: those that the model saw."""
    if is_base64:
        rows = np.ascontiguousarray(vectors, "<f4")
        data = b",".join(
            b'{"object":"embedding","index":%d,"embedding":"%b"}' % (index, binascii.b2a_base64(row, newline=False))
            for index, row in enumerate(rows)
        )
    else:
        rows = np.ascontiguousarray(vectors)
        data = b",".join(
            b'{"object":"embedding","index":%d,"embedding":%b}'
            % (index, orjson.dumps(row, None, orjson.OPT_SERIALIZE_NUMPY))
            for index, row in enumerate(rows)  # each by itself, so that other threads have their turn between
        )
    return b'{"object":"list","data":[%b],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
        data,
        orjson.dumps(model),
        num_tokens,
        num_tokens,
    )


def models_body(created: dict[str, int]) -> dict[str, Any]:
    """The answer of `GET /v1/models`: name -> when it was made, in seconds since 1970."""
    return {"object": "list", "data": [model_body(name, at) for name, at in created.items()]}


def model_body(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "tandem"}
