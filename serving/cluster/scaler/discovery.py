"""Finds the gateways that there are now: every address of the names in `--gateways`.

A look-up may hang for half a minute where a resolver is gone, so it has a thread that nobody waits for: until it ends, the last known
addresses stay. What counts as an address is the gateway's own (`gateway/fleet/addresses.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.gateway.fleet.addresses import LOOK_S, NoAddress, is_literal, look_up_now, split

Resolve = Callable[[str, int], list[str]]  # raises NoAddress, or another OSError where nobody could tell


@dataclass(frozen=True, slots=True)
class Endpoint:
    address: str
    port: int

    @property
    def text(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """`problem`: why a name could not be looked up, in words; empty where all could be. `are_known`: all could be, this time."""

    places: tuple[Endpoint, ...]
    problem: str = ""
    are_known: bool = True


class GatewayNames:
    """Asked at every look; never waits."""

    def __init__(self, urls: Sequence[str], resolve: Resolve = look_up_now) -> None:
        self._resolve = resolve
        self._names = [_Name(*split(url)) for url in urls]

    def look(self, now: float) -> Addresses:
        for name in self._names:
            name.look(now, self._resolve)
        places = {place: None for name in self._names for place in name.places}
        problem = next((name.problem for name in self._names if name.problem), "")
        return Addresses(tuple(places), problem, all(name.is_known for name in self._names))


class _Name:
    """What was not looked up yet is not known."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._asked_at = float("-inf")
        self._thread: threading.Thread | None = None
        self.places: tuple[Endpoint, ...] = (Endpoint(host, port),) if is_literal(host) else ()
        self.problem = ""
        self.is_known = is_literal(host)

    def look(self, now: float, resolve: Resolve) -> None:
        is_asked = self._thread is not None and self._thread.is_alive()
        if is_literal(self._host) or is_asked or now - self._asked_at < LOOK_S:
            return
        self._asked_at = now
        self._thread = threading.Thread(target=self._ask, args=(resolve,), name=f"look-up of {self._host}", daemon=True)
        self._thread.start()

    def _ask(self, resolve: Resolve) -> None:
        try:
            self.places = tuple(Endpoint(address, self._port) for address in resolve(self._host, self._port))
            self.problem, self.is_known = "", True
        except NoAddress:
            self.places, self.problem, self.is_known = (), f"{self._host} has no address", True
        except OSError as error:
            self.problem, self.is_known = f"{self._host} cannot be looked up ({error.strerror or error})", False
