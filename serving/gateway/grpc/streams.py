"""Keeps the streams of a listener that are idle, so that a stop ends them at once instead of waiting for their clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from serving import errors
from serving.gateway.grpc.partial_messages import PartialMessages
from serving.gateway.grpc.status import set_status

RETRY_AFTER_S = 1.0  # until another gateway is connected; a guess, not measured
LAST_S = 0.1  # a stop takes what a stream has sent already; a guess, not measured


class Streams:
    def __init__(self, partial: PartialMessages) -> None:
        self._partial = partial
        self._idle: set[asyncio.Task[Any]] = set()
        self.is_ending = False

    def end(self) -> None:
        """Those that wait now, and the others once they have answered what came."""
        self.is_ending = True
        for task in self._idle:
            task.cancel()

    async def coming(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """What a client sends, until it or the listener ends."""
        while True:
            with self._waiting():
                try:
                    async with asyncio.timeout(LAST_S if self.is_ending else None):
                        message = await self._partial.of(anext(messages), context, is_stream=True)
                except StopAsyncIteration:
                    return
                except errors.RequestError as error:
                    set_status(error, context)
                    return
                except (TimeoutError, asyncio.CancelledError):
                    if not self.is_ending:
                        raise
                    self.tell_end(context)
                    return
            yield message

    async def pause(self, seconds: float) -> None:
        """Less where the listener ends meanwhile."""
        with self._waiting():
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                if not self.is_ending:
                    raise

    def tell_end(self, context: Any) -> None:
        set_status(errors.NotReady("the gateway is stopping; try again", retry_after_s=RETRY_AFTER_S), context)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            yield
        finally:
            self._idle.discard(task)
