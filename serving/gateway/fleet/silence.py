"""Has a server fallen silent: a machine that froze, a network that swallows packets, a process that was stopped?

None of them resets a connection, so only time tells. Anything that comes counts, on whatever connection: an answer, a poll's, a part of
one. Where nothing comes, it is asked whether it lives, each time on a connection of its own. Rule: time is counted in ticks of this
process, so that one that stood still itself, or was late, does not take its own pause for a server's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from serving.gateway.fleet.upstream import Target
from serving.scheduling.outliers import ASK_AFTER_S, SILENT_S

TICK_S = 0.25
LIVE = b"GET /v2/health/live HTTP/1.1\r\n%bConnection: close\r\n\r\n"  # Triton answers it in no thread of a model's


class Silence:
    """Of one server. `is_told` is for whoever acts on it, once for each silence."""

    __slots__ = ("_asking", "_num_heard", "_target", "is_told", "quiet_s")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._num_heard = target.num_heard
        self._asking: set[asyncio.Task[None]] = set()
        self.quiet_s = 0.0
        self.is_told = False

    def tick(self) -> None:
        """To be called every TICK_S, and not more often to make up for ticks that were late."""
        if self._num_heard != self._target.num_heard:
            self._num_heard, self.quiet_s, self.is_told = self._target.num_heard, 0.0, False
            return
        self.quiet_s += TICK_S
        if ASK_AFTER_S <= self.quiet_s < SILENT_S:
            # At each tick anew: the first packet of a connection is sent again only after 1 s when it gets lost.
            asking = asyncio.create_task(_ask(self._target))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    def stop(self) -> None:
        for asking in self._asking:
            asking.cancel()


async def _ask(target: Target) -> None:
    """Whatever it answers is heard. It is no connection of the target's, whose work would be counted wrong."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(SILENT_S - ASK_AFTER_S):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                writer.write(LIVE % target.host_header)
                if await reader.read(1):
                    target.num_heard += 1
            finally:
                writer.close()
