"""Asks a server on HTTP whether it is there, and what status it answers, without an HTTP library.

For readiness at the start only. Requests of clients never come this way.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 2.0  # a healthy server answers in milliseconds; on a busy machine in a second (guess, not measured)


async def status(url: str, timeout_s: float = PROBE_TIMEOUT_S, key: str | None = None) -> int | None:
    """The HTTP status of a GET, with an API key if there is one, None where nothing answers."""
    try:
        return await asyncio.wait_for(_get(url, key), timeout_s)
    except (OSError, TimeoutError, ValueError, IndexError):
        return None


async def _get(url: str, key: str | None) -> int:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        path = parts.path or "/"
        sent = "" if key is None else f"Authorization: Bearer {key}\r\n"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{sent}Connection: close\r\n\r\n".encode())
        await writer.drain()
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
