"""Thousands of mutated requests, each on a connection of its own, against a gateway that runs.

Whatever comes, it answers in HTTP or closes, in time, with no status of a fault of its own; between them it goes on answering, and at the
end no connection is left.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

from tests.fuzz.served import SAMPLE, Served

LIMIT_S = 20.0  # for a connection to end; the settings of `served.py` end it after two seconds
QUIET_S = 0.2  # without a byte after a whole answer: the gateway waits for another request
NUM_AT_ONCE = 32
ALLOWED_5XX = {501, 503, 504, 505}
PIECES = [
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b"\xff", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 5, 5\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"transfer-encoding:\tchunked\r\n", b"Connection: keep-alive\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"Expect: 100-continue\r\n", b"Host: y\r\n",
    b"HTTP/1.0", b"HTTP/2.0", b"http://x/", b"%00", b"%2e%2e/", b"../", b"*", b"0\r\n\r\n", b"5\r\n", b"fffffffffffffffff\r\n", b";a=b",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"A: " + b"b" * 40_000 + b"\r\n", b"Content-Encoding: gzip\r\n",
    b"Inference-Header-Content-Length: 10\r\n", b"Tandem-Deadline-Ms: 1\r\n", b"Tandem-Pool: none\r\n",
]  # fmt: skip
CLOSE = b"Host: localhost\r\nConnection: close\r\n"
JSON = b"Content-Type: application/json\r\n"
SEEDS = [
    b"POST /v2/models/digits/infer HTTP/1.1\r\n" + CLOSE + b"Content-Length: %d\r\n\r\n%b" % (len(SAMPLE), SAMPLE),
    b"POST /v2/models/digits/infer HTTP/1.1\r\n" + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(SAMPLE), SAMPLE),
    b"GET /v2/health/ready HTTP/1.1\r\n" + CLOSE + b"\r\n",
    b"GET /v2/models/digits HTTP/1.1\r\n" + CLOSE + b"\r\n",
    b"HEAD / HTTP/1.1\r\n" + CLOSE + b"\r\n",
    b"POST /v1/embeddings HTTP/1.1\r\n" + CLOSE + JSON + b'Content-Length: 29\r\n\r\n{"model":"digits","input":""}',
    b"POST /v1/classify/digits HTTP/1.1\r\n" + CLOSE + JSON + b'Content-Length: 17\r\n\r\n{"images":["AA"]}',
    b"POST /v2/repository/index HTTP/1.1\r\n" + CLOSE + b"Content-Length: 2\r\n\r\n{}",
]  # fmt: skip


def mutated(chance: random.Random) -> bytes:
    data = chance.choice(SEEDS)
    if chance.random() < 0.2:
        data += chance.choice(SEEDS)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data)) if chance.random() < 0.4 else chance.randint(0, min(200, len(data)))
        end = min(len(data), at + chance.choice([0, 0, 1, 2, 10]))
        what = chance.random()
        piece = (
            chance.choice(PIECES) if what < 0.6 else bytes([chance.randrange(256)]) if what < 0.8 else data[at:end] * 2
        )
        data = data[:at] + piece + data[end:]
    return data


def problem_of(answer: bytes) -> str | None:
    """What is wrong with the bytes that came back; closing without a word is fine."""
    if not answer:
        return None
    if not answer.startswith(b"HTTP/1.1 "):
        return f"no HTTP: {answer[:80]!r}"
    status = int(answer[9:12])
    if status >= 500 and status not in ALLOWED_5XX:
        return f"status {status}: {answer[-200:]!r}"
    if status >= 400 and b"tandem-error: " not in answer:
        return f"an error of another form: {answer[:300]!r}"
    return None


async def exchange(port: int, pieces: list[bytes]) -> bytes:
    """What came until the end, or until the gateway waits for more. Raises TimeoutError."""
    data = b""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            with suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                while True:
                    async with asyncio.timeout(QUIET_S if data else None):
                        piece = await reader.read(65536)
                    if not piece:
                        break
                    data += piece
        except TimeoutError:
            if not data:
                raise
        finally:
            writer.transport.abort()
    return data


async def _one(here: Served, data: bytes, cut: int, findings: list[tuple[bytes, str]]) -> None:
    try:
        problem = problem_of(await exchange(here.port, [piece for piece in (data[:cut], data[cut:]) if piece]))
    except TimeoutError:
        problem = f"neither answered nor closed within {LIMIT_S} s"
    if problem is not None:
        findings.append((data, problem))


async def run(here: Served, seconds: float, seed: int, into: Path) -> tuple[int, list[str]]:
    """How many were sent, and what was found; each finding is a file in `into`."""
    chance = random.Random(seed)
    findings: list[tuple[bytes, str]] = []
    loop = asyncio.get_running_loop()
    until, sent = loop.time() + seconds, 0
    working: set[asyncio.Task[None]] = set()
    while loop.time() < until:
        data = mutated(chance)
        cut = chance.randint(0, len(data)) if chance.random() < 0.3 else len(data)
        working.add(asyncio.create_task(_one(here, data, cut, findings)))
        sent += 1
        if len(working) >= NUM_AT_ONCE:
            _, working = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        if sent % 500 == 0 and not await asyncio.to_thread(here.is_well):
            findings.append((data, "a good request is not answered any more"))
    if working:
        await asyncio.wait(working)
    said = [problem for _, problem in findings]
    for number, (data, _) in enumerate(findings):
        (into / f"framing.{number}").write_bytes(data)
    if not await asyncio.to_thread(here.is_well):
        said.append("a good request is not answered at the end")
    await asyncio.sleep(2)
    if left := here.num_connections():
        said.append(f"{left} connections are left")
    return sent, said
