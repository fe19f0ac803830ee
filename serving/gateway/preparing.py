"""Threads for work that would hold up the event loop: tokenising, decoding images, parsing large JSON.

As many as there are cores for us (a container's quota counts), because more would only take turns. What waits for one is bounded: it
has passed no admission yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from serving import errors
from serving.cores import usable_cores

T = TypeVar("T")
MAX_WAITING_PER_THREAD = 64  # of some milliseconds each: half a second of waiting at most; a guess, not measured
RETRY_AFTER_S = 1.0


class Preparing:
    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or usable_cores()
        self._threads = ThreadPoolExecutor(self.num_threads, thread_name_prefix="preparing")
        self._num_waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, on a thread. Raises what it raises, and Overloaded where too much waits already."""
        if self._num_waiting >= MAX_WAITING_PER_THREAD * self.num_threads:
            raise errors.Overloaded("too much waits to be prepared here", retry_after_s=RETRY_AFTER_S)
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_waiting -= 1

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
