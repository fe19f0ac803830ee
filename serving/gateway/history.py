"""What happened in the last quarter of an hour: the counts of `metrics.py`, looked at every two seconds, for the page that shows them.

A sample is what was counted since the one before, of each series that had any, and how the pools stand; it is kept as the bytes that are
sent. Nothing here is on the path of a request, and nothing is counted twice. Rule: its memory is bounded, whatever the fleet: of more
than MAX_SERIES series in a sample the rest are one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import islice
from time import time
from typing import Any, NamedTuple

import orjson

from serving import errors
from serving.gateway.background import forever
from serving.gateway.metrics import BUCKETS_S, OUTCOMES, Metrics, Series

EVERY_S = 2.0  # a curve moves while one looks, and a sample costs nothing beside an inference
KEPT_S = 900.0
MAX_SERIES = 32  # of a sample: 450 of them hold some 3 MB at most
MAX_LISTENERS = 16  # pages that are open at the same time; a guess, not measured
REST = ("others", "", "")  # labels

Changes = Callable[
    [], Mapping[str, Sequence[tuple[float, str]]]
]  # of the states of pools: when (time.time()), and to which


class Totals(NamedTuple):
    """Of one series: requests by outcome, request times by bucket, seconds in the queue and at backends."""

    outcomes: tuple[int, ...] = (0,) * len(OUTCOMES)
    buckets: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    queue_s: float = 0.0
    backend_s: float = 0.0

    def plus(self, other: Totals, times: int = 1) -> Totals:
        return Totals(
            tuple(a + times * b for a, b in zip(self.outcomes, other.outcomes, strict=True)),
            tuple(a + times * b for a, b in zip(self.buckets, other.buckets, strict=True)),
            self.queue_s + times * other.queue_s,
            self.backend_s + times * other.backend_s,
        )


Row = tuple[tuple[str, str, str], Totals]  # labels first


class History:
    """`changes`: every change of a pool's state that is remembered. `scaler`: what the scaler says now, as JSON."""

    def __init__(self, metrics: Metrics, changes: Changes, scaler: Callable[[], bytes] = lambda: b"null") -> None:
        self._metrics = metrics
        self._changes = changes
        self._scaler = scaler
        self._began = self._looked = time()
        self._before: dict[tuple[str, str, str], Totals] = {}
        self._server_s: dict[str, float] = {}  # by pool: seconds that its servers were there
        self._samples: deque[bytes] = deque(maxlen=round(KEPT_S / EVERY_S))
        self._number = 0  # of samples that were taken
        self._num_listeners = 0
        self._came = asyncio.Event()
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(forever("the look at what was counted", self._run))

    def close(self) -> None:
        """Whoever listens hears that it is over."""
        self._is_over = True
        self._came.set()

    async def stop(self) -> None:
        self.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Takes a sample."""
        counted = {series.labels: _totals(series) for series in await self._metrics.settled()}
        now = time()
        grown = [(labels, it.plus(self._before.get(labels, Totals()), -1)) for labels, it in counted.items()]
        seconds, self._before, self._looked = now - self._looked, counted, now
        pools = self._metrics.pools()
        for pool in pools:
            self._server_s[pool.name] = self._server_s.get(pool.name, 0.0) + pool.num_ready * seconds
        sample = {
            "at": round(now, 3),
            "seconds": round(seconds, 3),
            "series": _busiest(grown),
            "pools": {
                pool.name: {
                    "state": pool.state,
                    "since": round(pool.since, 3),
                    "share": round(pool.share, 3),
                    "in_flight": pool.in_flight,
                    "queued": pool.num_waiting,
                    "servers": pool.num_ready,
                }
                for pool in pools
            },
        }
        self._samples.append(orjson.dumps(sample))
        self._number += 1
        self._came.set()
        self._came = asyncio.Event()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events: `start` with all that is kept, then each sample, and `scaler` when that says something else.

        Raises Overloaded where too many listen.
        """
        if self._num_listeners >= MAX_LISTENERS:
            raise errors.Overloaded(f"{MAX_LISTENERS} pages listen already, the most that may", retry_after_s=EVERY_S)
        return self._events()

    async def _events(self) -> AsyncIterator[bytes]:
        self._num_listeners += 1
        try:
            seen, said = self._number, self._scaler()
            yield b"event: start\ndata: %b\n\n" % self.told()
            while not self._is_over:
                await self._came.wait()
                missed, seen = self._number - seen, self._number
                for sample in list(islice(reversed(self._samples), missed))[::-1]:
                    yield b"data: %b\n\n" % sample
                if (now := self._scaler()) != said:
                    said = now
                    yield b"event: scaler\ndata: %b\n\n" % said
        finally:
            self._num_listeners -= 1

    def told(self) -> bytes:
        """All that is kept, as JSON: what was counted since the start up to the last sample, and the samples."""
        head: dict[str, Any] = {
            "version": 1,
            "began": round(self._began, 3),
            "every_s": EVERY_S,
            "kept_s": KEPT_S,
            "bounds_s": BUCKETS_S,
            "outcomes": OUTCOMES,
            "prices": {pool.name: pool.price_per_hour for pool in self._metrics.pools()},
            "server_s": {name: round(seconds, 1) for name, seconds in self._server_s.items()},
            "changes": self._changes(),
            "totals": _busiest(self._before.items()),
        }
        return b'%b,"scaler":%b,"samples":[%b]}' % (orjson.dumps(head)[:-1], self._scaler(), b",".join(self._samples))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()


def _totals(series: Series) -> Totals:
    buckets = tuple(series.request.counts)
    return Totals(tuple(series.outcomes.values()), buckets, series.queue.total, series.backend.total)


def _busiest(rows: Iterable[Row]) -> list[list[Any]]:
    """As JSON: those with requests, the busiest first; past MAX_SERIES the rest are one."""
    busy = sorted((row for row in rows if any(row[1].outcomes)), key=lambda row: -sum(row[1].outcomes))
    if len(busy) > MAX_SERIES:
        rest = Totals()
        for _, it in busy[MAX_SERIES - 1 :]:
            rest = rest.plus(it)
        busy[MAX_SERIES - 1 :] = [(REST, rest)]
    return [[*labels, it.outcomes, it.buckets, round(it.queue_s, 6), round(it.backend_s, 6)] for labels, it in busy]
