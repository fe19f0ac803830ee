"""What a client's Accept-Encoding means, what is worth compressing, and which bodies are whole."""

from __future__ import annotations

import gzip
import os
import zlib

import pytest

from serving.errors import BadRequest
from serving.gateway.http.compression import MIN_BYTES, coding_of, compressed, decompress


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"GZIP", b"gzip"),
        (b"deflate", b"deflate"),
        (b"gzip, deflate, br", b"gzip"),
        (b"gzip;q=0.5, deflate;q=0.8", b"deflate"),
        (b"gzip ; q=0.5 ,deflate; q=0.5", b"gzip"),
        (b"*", b"gzip"),
        (b"*;q=0", None),
        (b"gzip;q=0, *", b"deflate"),
        (b"gzip;q=0", None),
        (b"gzip;q=0.0, deflate;q=0", None),
        (b"identity", None),
        (b"identity;q=0, gzip;q=0.1", b"gzip"),
        (b"identity;q=0.5, gzip;q=0.1", None),
        (b"br", None),
        (b"", None),
        (b",,;", None),
        (b"gzip;q=", None),
        (b"gzip;q=nan", None),
        (b"gzip;q=2", None),
        (b"gzip;x=1", None),
        (b"x-gzip", None),
    ],
)
def test_the_best_liked_coding_is_taken(accept: bytes, coding: bytes | None) -> None:
    assert coding_of(accept) == coding


def test_only_what_becomes_clearly_smaller_is_compressed() -> None:
    text = b'"data":[0.123456,' * 4000
    small = compressed([text], b"gzip")
    assert small is not None
    assert gzip.decompress(small) == text
    assert zlib.decompress(compressed([text], b"deflate") or b"") == text
    assert compressed([text[:1000], text[1000:-3], text[-3:]], b"gzip") == small
    assert compressed([os.urandom(MIN_BYTES)], b"gzip") is None
    assert compressed([text + os.urandom(4096)], b"gzip") is None  # it looks at the end, where binary tensors are
    assert compressed([text, os.urandom(96), os.urandom(4000)], b"gzip") is None


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
def test_a_body_that_is_not_one_whole_stream_is_the_clients_error(coding: bytes) -> None:
    pack = gzip.compress if coding == b"gzip" else zlib.compress
    for text in (b"", b"a", os.urandom(200_000)):
        whole = pack(text)
        assert decompress(whole, coding, len(text)) == text
        for body in (b"", whole[:-1], whole[:1], whole + b"\0", whole + whole, b"plain"):
            with pytest.raises(BadRequest):
                decompress(body, coding, 10**6)
