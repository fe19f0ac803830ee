"""Counts what tenants use, holds them to their quotas, and keeps the counts where other gateways and the next start find them.

The counting is `serving/usage/ledger.py`'s; here are its clock, its store and its errors. Every `SYNC_S` what is new goes to the store and
what all gateways have counted comes back, so that a crash loses less than a second. Rule: a store that is away is told in the log and the
metric `tandem_usage_current`, and takes no count away: what is new waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic
from typing import NamedTuple

from serving import errors
from serving.control.document import RateQuota, TenantControl
from serving.errors import EnvironmentFault
from serving.gateway.background import Slices, forever
from serving.gateway.request.route import Destination, Route
from serving.keys.key import ROLLOUT
from serving.measure.energy import Counter
from serving.usage.ledger import WHATS, Amounts, Ask, Batch, Excess, Lease, Ledger, Limit, Part, Quotas, Window
from serving.usage.stores import SLOT_S, Servers, Slot, UsageStore, add_seconds

SYNC_S = 0.5
AWAY_S = 2.0  # without the store, before it counts as away: three tries
RETRY_AFTER_S = 1.0


class _Told(NamedTuple):
    """By the store. `is_whole`: it has all that it was given before."""

    is_whole: bool
    totals: dict[Window, Amounts]
    leases: dict[Part, Lease]


log = logging.getLogger("tandem")


def quotas_of(tenants: Mapping[str, TenantControl]) -> dict[str, Quotas]:
    """Of those that have any."""
    found = {}
    for name, tenant in tenants.items():
        given = {what: getattr(tenant.quotas, what) for what in WHATS}
        limits = tuple(
            Limit(WHATS.index(what), quota.per, quota.limit)
            for what, quota in given.items()
            if isinstance(quota, RateQuota)
        )
        if limits or tenant.quotas.concurrent is not None:
            found[name] = Quotas(limits, tenant.quotas.concurrent)
    return found


class Usage:
    """Asks the store at once.

    `prices_per_hour`: of one server of each pool. `present`: servers of each pool now. `meters`: of pools that have one.
    """

    def __init__(
        self,
        store: UsageStore,
        prices_per_hour: Mapping[str, float],
        present: Callable[[], Mapping[str, Servers]],
        *,
        is_closed_while_away: bool = False,
        meters: Mapping[str, Counter] | None = None,
    ) -> None:
        self.ledger = Ledger()
        self._store = store
        self._is_closed_while_away = is_closed_while_away
        self._prices_per_s = {name: price / 3600 for name, price in prices_per_hour.items()}
        self._present = present
        self._writer = secrets.token_hex(8)
        self._number = 1
        self._there: dict[str, Servers] = {}  # of each pool, at the last look
        self._looked_at = monotonic()
        self._seconds: dict[str, dict[int, tuple[float, float]]] = {}  # of servers of each pool, by the minute
        self._meters = dict(meters or {})  # of pools
        self._read: dict[str, float] = {}  # what each said last
        self._joules: dict[Slot, float] = {}  # of the minute that goes on
        self.joules: dict[str, float] = {}  # by pool, since this process began
        self._problem = ""
        self._good_at = monotonic()
        self._task: asyncio.Task[None] | None = None
        self._exchanging: asyncio.Task[_Told] | None = None  # with the store, on a thread
        try:
            for _ in self.ledger.hears(store.totals(time.time()), {}):  # before the first request
                pass
            minute = int(time.time() // SLOT_S)
            for slot, seen in store.servers(time.time()).items():
                if slot.number == minute:  # which others began, or the gateway in whose place this is
                    self._seconds[slot.pool] = {minute: (seen.present * SLOT_S, seen.answering * SLOT_S)}
        except EnvironmentFault as error:
            self._good_at -= AWAY_S
            self._say(str(error))

    @property
    def is_current(self) -> bool:
        """Whether the store was reached lately."""
        return not self._problem

    def told(self) -> dict[str, str | None]:
        """For `/admin/status`."""
        return {"place": self._store.name, "problem": self._problem or None}

    def start(self) -> None:
        self._task = asyncio.create_task(forever("keeping what tenants use", self._run))

    async def stop(self) -> None:
        """What is new is kept, if the store can be reached."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._exchanging is not None:  # which no thread hears to stop
            await asyncio.gather(self._exchanging, return_exceptions=True)
        self._look()
        if await self._sync():
            await self._sync()  # what was new while that was on its way
        elif self.ledger.sums:
            log.error("%s was not reached: what was counted and not kept yet is lost", self._store.name)
        self._store.close()

    def require(self, tenant: str, num_bytes: int) -> None:
        """Of a request of which no more is known than its head: so many bytes, 0 where that does not say. Raises as `begin`."""
        if (excess := self.excess(tenant, num_bytes)) is not None:
            raise error_of(excess)

    def excess(self, tenant: str, num_bytes: int) -> Excess | None:
        """Why `require` would not let it in. Raises NotReady alone."""
        if self._problem:
            self._require_store(tenant)
        return self.ledger.excess(time.time(), tenant, num_bytes)

    def begin(self, tenant: str, num_bytes: int, *, is_first: bool = True) -> float:
        """Of an inference, the first of its request or another; returns when (time.time()).

        Raises QuotaExceeded; TooLarge for what no quota ever lets in; NotReady while the store is away, where that closes.
        """
        if self._problem:
            self._require_store(tenant)
        now = time.time()
        if (excess := self.ledger.begin(now, tenant, num_bytes, is_first=is_first)) is not None:
            raise error_of(excess)
        return now

    def _require_store(self, tenant: str) -> None:
        if self._is_closed_while_away and tenant in self.ledger.quotas:
            raise errors.NotReady(
                "what this tenant has used is not known, because the place that keeps it cannot be reached; try again",
                retry_after_s=RETRY_AFTER_S,
            )

    def unanswered(self, tenant: str, num_bytes: int, began: float, *, is_first: bool = True) -> None:
        self.ledger.unanswered(time.time(), began, tenant, num_bytes, is_first=is_first)

    def left(self, tenant: str) -> None:
        """All inferences of a request are over."""
        self.ledger.left(tenant)

    def answered(
        self,
        tenant: str,
        num_bytes: int,
        route: Route,
        destination: Destination,
        rows: float,
        *,
        is_first: bool = True,
    ) -> None:
        """By so many seconds of a server as it takes of one that is busy with full executions."""
        device_s = destination.candidate.service.work_s(rows)
        dollars = device_s * self._prices_per_s.get(destination.pool, 0.0)
        answered = route.model, destination.pool, device_s, dollars, rows * route.usual_length
        self.ledger.end(time.time(), tenant, num_bytes, answered, is_first=is_first)

    def late(self, tenant: str, route: Route, destination: Destination, rows: float) -> None:
        """The same seconds of an inference that was given up, by `unanswered`, before the server was done with it."""
        self.answered(tenant, 0, route, destination, rows, is_first=False)

    def copied(self, model: str, pool: str, device_s: float) -> None:
        """What a copy for a rollout took, which is no tenant's."""
        dollars = device_s * self._prices_per_s.get(pool, 0.0)
        self.ledger.end(time.time(), ROLLOUT, 0, (model, pool, device_s, dollars, 0.0), is_first=False)

    # -- the store ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._look()
            await self._sync()
            await asyncio.sleep(SYNC_S)

    def _look(self) -> None:
        """What was there at the last look was there until now."""
        now, wall = monotonic(), time.time()
        took_s, self._looked_at = now - self._looked_at, now
        self._meter(int(wall // SLOT_S))
        for pool, (present, answering, _) in self._there.items():
            add_seconds(self._seconds.setdefault(pool, {}), wall - took_s, wall, present, answering)
        self._there = dict(self._present())

    def _seen(self) -> dict[Slot, Servers]:
        """In the minutes that the store has not to their ends."""
        return {
            (slot := Slot(minute, pool)): Servers(there_s / SLOT_S, answering_s / SLOT_S, self._joules.get(slot, 0.0))
            for pool, minutes in self._seconds.items()
            for minute, (there_s, answering_s) in minutes.items()
        }

    def _meter(self, minute: int) -> None:
        self._joules = {slot: joules for slot, joules in self._joules.items() if slot.number == minute}
        for pool, read in self._meters.items():
            try:
                now = read()
            except (OSError, ValueError):
                continue
            before, self._read[pool] = self._read.get(pool, now), now
            more = max(0.0, now - before)  # a counter that began anew says nothing
            self.joules[pool] = self.joules.get(pool, 0.0) + more
            self._joules[Slot(minute, pool)] = self._joules.get(Slot(minute, pool), 0.0) + more

    async def _sync(self) -> bool:
        """Whether the store has it."""
        slices, asks = Slices(), dict[Part, Ask]()
        for _ in self.ledger.gathers():
            await slices.rest()
        minute, batch, seen = int(time.time() // SLOT_S), self.ledger.hand_over(), self._seen()
        for part, ask in self.ledger.asks(time.time(), self._writer):
            asks[part] = ask
            await slices.rest()
        try:
            self._exchanging = asyncio.create_task(asyncio.to_thread(self._exchange, batch, seen, asks))
            told = await asyncio.shield(self._exchanging)
        except EnvironmentFault as error:
            self._say(str(error))
            return False
        self._number += 1
        for minutes in self._seconds.values():
            for over in [it for it in minutes if it < minute]:
                del minutes[over]
        if not told.is_whole:
            log.error(
                "%s has lost counts that it had: quotas go on by what this gateway knows of them", self._store.name
            )
        for _ in self.ledger.hears(told.totals, told.leases, has_forgotten=not told.is_whole):
            await slices.rest()
        self._good_at = monotonic()
        if self._problem:
            self._problem = ""
            log.warning("%s is reached again; nothing that was counted meanwhile is lost", self._store.name)
        return True

    def _exchange(self, batch: Batch, seen: Mapping[Slot, Servers], asks: Mapping[Part, Ask]) -> _Told:
        """On a thread."""
        is_whole = self._store.add(self._writer, self._number, batch, seen)
        return _Told(is_whole, self._store.totals(time.time()), self._store.lease(self._writer, asks))

    def _say(self, problem: str) -> None:
        if self._problem or monotonic() < self._good_at + AWAY_S:
            return
        rest = "refused (503)" if self._is_closed_while_away else "let in by what this gateway counts itself"
        self._problem = f"{problem}. Requests of tenants with quotas are {rest} until it is reached"
        log.error("%s", self._problem)


def error_of(excess: Excess) -> errors.RequestError:
    if excess.is_too_large:
        return errors.TooLarge(f"quota: {excess.text}")
    return errors.QuotaExceeded(f"quota: {excess.text}", retry_after_s=again_s(excess))


def again_s(excess: Excess) -> float | None:
    """When to come again; None: never."""
    passes_in_s = excess.passes_in_s
    return RETRY_AFTER_S if passes_in_s is None else None if passes_in_s == inf else passes_in_s
