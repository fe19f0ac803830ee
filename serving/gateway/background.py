"""What becomes of the work beside requests (polls, look-ups, sweeps) when it fails by a mistake of ours?

It is written to the log with its traceback, and begins again: a task that ends unseen would leave a gateway that answers and knows
nothing new, and one mistake must not stop a gateway that serves. What is expected to fail is handled where it is done.
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
