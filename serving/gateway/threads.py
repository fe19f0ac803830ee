"""Threads for work that would hold up the event loop: tokenising, decoding images, parsing large JSON; and what they read once and keep.

As many as there are cores for us (a container's quota counts), because more would only take turns. What waits for one is bounded: it
has passed no admission yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from serving import errors
from serving.cores import usable_cores
from serving.scheduling.routing import Variant

T = TypeVar("T")
MAX_WAITING_PER_THREAD = 64  # of some milliseconds each: half a second of waiting at most; a guess, not measured
RETRY_AFTER_S = 1.0


class Threads:
    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or usable_cores()
        self._threads = ThreadPoolExecutor(self.num_threads, thread_name_prefix="preparing")
        self.num_waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, on a thread. Raises what it raises, and Overloaded where too much waits already."""
        if self.num_waiting >= MAX_WAITING_PER_THREAD * self.num_threads:
            raise errors.Overloaded("too much waits to be prepared here", retry_after_s=RETRY_AFTER_S)
        self.num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self.num_waiting -= 1

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


Value = TypeVar("Value")
MAX_KEPT = 256  # variants: what a fleet serves, so that only one whose models are replaced all the time gets there


class ReadOnce(Generic[Value]):
    """By name in Triton and digest, so that another file under the name is read anew. What raises is not kept."""

    def __init__(self, read: Callable[[Variant], Value], threads: Threads) -> None:
        self._read = read
        self._threads = threads
        self._kept: dict[tuple[str, str], Value] = {}
        self._reading: dict[tuple[str, str], asyncio.Task[Value]] = {}

    async def of(self, served: Variant) -> Value:
        """Raises as `read`, and Overloaded."""
        key = served.name, served.digest
        if key in self._kept:
            return self._kept[key]
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._threads.run(lambda: self._read(served)))
            reading.add_done_callback(lambda _: self._reading.pop(key))
        found = await asyncio.shield(reading)  # one that leaves takes it from nobody else
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = found
        return found
