"""Restarts background work (polls, look-ups, sweeps) that fails by a bug of ours.

The traceback goes to the log and the work begins again: a task that ended unnoticed would leave a gateway that answers and learns nothing
new, and one bug must not stop what serves. Failures that are expected are handled where they happen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter

SLICE_S = 0.0005  # of the loop, that long work takes at once: 20 models' lines of a scrape; a guess, not measured
AGAIN_S = 1.0  # until it begins again: one traceback a second at most; a guess, not measured

log = logging.getLogger("tandem")


async def forever(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Does `work`, which has no end of its own, until it is cancelled. `what` is for the log."""
    while True:
        try:
            await work()
        except (Exception, asyncio.CancelledError):
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # What it waited for may have been cancelled, and not this.
            log.exception("%s failed by a mistake of Tandem's own; it begins again in %g s", what, AGAIN_S)
        await asyncio.sleep(AGAIN_S)


class Slices:
    """Of long work on the event loop, which lets others have their turn between its parts."""

    def __init__(self) -> None:
        self._until = perf_counter() + SLICE_S

    async def rest(self) -> None:
        """After each part: others' turn, if this had its own."""
        if perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = perf_counter() + SLICE_S
