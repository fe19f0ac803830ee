"""Lets Tritons that have grown too large have a new start: one at a time, and only while others answer what they serve.

Which one wants it is told by its index (`serving/local/recycling.py`). It gets nothing new; once what this gateway sent there is answered,
a load of RESTART tells its supervisor, which lets Triton finish what others sent. Gateways choose the same one, by its address, and a
request that comes too late is tried elsewhere, as always when a server is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter

from serving.gateway.fleet.server import RESTART, Server
from serving.gateway.fleet.upstream import Lost

LOOK_S = 0.5
GIVE_UP_S = 120.0  # a supervisor that does nothing, or models that take as long to be loaded (guess, not measured)

log = logging.getLogger("tandem")


class Recycling:
    """`pools` are the catalogue's own; `on_change`: whenever a server is to get nothing, or something, again."""

    def __init__(self, pools: Mapping[str, Sequence[Server]], on_change: Callable[[], None]) -> None:
        self._pools = pools
        self._on_change = on_change
        self._leaving: Server | None = None
        self._since = 0.0
        self._is_granted = False
        self._in_vain: set[tuple[str, str]] = set()  # (url, why) of those that were granted it and did nothing

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._leaving is None:
                self._choose()
            else:
                await self._follow(self._leaving)

    def _servers(self) -> Iterator[Server]:
        return (server for servers in self._pools.values() for server in servers)

    def _choose(self) -> None:
        wanting = [server for server in self._servers() if server.alive and server.snapshot.wants_restart]
        for server in sorted(wanting, key=lambda it: it.target.url):
            wish = server.target.url, server.snapshot.wants_restart
            if wish not in self._in_vain and self._can_be_spared(server):
                log.warning(
                    "%s gets nothing until it was started anew: %s", server.target.url, server.snapshot.wants_restart
                )
                self._leaving, self._since, self._is_granted = server, perf_counter(), False
                server.is_leaving = True
                self._on_change()
                return

    def _can_be_spared(self, server: Server) -> bool:
        """Whether others serve each of its models, by whatever variant that its public name may mean."""
        others = {
            v.model
            for it in self._servers()
            if it is not server and it.alive
            for v in it.variants.values()
            if v.in_space
        }
        return {variant.model for variant in server.snapshot.served.values()} <= others

    async def _follow(self, server: Server) -> None:
        is_back = server.alive and not server.snapshot.wants_restart and bool(server.snapshot.served)
        is_needed = not self._is_granted and not self._can_be_spared(server)
        is_late = perf_counter() - self._since > GIVE_UP_S
        if is_late:
            self._in_vain.add((server.target.url, server.snapshot.wants_restart))
        if is_back or is_needed or is_late or server not in set(self._servers()):
            log.warning("%s gets requests again", server.target.url)
            self._leaving, server.is_leaving = None, False
            self._on_change()
        elif not self._is_granted and not server.target.busy and not server.replica.num_in_flight:
            self._is_granted = True
            try:
                await server.fetch(b"POST", f"/v2/repository/models/{RESTART}/load", b"{}", fresh=True)
            except Lost:
                return  # it is being started anew, for whoever granted it first
