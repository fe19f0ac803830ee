"""Has a server stopped answering: a frozen machine, a network that drops packets, a stopped process?

None of these resets a connection, so only time tells. Any byte from the server counts, on any connection. When none arrives, a probe asks
`/v2/health/live` on a connection of its own. `scheduling/outliers.py` judges it, `catalogue.py` acts on it. Rule: time is counted in ticks
of this process, so that a gateway that was paused itself does not take its own pause for a server's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from serving.gateway.fleet.upstream import Target
from serving.scheduling.outliers import ASK_AFTER_S, SILENT_S

TICK_S = 0.25
LIVE = b"GET /v2/health/live HTTP/1.1\r\n%bConnection: close\r\n\r\n"  # Triton answers it in no thread of a model's


class Liveness:
    """How long one server has been quiet. `is_reported` belongs to the caller, who acts once per silence."""

    __slots__ = ("_num_heard", "_probes", "_target", "is_reported", "quiet_s")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._num_heard = target.num_heard
        self._probes: set[asyncio.Task[None]] = set()
        self.quiet_s = 0.0
        self.is_reported = False

    def tick(self) -> None:
        """Called every TICK_S; late ticks are not made up for."""
        if self._num_heard != self._target.num_heard:
            self._num_heard, self.quiet_s, self.is_reported = self._target.num_heard, 0.0, False
            return
        self.quiet_s += TICK_S
        if ASK_AFTER_S <= self.quiet_s < SILENT_S:
            # At each tick anew: the first packet of a connection is sent again only after 1 s when it gets lost.
            probe = asyncio.create_task(_probe(self._target))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    def stop(self) -> None:
        for probe in self._probes:
            probe.cancel()


async def _probe(target: Target) -> None:
    """Any answer counts. Not one of the target's own connections: those count as work in flight."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(SILENT_S - ASK_AFTER_S):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                writer.write(LIVE % target.host_header)
                if await reader.read(1):
                    target.num_heard += 1
            finally:
                writer.close()
