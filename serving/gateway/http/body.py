"""A request's body off the wire, within limits, decompressed.

What the bytes mean is the protocols'. Rule: a size is looked at before what it is the size of is kept.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf

from serving import errors
from serving.gateway.http.client import Receive
from serving.gateway.http.compression import content_coding, decompress
from serving.gateway.request.headers import wait_s
from serving.gateway.threads import Threads

Chunks = list[bytes]
HERE_BYTES = 16 * 1024  # compressed, of numbers in JSON: takes 0.1 ms, as much as handing it to a thread


async def read_body(headers: dict[bytes, bytes], receive: Receive, limit: int, preparing: Threads) -> Chunks | None:
    """The body in the pieces it came in, at least one; None if the client left.

    `limit`: bytes, of the body as it comes and of what it holds once decompressed. What is compressed and not small is decompressed
    on a thread of `preparing`. Raises TooLarge, BadRequest, Unsupported,
    DeadlineExpired where `Tandem-Deadline-Ms` is over before its end, or what the connection finds wrong with it.
    """
    declared = headers.get(b"content-length")
    if declared is not None and int(declared) > limit:
        raise errors.TooLarge(f"the body has {int(declared)} bytes; at most {limit} are taken here")
    message = await receive()
    if message["type"] != "http.request":
        return None
    chunks = [message.get("body", b"")]
    if message.get("more_body", False):
        asked_s = wait_s(headers.get(b"tandem-deadline-ms"))
        try:
            async with asyncio.timeout(None if asked_s == inf else asked_s):
                if not await _read_rest(chunks, receive, limit):
                    return None
        except TimeoutError:
            raise errors.DeadlineExpired("the deadline passed before the whole request had come") from None
    encoding = content_coding(headers.get(b"content-encoding", b""))
    if encoding is not None:
        inflate = partial(decompress, b"".join(chunks), encoding, limit)
        return [inflate() if sum(map(len, chunks)) <= HERE_BYTES else await preparing.run(inflate)]
    return chunks


async def _read_rest(chunks: Chunks, receive: Receive, limit: int) -> bool:
    """Adds what comes until the end; False if the client left. Raises TooLarge."""
    size = len(chunks[0])
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return False
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise errors.TooLarge(f"the body has more than {limit} bytes, the most that is taken here")
        more = message.get("more_body", False)
    return True
