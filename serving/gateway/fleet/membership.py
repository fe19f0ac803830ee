"""Which addresses do the URLs of each pool mean now?

Names are looked up again every few seconds, as long as the gateway runs. Rule: a resolver that fails must not empty a pool. What is known
stays; and of a name that has no address any more, servers that still answer stay: such a server may be leaving or may only have failed a
probe, so it is kept for as long as it lets new connections in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial

from serving.gateway.background import forever
from serving.gateway.fleet import addresses
from serving.gateway.fleet.addresses import LOOK_S, LookUp, NoAddress
from serving.settings import PoolSettings


class Membership:
    """`answering(pool)`: the addresses of its servers that answer. `on_change(pool)`: its URLs mean others than before."""

    def __init__(
        self,
        pools: Mapping[str, PoolSettings],
        look_up: LookUp,
        answering: Callable[[str], Collection[str]],
        on_change: Callable[[str], None],
    ) -> None:
        self._urls = {name: pool.urls for name, pool in pools.items()}
        self._look_up = look_up
        self._answering = answering
        self._on_change = on_change
        self.unknown: dict[str, dict[str, str]] = {name: {} for name in pools}  # URL -> why nobody can tell
        self._meant: dict[tuple[str, str], list[str]] = {}  # pool and URL of the settings -> addresses of servers
        self._nameless: set[tuple[str, str]] = set()  # of these, names without an address by now
        for name, urls in self._urls.items():
            self._meant |= {(name, url): [url] for url in urls if _is_literal(url)}

    def start(self) -> list[asyncio.Task[None]]:
        names = [(pool, url) for pool, urls in self._urls.items() for url in urls if not _is_literal(url)]
        return [
            asyncio.create_task(forever(f"looking up {url}", partial(self._follow, pool, url))) for pool, url in names
        ]

    def members(self, pool: str) -> dict[str, str]:
        """Address -> the URL of the settings that means it first, in the order of the settings."""
        members: dict[str, str] = {}
        for url in self._urls[pool]:
            for address in self._meant.get((pool, url), ()):
                members.setdefault(address, url)
        return members

    def is_known(self, pool: str) -> bool:
        """Whether every name was looked up once."""
        return all((pool, url) in self._meant or url in self.unknown[pool] for url in self._urls[pool])

    def is_named(self, pool: str, address: str) -> bool:
        """Whether anybody would still find it."""
        urls = (url for url in self._urls[pool] if (pool, url) not in self._nameless)
        return any(address in self._meant.get((pool, url), ()) for url in urls)

    async def _follow(self, pool: str, url: str) -> None:
        host, port = addresses.split(url)
        while True:
            try:
                found = await self._look_up(host, port)
            except OSError as error:
                self.unknown[pool][url] = error.strerror or str(error)
                if isinstance(error, NoAddress):
                    self._nameless.add((pool, url))
                    answering = self._answering(pool)
                    self._update(pool, url, [one for one in self._meant.get((pool, url), ()) if one in answering])
            else:
                self.unknown[pool].pop(url, None)
                self._nameless.discard((pool, url))
                self._update(pool, url, [addresses.url_of(address, port) for address in found])
            await asyncio.sleep(LOOK_S)

    def _update(self, pool: str, url: str, servers: list[str]) -> None:
        if self._meant.get((pool, url)) != servers:
            self._meant[pool, url] = servers
            self._on_change(pool)


def _is_literal(url: str) -> bool:
    return addresses.is_literal(addresses.split(url)[0])
