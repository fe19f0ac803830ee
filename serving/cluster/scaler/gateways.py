"""Which gateways are there, and what demand does each publish? Looks up the names in `--gateways`, reads and parses `/metrics/demand`.

A look-up may hang for half a minute where a resolver is gone, so it has a thread that nobody waits for; until it ends, the last known
addresses stay. Reading a gateway is a coroutine instead, because one that trickles must not hold up the scaler, nor its end. Of an older
gateway's `/metrics` only the lines needed are parsed: it may publish thousands. Rule: a gateway whose numbers cannot be right has not
reported.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from prometheus_client.parser import text_string_to_metric_families

from serving import http_client
from serving.cluster.objects.fields import one_line
from serving.decisions.demand import Demand
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
    """`problem`: why a name could not be looked up; empty where all could be. `are_known`: all names could be looked up this time."""

    places: tuple[Endpoint, ...]
    problem: str = ""
    are_known: bool = True


class GatewayNames:
    """Looks names up on threads; `look` never waits."""

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
    """One name and its addresses, unknown until the first look-up has ended."""

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


LIMIT_S = 2.0  # a gateway answers its metrics in a few ms; a guess for one that is fully loaded
# All metrics of 50 models with two variants on two pools are 1 MB; reading 8 MiB takes 2 s of a core at worst (measured).
MAX_BYTES = 8 * 2**20
WAYS_OUT = {
    401: "a key is wanted: TANDEM_API_KEY or --key-file, with scope metrics",
    403: "the key has no scope 'metrics'",
    404: "no metrics there: is it the admin listener's port?",
}


class NoReport(Exception):
    """A gateway did not answer; the text says why."""


class NoSuchPage(NoReport):
    """The gateway has no such page."""


async def read_demand(address: str, port: int, key: str | None = None) -> str:
    """Text for `parse_report`: `/metrics/demand`, or all metrics of an older gateway. Raises NoReport."""
    try:
        return await read_page(address, port, "/metrics/demand", key)
    except NoSuchPage:
        return await read_page(address, port, "/metrics", key)


async def read_page(address: str, port: int, path: str, key: str | None = None, limit_s: float = LIMIT_S) -> str:
    """The body. Raises NoReport."""
    try:
        async with asyncio.timeout(limit_s):
            return await _page(address, port, path, key)
    except TimeoutError:
        raise NoReport(f"no answer within {limit_s:g} s") from None
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else str(error) or type(error).__name__
        raise NoReport(why) from None


async def _page(address: str, port: int, path: str, key: str | None) -> str:
    answer = await http_client.get(address, port, path, {} if key is None else {"X-API-Key": key}, MAX_BYTES)
    if answer.status != 200:
        way_out = WAYS_OUT.get(answer.status)
        kind = NoSuchPage if answer.status == 404 else NoReport
        raise kind(f"it answers {answer.status}" + (f"; {way_out}" if way_out else ""))
    if not answer.has_length and not answer.body.endswith(b"\n"):  # the end of a line shows that the answer is whole
        raise NoReport("it closes the connection before its answer is whole")
    return answer.body.decode("utf-8", "replace")


DEMAND, ONLY, READY = "tandem_demand_replicas", "tandem_demand_only_replicas", "tandem_ready_servers"
UNSEEN = "tandem_demand_unseen_replicas"  # an older gateway, during an upgrade, does not publish it
SHARED = "tandem_demand_shared_replicas"  # of traffic that just several pools may answer, of more than two
STATE, REQUESTS = "tandem_pool_state", "tandem_requests_total"
NO_POOL = ""
# `failed` sums what an older gateway's page, which is that of all metrics, tells one by one.
FAILED = ("failed", "shed", "expired", "backend_error")
OUTCOME = re.compile(rf'outcome="(ok|{"|".join(FAILED)})"')
NUMBERS = (DEMAND, ONLY, READY, UNSEEN)
MOST = 100_000.0  # servers of a pool: no cluster has so many nodes
NEEDED = tuple(f"{name}{{" for name in (*NUMBERS, SHARED, STATE))


class UnusableReport(ValueError):
    """A gateway's numbers cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What one gateway published, by pool. `good`, `failed`: requests answered with success since it started, and those that failed by no
    client's fault; under "" what no pool could take."""

    demands: Mapping[str, Demand]
    states: Mapping[str, str]
    good: Mapping[str, float]
    failed: Mapping[str, float] = field(default_factory=dict)


def parse_report(text: str, pools: Collection[str]) -> GatewayReport:
    """Raises UnusableReport."""
    numbers: dict[str, dict[str, float]] = {name: {} for name in NUMBERS}
    shared: dict[str, dict[str, float]] = {pool: {} for pool in pools}
    states: dict[str, str] = {}
    good = dict.fromkeys(pools, 0.0)
    failed = {**good, NO_POOL: 0.0}
    lines = "\n".join(line for line in text.splitlines() if _is_needed(line))
    try:
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                pool = sample.labels.get("pool", "")
                if sample.name == REQUESTS and sample.labels.get("outcome") in FAILED and pool in failed:
                    failed[pool] += sample.value
                if pool not in good:
                    continue
                if sample.name in numbers:
                    numbers[sample.name][pool] = sample.value
                elif sample.name == SHARED:
                    _check(SHARED, pool, sample.value)
                    shared[pool][sample.labels.get("pools", "")] = sample.value
                elif sample.name == STATE and sample.value == 1:
                    states[pool] = sample.labels.get("state", "")
                elif sample.name == REQUESTS and sample.labels.get("outcome") == "ok":
                    good[pool] += sample.value
    except ValueError as error:
        raise UnusableReport(f"its metrics cannot be read ({one_line(error)[:200]})") from None
    for pool in pools:
        numbers[UNSEEN].setdefault(pool, 0.0)
        for name in NUMBERS:
            _check(name, pool, numbers[name].get(pool))
    demands = {
        p: Demand(numbers[DEMAND][p], numbers[ONLY][p], int(numbers[READY][p]), numbers[UNSEEN][p], shared[p])
        for p in pools
    }
    return GatewayReport(demands, states, good, failed)


def _is_needed(line: str) -> bool:
    return line.startswith(NEEDED) or (line.startswith(REQUESTS) and OUTCOME.search(line) is not None)


def _check(name: str, pool: str, value: float | None) -> None:
    if value is None:
        raise UnusableReport(
            f"it publishes no {name} of pool '{pool}': is it a gateway of this version, with the same tandem.yaml?"
        )
    if not isfinite(value) or not 0 <= value <= MOST:
        raise UnusableReport(f"{name} of pool '{pool}' is {value:g}")
