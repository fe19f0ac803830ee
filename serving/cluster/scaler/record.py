"""Keeps what a scaler paid for, by the minute, where gateways keep what tenants use, so that bills go by what there really was.

Rule: what the place does not take waits for it, up to a week of minutes; scaling never waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_hex

from serving.cluster.scaler.state import ScalerState
from serving.errors import EnvironmentFault
from serving.gateway.background import forever
from serving.usage.ledger import Batch
from serving.usage.stores import SLOT_S, Servers, Slot, UsageStore

SAVE_S = 5.0  # a crash loses so much of a minute that others saw, too
MOST_MINUTES = 7 * 24 * 60


class Record:
    def __init__(self, store: UsageStore, state: ScalerState, say: Callable[[str], None]) -> None:
        self._store, self._state, self._say = store, state, say
        self._writer, self._number = token_hex(8), 0
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._problem = ""

    def start(self) -> None:
        self._task = asyncio.create_task(forever("keeping what was paid for", self._run))

    async def stop(self) -> None:
        """What is new is kept, if the place can be reached."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._saving is not None:  # which no thread hears to stop
            await asyncio.wait([self._saving])
        await self._save()
        self._store.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            self._saving = asyncio.create_task(self._save())
            await asyncio.shield(self._saving)

    async def _save(self) -> None:
        """What is new; of the minute that goes on as far as it is."""
        sent = {name: dict(bill.by_minute) for name, bill in self._state.bills.items()}
        slots = {
            Slot(minute, name): Servers(*(it * self._state.bills[name].servers_per_card / SLOT_S for it in seconds))
            for name, minutes in sent.items()
            for minute, seconds in minutes.items()
        }
        self._number += 1
        problem = ""
        try:
            await asyncio.to_thread(self._store.add, self._writer, self._number, Batch(), slots, is_scaler=True)
        except EnvironmentFault as error:
            problem = str(error)
        if problem != self._problem:
            self._say(problem or f"{self._store.name} is reached again: nothing that was paid for meanwhile is lost")
            self._problem = problem
        for name, minutes in sent.items():
            over = sorted(minutes)[: -MOST_MINUTES if problem else -1]
            for minute in over:
                del self._state.bills[name].by_minute[minute]
