"""Which gateway does a client's connection go to? What kube-proxy does, which does not run here.

A new connection goes to one of the Service's ready endpoints, known `PROXY_LATE_S` late, and stays with it until one side closes it. Clients
that open connections themselves ask `Known` (`load`); a library that does so connects to a `Forward` (`channels`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

PROXY_LATE_S = 1.0  # kube-proxy writes its rules at most once a second unless told otherwise (minSyncPeriod)

Endpoints = Callable[[], dict[str, list[str]]]  # by port's name, address:port of each that is ready


class Known:
    """The endpoints as nodes know them: late. Rule: somebody looks several times a second, or they are known later than that."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._seen: deque[tuple[float, dict[str, list[str]]]] = deque()

    def look(self) -> None:
        now_s = time.monotonic()
        self._seen.append((now_s, self._endpoints()))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - PROXY_LATE_S:
            self._seen.popleft()

    def now(self, port: str) -> list[str]:
        self.look()
        return self._seen[0][1][port]


class Forward:
    """One address for all endpoints. `endpoint`: where the newest connection went.

    Of the endpoints it takes one with the fewest connections of all `taken` (kube-proxy's IPVS mode has that as `lc`): with few clients and
    chance alone, one gateway would often have none.
    """

    def __init__(self, known: Known, taken: Counter[str]) -> None:
        self._known, self._taken = known, taken
        self.endpoint = ""

    async def start(self) -> str:
        """Its own address; it ends with the event loop."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            endpoints = self._known.now("grpc")
            fewest = min(self._taken[it] for it in endpoints)  # ValueError: the Service has none
            self.endpoint = endpoint = random.choice([it for it in endpoints if self._taken[it] == fewest])
            there_reader, there_writer = await asyncio.open_connection(*endpoint.split(":"))
        except (OSError, ValueError):
            writer.close()
            return
        self._taken[endpoint] += 1
        with suppress(asyncio.CancelledError):  # the loop ends
            await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there_reader, writer))
        self._taken[endpoint] -= 1


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
