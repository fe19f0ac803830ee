"""The newest answer, for everybody who asks: the page's thread, gRPC's streams, the metrics.

One value is replaced by the next as a whole, so that no lock is needed. Rule: only the loop of `command` tells.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from serving.decisions.cold_start import ColdStart
from serving.decisions.scaling import Scaling

# From a pod on a node that is there, with its image, to a node that is hard to buy and 15 GB to pull; guesses.
BOUNDS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, inf)


class Phase:
    """How long one phase of a pool took, over all cold starts that ended in an answer."""

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts = [0] * len(BOUNDS_S)

    def count(self, took_s: float) -> None:
        self.sum_s += took_s
        self._counts[bisect_left(BOUNDS_S, took_s)] += 1

    @property
    def up_to(self) -> list[tuple[float, int]]:
        """(upper bound in seconds, how many took no longer)."""
        return list(zip(BOUNDS_S, accumulate(self._counts), strict=True))


class Ended:
    """`ends`: by (pool, "answered" or "given_up"); `phases`: by (pool, phase)."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[str, str]] = Counter()
        self.phases: defaultdict[tuple[str, str], Phase] = defaultdict(Phase)

    def count(self, it: ColdStart) -> None:
        self.ends[it.pool, "given_up" if it.is_given_up else "answered"] += 1
        if it.answered_at is not None:
            for phase, took_s in it.phases.items():
                self.phases[it.pool, phase].count(took_s)


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
