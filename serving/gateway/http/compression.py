"""Compressed bodies, both ways: gzip, and deflate, which in HTTP and in Triton is zlib's format.

Who may send how much is `body.py`'s. Answers are compressed only for clients that ask for it, and only where that is worth its time:
at level 1, because level 6 takes up to four times as long for 4 % less of JSON (float32, 40 kB; 2-core x86-64).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from io import BytesIO

from serving import errors
from serving.gateway.http.accept import preferences
from serving.protocol.memory import Claim

WINDOWS = {b"gzip": 31, b"deflate": 15}  # zlib's wbits
LEVEL = 1
PIECE_BYTES = 256 * 1024  # of a request, packed and unpacked
MIN_BYTES = (
    16 * 1024
)  # of 4 kB, compressing takes five times what all else takes for a small request; 8 kB less are 0.1 ms at 1 Gbit/s
SAMPLE_BYTES = 4096  # float32 in binary loses 7 %, at 11 ms per 400 kB: seen on so many bytes in 0.05 ms
WORTH = 0.8  # of its size, or less: then it is compressed; a guess, not measured


def coding_of(accept: bytes) -> bytes | None:
    """What of gzip and deflate an `Accept-Encoding` likes best, gzip where it likes both alike; None for neither, or identity more."""
    likes = {p.name: p.quality if p.parameters.keys() <= {"q"} else 0.0 for p in preferences(accept.decode("latin-1"))}
    others = likes.get("*", 0.0)
    best, coding = max((likes.get(name.decode(), others), name) for name in WINDOWS)
    if best <= 0 or best < likes.get("identity", 0.0):
        return None
    return coding


def compressed(parts: Sequence[bytes], coding: bytes) -> bytes | None:
    """The body, which comes in parts; None where that would not be clearly smaller. Takes 0.03 ms per kB of JSON, without Python's lock."""
    end = b""
    for part in reversed(parts):
        end = part[-(SAMPLE_BYTES - len(end)) :] + end
        if len(end) == SAMPLE_BYTES:
            break
    if len(_deflate([end], coding)) > WORTH * len(end):
        return None
    small = _deflate(parts, coding)
    return small if len(small) < sum(map(len, parts)) else None


def _deflate(parts: Sequence[bytes], coding: bytes) -> bytes:
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOWS[coding])
    return b"".join([*map(deflate.compress, parts), deflate.flush()])


def content_coding(value: bytes) -> bytes | None:
    """What `Content-Encoding` says in small letters; None where that is nothing: it is empty, or a list of `identity` and empty members."""
    codings = [name for part in value.lower().split(b",") if (name := part.strip()) not in (b"", b"identity")]
    return b", ".join(codings) or None


def decompress(body: bytes, encoding: bytes, limit: int, claim: Claim | None = None) -> bytes:
    """A gzip or deflate (zlib) body, piece by piece, as `content_coding` says; each is claimed before the next is made.

    Raises Unsupported, BadRequest, Overloaded, or TooLarge past `limit` bytes.
    """
    bits = WINDOWS.get(encoding)
    if bits is None:
        unknown = errors.Unsupported(
            f"Content-Encoding {encoding[:40].decode('latin-1')!r} is not offered; gzip and deflate are"
        )
        unknown.receipt = [(b"accept-encoding", b"gzip, deflate")]
        raise unknown
    inflate = zlib.decompressobj(wbits=bits)
    plain = BytesIO()  # grows in place, and gives away what it holds
    size = claimed = start = 0
    try:
        for start in range(0, len(body), PIECE_BYTES):
            rest = body[start : start + PIECE_BYTES]
            while rest:
                size += plain.write(inflate.decompress(rest, PIECE_BYTES))
                if size > limit:
                    raise errors.TooLarge(
                        f"the body has more than {limit} bytes once decompressed, the most that is taken here"
                    )
                if claim is not None:
                    claim.take(size - claimed)
                    claimed = size
                rest = inflate.unconsumed_tail
            if inflate.eof and start + PIECE_BYTES < len(body):
                break
        plain.write(inflate.flush())
    except zlib.error as error:
        raise errors.BadRequest(f"the body is not valid {encoding.decode()}: {error}") from None
    if start + PIECE_BYTES < len(body) or not inflate.eof or inflate.unused_data:
        raise errors.BadRequest(f"the body is not one whole {encoding.decode()} stream")
    return plain.getvalue()
