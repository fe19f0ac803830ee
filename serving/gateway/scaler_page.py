"""What the scaler says of its pools (`/fleet` of its port), read for the console alone: nodes, money, and why it changed a number.

No request depends on it. Rule: what it says is passed on only where it can be shown; one that is silent, or no scaler, is told as that.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from serving import http_client
from serving.gateway.background import forever
from serving.gateway.fleet.addresses import LookUp, look_up, split

EVERY_S = 2.0  # as often as the console shows something new
LIMIT_S = 2.0  # for an answer, as the scaler gives gateways
MAX_BYTES = 256 * 2**10  # a pool takes 600 bytes


class ScalerPage:
    """`told`: as JSON, what it said last or why it says nothing; `null` where there is no scaler."""

    def __init__(self, url: str | None, resolve: LookUp = look_up) -> None:
        self._url, self._resolve = url, resolve
        self._task: asyncio.Task[None] | None = None
        self.told = b"null" if url is None else _silent(url, "it was not asked yet")

    def start(self) -> None:
        if self._url is not None:
            self._task = asyncio.create_task(forever("the look at the scaler", self._run))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        assert self._url is not None
        try:
            async with asyncio.timeout(LIMIT_S):
                self.told = _shown(await self._read(self._url))
        except TimeoutError:
            self.told = _silent(self._url, f"no answer within {LIMIT_S:g} s")
        except (OSError, ValueError) as error:
            self.told = _silent(self._url, str(error))

    async def _read(self, url: str) -> bytes:
        host, port = split(url)
        address, *_ = await self._resolve(host, port)
        answer = await http_client.get(address, port, "/fleet", max_bytes=MAX_BYTES)
        if answer.status != 200:
            raise ValueError(f"it answers {answer.status}")
        return answer.body


def _silent(url: str, why: str) -> bytes:
    return orjson.dumps({"problem": f"The scaler at {url} says nothing: {why}"})


NUMBERS = ("wanted", "ready", "nodes", "per_hour", "spent")


def _shown(body: bytes) -> bytes:
    """On one line, once it is what a console can show. Raises ValueError."""
    said: Any = orjson.loads(body)
    pools = said.get("pools") if isinstance(said, dict) else None
    if not isinstance(pools, dict) or not all(map(_is_pool, pools.values())):
        raise ValueError("what it answers is of another version")
    return orjson.dumps(said)


def _is_pool(it: Any) -> bool:
    return isinstance(it, dict) and all(it.get(name) is None or isinstance(it[name], int | float) for name in NUMBERS)
