"""A request's body off the wire, within limits, decompressed.

What the bytes mean is the protocols'. Rule: a size is looked at before what it is the size of is kept.
"""

from __future__ import annotations

import zlib

from serving import errors
from serving.gateway.http.client import Receive

Chunks = list[bytes]


async def read_body(headers: dict[bytes, bytes], receive: Receive, limit: int) -> Chunks | None:
    """The body in the pieces it came in, at least one; None if the client left.

    `limit`: bytes, of the body as it comes and of what it holds once decompressed. Raises TooLarge, BadRequest or Unsupported.
    """
    declared = headers.get(b"content-length")
    if declared is not None and int(declared) > limit:
        raise errors.TooLarge(f"the body has {int(declared)} bytes; at most {limit} are taken here")
    message = await receive()
    if message["type"] != "http.request":
        return None
    chunks = [message.get("body", b"")]
    size = len(chunks[0])
    while message.get("more_body", False):
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise errors.TooLarge(f"the body has more than {limit} bytes, the most that is taken here")
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding != b"identity":
        return [decompress(b"".join(chunks), encoding, limit)]
    return chunks


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """A gzip or deflate (zlib) body. Raises Unsupported, BadRequest, or TooLarge past `limit` bytes."""
    bits = {b"gzip": 31, b"deflate": 15}.get(encoding.lower())
    if bits is None:
        raise errors.Unsupported(
            f"Content-Encoding {encoding[:40].decode('latin-1')!r} is not offered; gzip and deflate are"
        )
    inflate = zlib.decompressobj(wbits=bits)
    try:
        plain = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise errors.BadRequest(f"the body is not valid {encoding.decode()}: {error}") from None
    if len(plain) > limit:
        raise errors.TooLarge(f"the body has more than {limit} bytes once decompressed, the most that is taken here")
    if not inflate.eof or inflate.unused_data:
        raise errors.BadRequest(f"the body is not one whole {encoding.decode()} stream")
    return plain
