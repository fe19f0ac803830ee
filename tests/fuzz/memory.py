"""Whether the gateway's memory is the same after a hundred thousand good and bad requests as after the first ones."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

from tests.fuzz.served import SAMPLE, Served

WARM_UP_RATIO = 0.2  # of the requests: until every path was taken and the allocator has what it needs
# The same run differs by 3 MB from itself; a leak of 100 bytes for each request is 8 MB. Measured on 2 cores.
MAX_GROWTH_BYTES = 8 * 2**20
NUM_CONNECTIONS = 16
EXPECTED = {200, 400, 404, 413, 431, 501, 503, 504}
LIMIT_S = 30.0


def post(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b" % (path, more, len(body), body)


INFER = b"/v2/models/digits/infer"
HEADS = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\n"
# Bytes, and whether the connection goes on after the answer.
REQUESTS: list[tuple[bytes, bool]] = [
    *[(post(INFER, SAMPLE), True)] * 8,
    (post(INFER, b'{"inputs":'), True),
    (post(INFER, b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[300]}]}'), True),
    (post(INFER, b'{"inputs":[{"name":"x","parameters":{"shared_memory_region":"r"}}]}'), True),
    (post(b"/v2/models/%d/infer", SAMPLE), True),
    (post(INFER, SAMPLE, b"Tandem-Pool: none\r\n"), True),
    (post(INFER, b"not gzip", b"Content-Encoding: gzip\r\n"), True),
    (post(INFER, SAMPLE, b"Tandem-Deadline-Ms: 0.001\r\n"), True),
    (post(b"/v1/embeddings", b'{"model":"digits","input":"a"}'), True),
    (post(b"/v1/classify/digits", b'{"images":["AA=="]}'), True),
    (b"GET /v2/models/digits HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
    (b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
    (HEADS + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", False),
    (HEADS + b"Content-Length: 99999999999\r\n\r\n", False),
    (HEADS + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", False),
    (HEADS + b"A: " + b"b" * 40_000 + b"\r\n\r\n", False),
    (b"\x16\x03\x01", False),
]


Statuses = Counter[int]


async def _client(here: Served, numbers: itertools.count[int], end: int, statuses: Statuses) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    try:
        while (number := next(numbers)) < end:
            data, goes_on = REQUESTS[number % len(REQUESTS)]
            if b"%d" in data:  # a name that nobody has asked for before
                data = data.replace(b"%d", b"m%d" % number)
            writer.write(data)
            async with asyncio.timeout(LIMIT_S):
                if goes_on:
                    head = await reader.readuntil(b"\r\n\r\n")
                    statuses[int(head[9:12])] += 1
                    size = head.lower().split(b"content-length: ")[1].split(b"\r")[0]
                    await reader.readexactly(int(size))
                    continue
                statuses[int((await reader.read())[9:12])] += 1
            writer.transport.abort()
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    finally:
        writer.transport.abort()


async def _send(here: Served, begin: int, end: int) -> Statuses:
    numbers = itertools.count(begin)
    statuses: Statuses = Counter()
    await asyncio.gather(*(_client(here, numbers, end, statuses) for _ in range(NUM_CONNECTIONS)))
    return statuses


async def run(here: Served, num_requests: int) -> tuple[str, list[str]]:
    """What it was before and how it grew, in words, and what was found."""
    warm = int(num_requests * WARM_UP_RATIO)
    await _send(here, 0, warm)
    before = here.memory_bytes()
    statuses = await _send(here, warm, num_requests)
    grew = here.memory_bytes() - before
    told = f"{before / 2**20:.1f} MB after {warm} requests, {grew / 2**20:+.1f} MB after {num_requests}"
    found = [f"{count} answers with status {status}" for status, count in statuses.items() if status not in EXPECTED]
    if grew > MAX_GROWTH_BYTES:
        found.append(f"the memory grew: {told}")
    return f"{told}; {dict(sorted(statuses.items()))}", found
