"""The client of an HTTP request, who leaves by closing the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving.gateway.http.connection import tell_when_gone

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class HttpClient:
    """`receive` has given the whole request."""

    __slots__ = ("_receive", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watch: asyncio.Future[None] | None = None

    def listen(self, tell: Callable[[], None]) -> None:
        if not tell_when_gone(self._receive, tell):
            self._watch = asyncio.ensure_future(_until_gone(self._receive, tell))

    def ignore(self) -> None:
        if self._watch is None:
            tell_when_gone(self._receive, None)
        else:
            self._watch.cancel()
            self._watch = None


async def _until_gone(receive: Receive, tell: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    tell()
