"""The bodies of /v1/classify: which images does this request hold, how many labels does it want, and what is the answer to it?

JSON with base64, a form of files (`multipart/form-data`), or one image file as the whole body. Whether an image is one is told when it is
decoded, so that a bad one fails alone; here only the request itself is refused. Rule: nothing is fetched, whatever a client writes where
an image should be.
"""

from __future__ import annotations

import binascii
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import orjson
from numpy.typing import NDArray
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from serving.documents.nearest import nearest
from serving.errors import BadRequest, TooLarge
from serving.preprocessing.containers import BadImage
from serving.protocol.budget import HEAD_BYTES, require_clear, require_few_values
from serving.protocol.json_arrays import LONG_BYTES, Unreadable, in_pieces, without_long_texts

DEFAULT_TOP_K = 5
IMAGE, TOP_K = "image", "top_k"
KEYS = ("images", TOP_K)  # of a JSON body
IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp")
MAX_HEADERS = 8  # of a part of a form; curl and browsers send two
MAX_HEADER_BYTES = 1024  # of each; a file's name is the longest thing there, and file systems end at 255
MAX_QUERY_FIELDS = 8  # one has a meaning
MAX_VALUES = (
    10_000  # of a JSON body, told before it is parsed: a hundred images are 300, and 10,000 are parsed in 5 ms at most
)
HERE_BYTES = 128 * 1024  # parsed in one go in 0.3 ms
_MAX_QUOTED = 40  # characters of a client's own words in a message

_LOG = logging.getLogger("python_multipart")  # warns of every wrong form: strangers would fill the disk
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False

Image = (
    bytes | str | memoryview | None
)  # a file; base64, read or as JSON has it; None where JSON has something that is neither


@dataclass(frozen=True, slots=True)
class Request:
    """`top_k` None: the client did not say."""

    images: Sequence[Image]
    top_k: int | None


def read(body: bytes, content_type: bytes | None, query: bytes, max_images: int) -> Request:
    """Raises BadRequest for what is wrong with the request and not with one of its images."""
    asked = _query(query)
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        request = _form(body, options.get(b"boundary", b""), max_images)
    elif _is_image(body, kind):
        request = Request([body], None)
    else:
        request = _json(body, kind, max_images)
    if request.top_k is not None and asked is not None and request.top_k != asked:
        raise BadRequest(f"top_k is {request.top_k} in the body and {asked} in the query; say it once")
    return Request(request.images, asked if request.top_k is None else request.top_k)


def file_of(image: Image) -> bytes:
    """The bytes of one image. Raises BadImage."""
    if image is None:
        raise BadImage("is no text; send the file's bytes in base64")
    if isinstance(image, str):
        image = _decoded(image)
    elif isinstance(image, memoryview):
        image = _decoded_in_pieces(image)
    if not image:
        raise BadImage("is empty")
    return image


# -- kinds of body ----------------------------------------------------------------------------------------------------


def _is_image(body: bytes, kind: bytes) -> bool:
    """By the type that is said, or by how the file begins: `curl --data-binary @FILE` says that it is a form."""
    if kind.startswith(b"image/"):
        return True
    return body.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n")) or (body[:4] == b"RIFF" and body[8:12] == b"WEBP")


def _json(body: bytes, kind: bytes, max_images: int) -> Request:
    if not body:
        raise BadRequest(f"the request has no body; {_WAYS}")
    require_few_values(body, MAX_VALUES, f"{_WAYS}; {max_images} images at most")
    body, long = (body, {}) if len(body) <= HERE_BYTES else without_long_texts(body)
    most = HEAD_BYTES.most + max_images * LONG_BYTES
    if len(body) > most:
        raise TooLarge(f"the JSON body has {len(body)} bytes beside long texts; at most {most} are taken")
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        told = f" ({kind[:_MAX_QUOTED].decode('latin-1')!r})" if kind not in (b"", b"application/json") else ""
        raise BadRequest(f"the body{told} is neither an image nor JSON ({error}); {_WAYS}") from None
    if not isinstance(said, dict):
        raise BadRequest(f"the JSON body is no object; {_WAYS}")
    require_clear(body, said)
    if unknown := [key for key in said if key not in KEYS]:
        raise BadRequest(f"unknown key {unknown[0][:_MAX_QUOTED]!r}{nearest(unknown[0][:_MAX_QUOTED], KEYS)}")
    images = said.get("images")
    if not isinstance(images, list) or not images:
        raise BadRequest("'images' must be an array of one or more files in base64")
    _check_number(len(images), max_images)
    return Request([long.get(i, i) if isinstance(i, str) else None for i in images], _top_k_of_json(said.get(TOP_K)))


_WAYS = 'send {"images": ["<base64>"]}, files as the field "image" of multipart/form-data, or one JPEG, PNG or WebP as the whole body'


def _decoded(text: str) -> bytes:
    """Base64 as RFC 4648 has it, bare or in a data: URI, as browsers make it."""
    if text.startswith(("http:", "https:", "file:", "ftp:", "s3:", "gs:")):
        raise BadImage("is a URL, and URLs are not fetched; send the file's bytes in base64")
    if text.startswith("data:"):
        text = _without_head(text)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # binascii's own error is one
        raise BadImage(NO_BASE64) from None


NO_BASE64 = "is not base64 (RFC 4648, its plain alphabet, padded, without line breaks)"


def _without_head(uri: str) -> str:
    head, comma, text = uri.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadImage("is a data: URI that is not base64; begin it with data:image/jpeg;base64,")
    return text


