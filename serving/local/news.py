"""What happens to the pools while `tandem up` runs, a line for each change: states, and how many servers would pay.

It asks its gateway once a second. How many servers would pay is decided by `serving/planning/wanted.py`; nobody starts or stops one here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from serving.planning.wake import Wanted
from serving.planning.wanted import Demand, pair_of, sentences, wanted
from serving.settings import GatewaySettings

EVERY_S = 1.0  # how often `wake.want` is to be asked
GIVE_UP_S = 5.0  # a gateway that is so busy has other news


class News:
    """What was said last, so that only changes are said."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._pair = pair_of(settings.pools)
        self._states: dict[str, str] = {}
        self._wanted: Wanted | None = None

    def lines(self, pools: Mapping[str, Any], now: float) -> list[str]:
        """From `pools` of a gateway's status. Nothing is said at the first look."""
        states = {name: str(pool["state"]) for name, pool in pools.items()}
        said = [f"{name}: {state}" for name, state in states.items() if self._states.get(name, state) != state]
        self._states = states
        if self._pair is None:
            return said
        demands = {name: _demand(pool) for name, pool in pools.items()}
        old = self._wanted
        self._wanted = wanted(old, now, self._pair, demands)
        return said if old is None else said + sentences(old, self._wanted, self._pair, demands)


def _demand(pool: Mapping[str, Any]) -> Demand:
    num_ready = sum(bool(server["alive"] and server["variants"]) for server in pool["servers"])
    return Demand(pool["demand_replicas"], pool["demand_only_replicas"], num_ready, pool["demand_unseen_replicas"])


def read_pools_status(url: str, timeout_s: float = GIVE_UP_S, key: str | None = None) -> dict[str, Any]:
    """`pools` of the status of a gateway, with an API key if it wants one. Raises OSError or ValueError where it does not answer."""
    request = urllib.request.Request(f"{url}/admin/status", headers={} if key is None else {"X-API-Key": key})
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        pools: dict[str, Any] = json.load(answer)["pools"]
        return pools


async def tell(url: str, settings: GatewaySettings, say: Callable[[str], None], key: str | None = None) -> None:
    """Until it is cancelled. `key`: an API key, if the gateway wants one."""
    news = News(settings)
    while True:
        with contextlib.suppress(OSError, ValueError):  # its end is told by others
            pools = await asyncio.to_thread(read_pools_status, url, GIVE_UP_S, key)
            for line in news.lines(pools, time.monotonic()):
                say(line)
        await asyncio.sleep(EVERY_S)
