"""Reads a request's body off the wire, within limits, decompressed; a v2 inference body is checked, large JSON becomes binary tensors.

What v2 allows is in `serving/protocol/v2/`. Rule: a size is looked at before what it is the size of is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from serving import errors
from serving.gateway.eager import own_task
from serving.gateway.http.compression import content_coding, decompress
from serving.gateway.http.connection import Request
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.request.request_headers import wait_s
from serving.gateway.request.route import Route
from serving.gateway.threads import Threads
from serving.protocol import v2
from serving.protocol.memory import Claims, joined

Chunks = list[bytes | memoryview]
HERE_BYTES = 4 * 1024  # compressed: 4 MB at most, made in 4 ms; of numbers in JSON in 0.03 ms


async def read_body(request: Request, limit: int, threads: Threads, claim: Claims) -> Chunks:
    """The body in the pieces it came in, at least one.

    `limit`: bytes, of the body as it comes and of what it holds once decompressed. What is compressed and not small is decompressed
    on a thread of `threads`. `claim`: for it and that which it is unpacked to. Raises ClientLeft, TooLarge, BadRequest,
    Unsupported, DeadlineExpired where `Tandem-Deadline-Ms` is over before its end, or what the connection finds wrong with it.
    """
    headers = request.head.by_name
    declared = request.head.body_bytes
    if declared is not None and declared > limit:
        raise errors.TooLarge(f"the body has {declared} bytes; at most {limit} are taken here")
    if not request.is_whole:
        asked_s = wait_s(headers.get(b"tandem-deadline-ms"))
        await own_task()
        try:
            async with asyncio.timeout(None if asked_s == inf else asked_s):
                while not request.is_whole and not request.has_left and request.body_size <= limit:
                    await request.more(limit)
        except TimeoutError:
            raise errors.DeadlineExpired("the deadline passed before the whole request had come") from None
    if request.has_left:
        raise ClientLeft
    if request.error is not None:
        raise request.error
    if request.body_size > limit:
        raise errors.TooLarge(f"the body has more than {limit} bytes, the most that is taken here")
    if request.incoming is not None:
        request.incoming.hand_over(claim())
    chunks, request.chunks = request.chunks or [b""], []
    declared_coding = headers.get(b"content-encoding")
    if declared_coding is not None and (encoding := content_coding(declared_coding)) is not None:
        is_small = sum(map(len, chunks)) <= HERE_BYTES
        inflate = partial(decompress, joined(chunks), encoding, limit, claim())
        return [inflate() if is_small else await threads.run(inflate)]
    return chunks


# JSON of this size or more goes on as binary tensors: at 10 kB that takes the gateway 0.01 ms longer than looking through it, from 20 kB on
# no longer, and spares Triton 5 µs per kB (python -m loadtest.bench.json_tensors, float32, 2-core x86-64).
BINARY_FROM_BYTES = 8 * 1024
READ_HERE_BYTES = (
    256 * 1024
)  # of JSON: takes 1.5 ms; more is read on a thread, in pieces between which others have their turn


TEXTS_HERE_BYTES = 16 * 1024  # the same where some are texts: at most 0.3 µs a byte


# The JSON part, all chunks, the length of the JSON part where tensors follow, and what is known of the request.
Checked = tuple[bytes, Sequence[bytes | memoryview], int | None, v2.Head]


class V2Body:
    """`most_bytes`: of the tensors of one request."""

    def __init__(self, threads: Threads, most_bytes: int) -> None:
        self._threads = threads
        self._most_bytes = most_bytes

    async def check(self, chunks: Chunks, length: bytes | None, route: Route, claim: Claims) -> Checked:
        """`length`: of the header Inference-Header-Content-Length; `claim`: for the tensors that are made of JSON. Raises RequestError."""
        size = sum(map(len, chunks))
        header_length = None if length is None else v2.inference_header_length(length, size)
        if size == 0:
            raise errors.BadRequest("the request has no body; send a v2 inference request in JSON")
        head_size = size if header_length is None else header_length
        if head_size < BINARY_FROM_BYTES:
            head = _first(chunks, head_size)
            known = v2.check_head(head, size)
            made: Sequence[bytes | memoryview] = [head] if header_length is None else chunks
        else:
            read = partial(self._in_binary, chunks, head_size, size, claim().take)
            binary = read() if _is_quick(chunks, head_size) else await self._threads.run(read)
            head, made, header_length, known = binary
        known.require_known(route.name, takes_parameters=route.takes_parameters)
        if route.binary_only and head:
            v2.require_json_outputs(known.request, route.binary_only)
        return head, made, header_length, known

    def _in_binary(self, chunks: Chunks, head_size: int, size: int, claim: Callable[[int], None]) -> Checked:
        body = joined(chunks)
        head = body[:head_size]  # the very same object where that is all
        binary = v2.to_binary(head, size, self._most_bytes, claim)
        rest, at = memoryview(body)[head_size:], 0
        made: list[bytes | memoryview] = [binary.head]
        for tensor in binary.tensors:
            if isinstance(tensor, int):
                made.append(rest[at : at + tensor])
                at += tensor
            else:
                made += tensor
        if at != len(rest):
            raise errors.BadRequest(
                f"the inputs say that {at} bytes of tensors follow the JSON part, and {len(rest)} do"
            )
        return binary.head, made, len(binary.head), binary.checked


def _is_quick(chunks: Chunks, head_size: int) -> bool:
    """Whether the JSON part is read in no more time than another thread's turn takes."""
    if head_size > READ_HERE_BYTES:
        return False
    return head_size <= TEXTS_HERE_BYTES or b'"BYTES"' not in _first(chunks, head_size)


def _first(chunks: Chunks, length: int) -> bytes:
    """The first `length` bytes."""
    if len(chunks) == 1:
        return bytes(chunks[0][:length])  # the very same object where that is all
    parts = []
    for chunk in chunks:
        parts.append(chunk[:length])
        length -= len(parts[-1])
        if length == 0:
            break
    return b"".join(parts)