def _decoded_in_pieces(text: memoryview) -> bytes:
    """Of a long text: one call would hold Python's lock for 3.5 ms per MiB."""
    decoded: list[bytes] = []
    left = ""
    is_first = True
    try:
        for piece in in_pieces(text):
            if is_first and piece.startswith("data:"):
                piece = _without_head(piece)
            is_first = False
            left += piece
            whole = len(left) - 4 - len(left) % 4
            if "=" in left[:whole]:  # which only the last characters are
                raise BadImage(NO_BASE64)
            decoded.append(binascii.a2b_base64(left[:whole], strict_mode=True))
            left = left[whole:]
        decoded.append(binascii.a2b_base64(left, strict_mode=True))
    except (ValueError, Unreadable):
        raise BadImage(NO_BASE64) from None
    return b"".join(decoded)


# -- forms ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Form:
    """What the parser found, part by part."""

    body: bytes
    max_images: int
    images: list[bytes] = field(default_factory=list)
    top_k: str | None = None
    name: str | None = None  # of the part that is being read; None before its headers are over
    header: bytes = b""
    disposition: bytes = b""
    value: BytesIO = field(default_factory=BytesIO)  # not a list of pieces: each may be a byte
    is_whole: bool = False

    def part_begin(self) -> None:
        self.name, self.disposition, self.value = None, b"", BytesIO()

    def header_begin(self) -> None:
        self.header = b""

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end].lower()

    def header_value(self, data: bytes, start: int, end: int) -> None:
        if self.header == b"content-disposition":
            self.disposition += data[start:end]

    def headers_finished(self) -> None:
        self.name = parse_options_header(self.disposition)[1].get(b"name", b"").decode("utf-8", "replace")
        if self.name not in (IMAGE, TOP_K):
            known = (IMAGE, TOP_K)
            raise BadRequest(f"unknown field {self.name[:_MAX_QUOTED]!r}{nearest(self.name[:_MAX_QUOTED], known)}")
        if self.name == IMAGE:
            _check_number(len(self.images) + 1, self.max_images, at_least=True)
        elif self.top_k is not None:
            raise BadRequest("the field 'top_k' came more than once")

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self.value.write(data[start:end])

    def part_end(self) -> None:
        value = self.value.getvalue()
        if self.name == IMAGE:
            self.images.append(value)
        else:
            self.top_k = value[:_MAX_QUOTED].decode("latin-1")

    def end(self) -> None:
        self.is_whole = True


def _form(body: bytes, boundary: bytes, max_images: int) -> Request:
    if not boundary:
        raise BadRequest("Content-Type multipart/form-data has no boundary; let your HTTP library write that header")
    form = _Form(body, max_images)
    callbacks: Any = {
        f"on_{name}": getattr(form, name)
        for name in (
            *("part_begin", "header_begin", "header_field", "header_value", "headers_finished"),
            *("part_data", "part_end", "end"),
        )
    }
    try:
        parser = MultipartParser(boundary, callbacks, max_header_count=MAX_HEADERS, max_header_size=MAX_HEADER_BYTES)
        for start in range(0, len(body), HERE_BYTES):
            parser.write(body[start : start + HERE_BYTES])
    except FormParserError as error:
        raise BadRequest(f"the body is not the form that its Content-Type says: {error}") from None
    if not form.is_whole:
        raise BadRequest("the form is cut off: its last boundary is missing")
    if not form.images:
        raise BadRequest("the form has no field 'image'; send each file as one")
    return Request(form.images, None if form.top_k is None else _top_k_of_text(form.top_k))


# -- numbers ----------------------------------------------------------------------------------------------------------


def _query(query: bytes) -> int | None:
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise BadRequest(f"the query has more than {MAX_QUERY_FIELDS} fields; top_k is the only one") from None
    for name, _ in fields:
        if name != TOP_K:
            raise BadRequest(f"unknown query field {name[:_MAX_QUOTED]!r}; top_k is the only one")
    if len(fields) > 1:
        raise BadRequest("top_k stands more than once in the query")
    return _top_k_of_text(fields[0][1]) if fields else None


def _top_k_of_text(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text)):
        raise BadRequest(f"top_k is {text[:_MAX_QUOTED]!r}, want a whole number, 1 or more")
    return int(text)


def _top_k_of_json(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise BadRequest(f"top_k is {orjson.dumps(value).decode()[:_MAX_QUOTED]}, want a whole number, 1 or more")
    return value


def _check_number(number: int, max_images: int, *, at_least: bool = False) -> None:
    if number > max_images:
        more = "or more " if at_least else ""
        raise BadRequest(
            f"the request has {number} {more}images; at most {max_images} are taken at once, so send it in parts"
        )


# -- answers ----------------------------------------------------------------------------------------------------------


def best(scores: NDArray[np.float32], top_k: int, labels: Sequence[str] | None) -> dict[str, Any]:
    """One image's entry: the `top_k` highest of float32 [classes], of equal ones the first. `labels` None: they have no names."""
    least = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    candidates = np.flatnonzero(scores >= least)
    order = candidates[np.argsort(-scores[candidates], kind="stable")][:top_k]
    return {
        "labels": [
            {"label": None if labels is None else labels[index], "index": index, "score": scores[index]}
            for index in order.tolist()
        ]
    }


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Along the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float32] = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities


def body(model: str, results: Sequence[Mapping[str, Any]]) -> bytes:
    """The answer. Where no image could be classified it says so in `error` too, as every error of the gateway does."""
    answer: dict[str, Any] = {"model": model, "results": results}
    bad = [result["error"] for result in results if "error" in result]
    if len(bad) == len(results):
        why = bad[0] if len(bad) == 1 else f"none of {len(bad)} images can be classified; {bad[0]}"
        answer = {"error": why, **answer}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
