"""What is read of a served variant once and kept: one reads, on a thread, and the others wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from serving.gateway.preparing import Preparing
from serving.scheduling.routing import Variant

T = TypeVar("T")
MAX_KEPT = 256  # variants: what a fleet serves, so that only one whose models are replaced all the time gets there


class ReadOnce(Generic[T]):
    """By name in Triton and digest, so that another file under the name is read anew. What raises is not kept."""

    def __init__(self, read: Callable[[Variant], T], preparing: Preparing) -> None:
        self._read = read
        self._preparing = preparing
        self._kept: dict[tuple[str, str], T] = {}
        self._reading: dict[tuple[str, str], asyncio.Task[T]] = {}

    async def of(self, served: Variant) -> T:
        """Raises as `read`, and Overloaded."""
        key = served.name, served.digest
        if key in self._kept:
            return self._kept[key]
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._preparing.run(lambda: self._read(served)))
            reading.add_done_callback(lambda _: self._reading.pop(key))
        found = await asyncio.shield(reading)  # one that leaves takes it from nobody else
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = found
        return found
