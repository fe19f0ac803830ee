"""Prints a line whenever a pool's state or its wanted number of servers changes, while `tandem up` runs.

Asks the gateway for its status once a second. How many servers would pay is decided by `serving/decisions/demand.py`; nothing is started or
stopped here. Requests of clients never come this way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from serving import http_client
from serving.decisions.demand import Demand, pair_of, sentences, target_for
from serving.decisions.wake import Target
from serving.settings import GatewaySettings, is_loopback

MAX_BYTES = 2**20  # of what a probe is answered; a status of the gateway has some KB
PROBE_TIMEOUT_S = 2.0  # a healthy server answers in milliseconds; on a busy machine in a second (guess, not measured)


async def http_status(url: str, timeout_s: float = PROBE_TIMEOUT_S, key: str | None = None) -> int | None:
    """HTTP status of a GET request, with an API key if there is one, None where nothing answers."""
    parts = urlsplit(url)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        async with asyncio.timeout(timeout_s):
            answer = await http_client.get(
                parts.hostname or "", parts.port or 80, parts.path or "/", headers, MAX_BYTES
            )
    except (OSError, ValueError):  # TimeoutError is one
        return None
    return answer.status


EVERY_S = 1.0  # how often `wake.next_target` is to be called
GIVE_UP_S = 5.0  # a gateway that is so busy has other news
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """A variant that no Triton of a pool could load, from a gateway's status."""

    name: str
    model: str
    reason: str
    is_missed: bool  # no other variant or pool serves the model

    def __str__(self) -> str:
        return f"not served: {self.name}: {self.reason}" + ("" if self.is_missed else f" ({self.model} is served)")


def not_loaded(status: Mapping[str, Any]) -> list[NotLoaded]:
    """Each once, however many pools it failed in."""
    found = {
        failure["name"]: NotLoaded(failure["name"], model, failure["reason"], told["public"] is None)
        for model, told in status["models"].items()
        for failure in told["not_loaded"]
    }
    return list(found.values())


class PoolChanges:
    """What was said last, so that only changes are said."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._pair = pair_of(settings.pools)
        self._states: dict[str, str] = {}
        self._wanted: Target | None = None
        self._served: dict[str, str] | None = None

    def lines(self, status: Mapping[str, Any], now: float) -> list[str]:
        """From a gateway's status. Nothing is said at the first look."""
        pools: Mapping[str, Any] = status["pools"]
        states = {name: str(pool["state"]) for name, pool in pools.items()}
        said = [f"{name}: {state}" for name, state in states.items() if self._states.get(name, state) != state]
        self._states = states
        said += self._of_models(status)
        if self._pair is None:
            return said
        demands = {name: _demand(pool) for name, pool in pools.items()}
        old = self._wanted
        self._wanted = target_for(old, now, self._pair, demands)
        return said if old is None else said + sentences(old, self._wanted, self._pair, demands)

    def _of_models(self, status: Mapping[str, Any]) -> list[str]:
        """Variants that came in another version or with other files, and those that could not be loaded."""
        old = self._served
        new = {
            v["name"]: f"served: {v['name']} ({v['digest'][:19]})"
            for m in status["models"].values()
            for v in m["variants"]
        }
        new |= {failure.name: str(failure) for failure in not_loaded(status)}
        self._served = new
        if old is None:
            return []
        gone = [f"no longer served: {name}" for name in sorted(old.keys() - new.keys())]
        return [line for name, line in sorted(new.items()) if old.get(name) != line] + gone


def _demand(pool: Mapping[str, Any]) -> Demand:
    num_ready = sum(bool(server["alive"] and server["variants"]) for server in pool["servers"])
    return Demand(pool["demand_replicas"], pool["demand_only_replicas"], num_ready, pool["demand_unseen_replicas"])


def read_status(url: str, timeout_s: float = GIVE_UP_S, key: str | None = None) -> dict[str, Any]:
    """The status of a gateway, with an API key if it wants one. Raises OSError or ValueError where it does not answer."""
    request = urllib.request.Request(f"{url}/admin/status", headers={} if key is None else {"X-API-Key": key})
    with _opened(request, timeout_s) as answer:
        status: dict[str, Any] = json.load(answer)
        return status


def read_index(triton: str, timeout_s: float = GIVE_UP_S) -> list[dict[str, Any]]:
    """A Triton's own. Raises OSError or ValueError where it does not answer."""
    request = urllib.request.Request(f"{triton}/v2/repository/index", data=b"", method="POST")
    with _opened(request, timeout_s) as answer:
        index: list[dict[str, Any]] = json.load(answer)
        return index


def _opened(request: urllib.request.Request, timeout_s: float) -> Any:
    """Without a proxy on all of loopback: of `no_proxy` urllib reads names, and no networks."""
    host = urlsplit(request.full_url).hostname or ""
    opener = _DIRECT.open if is_loopback(host) else urllib.request.urlopen
    return opener(request, timeout=timeout_s)


async def print_changes(
    url: str, settings: GatewaySettings, say: Callable[[str], None], key: str | None = None
) -> None:
    """Until it is cancelled. `key`: an API key, if the gateway wants one."""
    changes = PoolChanges(settings)
    while True:
        with contextlib.suppress(OSError, ValueError):  # its end is told by others
            status = await asyncio.to_thread(read_status, url, GIVE_UP_S, key)
            for line in changes.lines(status, time.monotonic()):
                say(line)
        await asyncio.sleep(EVERY_S)
