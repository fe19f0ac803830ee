"""Restarts background work (polls, look-ups, sweeps) that fails by a bug of ours.

The traceback goes to the log and the work begins again: a task that ended unnoticed would leave a gateway that answers and learns nothing
new, and one bug must not stop a gateway that serves. Failures that are expected are handled where they happen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

AGAIN_S = 1.0  # until it begins again: one traceback a second at most; a guess, not measured

log = logging.getLogger("tandem")


async def forever(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Does `work`, which has no end of its own, until it is cancelled. `what` is for the log."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed by a mistake of the gateway's own; it begins again in %g s", what, AGAIN_S)
        await asyncio.sleep(AGAIN_S)
