"""The newest answer, for everybody who asks: the page's thread, gRPC's streams, the metrics.

One value is replaced by the next as a whole, so that no lock is needed. Rule: only the loop of `command` tells.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.cluster.scaler.ended import Ended
from serving.planning.cold_start import ColdStart
from serving.planning.scaling import Scaling


@dataclass(frozen=True, slots=True)
class Answer:
    """`silent`: why a gateway that is named was not heard, by its address. `is_api_readable` None: there is no API here."""

    scaling: Scaling = field(default_factory=Scaling)
    silent: Mapping[str, str] = field(default_factory=dict)
    cold_starts: tuple[ColdStart, ...] = ()
    is_api_readable: bool | None = None


class Told:
    """Made inside a running event loop. `decisions`: how often which pool went which way, and why; `ended`: all cold starts, counted."""

    def __init__(self, pools: tuple[str, ...]) -> None:
        self.pools = pools
        self.answer = Answer()
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        self.ended = Ended()
        self.was_asked = False  # there was a look
        self.was_known = False  # a number could be told once
        self.is_over = False  # nothing more is told
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(self, answer: Answer) -> None:
        before = {(it.pool, it.decided_at) for it in self.answer.cold_starts if it.is_over}
        for it in answer.cold_starts:
            if it.is_over and (it.pool, it.decided_at) not in before:
                self.ended.count(it)
        self.answer = answer
        self.was_asked = True
        self.was_known |= answer.scaling.replicas is not None
        for change in answer.scaling.changes:
            direction = "up" if change.after > change.before else "down"
            self.decisions[change.pool, direction, change.reason] += 1
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        waited, self._next = self._next, asyncio.get_running_loop().create_future()
        waited.set_result(None)

    async def next(self) -> None:
        """Until something was told, or nothing more is."""
        await asyncio.shield(self._next)

    def replicas(self, pool: str) -> int | None:
        """None while it is not known, or not to be relied on."""
        known = self.answer.scaling.replicas
        return None if known is None else known.get(pool)
