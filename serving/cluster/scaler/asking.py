"""How is a page of a gateway read? One GET on a connection of its own, with an end to it.

A look may not wait for a gateway that trickles, and leaving must not wait for a look: so it is a coroutine that can be cancelled, and no
thread. Rule: whatever goes wrong is one NotHeard in a few words.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import httptools

LIMIT_S = 2.0  # a gateway answers its metrics in a few ms; a guess for one that is full to the brim
MAX_BYTES = (
    8 * 2**20
)  # all metrics of 50 models with two variants on two pools are 1 MB; reading it takes 2 s of a core at worst (measured)
WAYS_OUT = {
    401: "a key is wanted: TANDEM_API_KEY or --key-file, with scope metrics",
    403: "the key has no scope 'metrics'",
    404: "no metrics there: is it the admin listener's port?",
}


class NotHeard(Exception):
    """A gateway has not answered; the text says why."""


class NotThere(NotHeard):
    """It has no such page."""


async def demand(address: str, port: int, key: str | None = None) -> str:
    """The lines that `published` reads: a small page, or all metrics of an older gateway that has none. Raises NotHeard."""
    try:
        return await page(address, port, "/metrics/demand", key)
    except NotThere:
        return await page(address, port, "/metrics", key)


async def page(address: str, port: int, path: str, key: str | None = None, limit_s: float = LIMIT_S) -> str:
    """The body. Raises NotHeard."""
    try:
        async with asyncio.timeout(limit_s):
            return await _page(address, port, path, key)
    except TimeoutError:
        raise NotHeard(f"no answer within {limit_s:g} s") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
        raise NotHeard(why.lower()) from None


async def _page(address: str, port: int, path: str, key: str | None) -> str:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", "User-Agent: tandem"]
        if key is not None:
            lines.append(f"X-API-Key: {key}")
        writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
        answer = _Answer()
        while not answer.is_whole:
            if data := await reader.read(2**16):
                answer.feed(data)
            else:
                answer.end()
    finally:
        writer.close()
        with suppress(OSError):
            writer.transport.abort()  # nothing is left to send, and nobody waits for a goodbye
    if answer.status != 200:
        way_out = WAYS_OUT.get(answer.status)
        kind = NotThere if answer.status == 404 else NotHeard
        raise kind(f"it answers {answer.status}" + (f"; {way_out}" if way_out else ""))
    return answer.body.decode("utf-8", "replace")


class _Answer:
    """httptools calls the methods that begin with on_."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.status = 0
        self.is_whole = False
        self._has_head = self._has_length = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise NotHeard(f"its answer is not HTTP ({error})") from None
        if len(self.body) > MAX_BYTES:
            raise NotHeard(f"its answer has more than {MAX_BYTES} bytes")

    def end(self) -> None:
        """The connection is closed: an end where no length was told. A whole line tells it from a half. Raises NotHeard."""
        if not self._has_head or self._has_length or not self.body.endswith(b"\n"):
            raise NotHeard("it closes the connection before its answer is whole")
        self.on_message_complete()

    def on_header(self, name: bytes, _value: bytes) -> None:
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.is_whole = True
