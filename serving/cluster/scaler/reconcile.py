"""Once a second reads all gateways, decides how many servers are wanted, and publishes that.

The gateways are asked side by side, none for longer than `gateways.LIMIT_S`; names and the cluster are read on threads that nobody waits
for. `RestartDetector` and `SilenceLog` are pure. Only changes are logged: a decision with its reason, a gateway that falls silent, why no
number is published.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from serving.cluster.scaler.cluster_state import ClusterState
from serving.cluster.scaler.gateways import (
    Endpoint,
    GatewayNames,
    GatewayReport,
    NoReport,
    UnusableReport,
    parse_report,
    read_demand,
)
from serving.cluster.scaler.state import Result, ScalerState, Traffic
from serving.decisions.bursts import Needs, noted
from serving.decisions.cold_start import ColdStart, PoolSnapshot, follow
from serving.decisions.scaling import Scaling, ScalingInput, step
from serving.decisions.sizes import Sizes, as_measured
from serving.settings import SCALING_RULES, ScalingRules

Good = Mapping[str, float]  # by pool: requests answered well since it began

AGAIN = " (again)"  # two names alternate, so that the number of labels stays bounded


class RestartDetector:
    """Knows a gateway that restarted by its count of good answers, because a count never goes back.

    A container that ends is started again in its pod, with the address and without its memory: what it publishes of its traffic begins at
    nothing and is right after half a minute. So it counts as another gateway, and what it was as one that has left.
    """

    def __init__(self) -> None:
        self._good: dict[str, Good] = {}
        self._again: set[str] = set()

    def observe(self, addresses: Collection[str], good: Mapping[str, Good]) -> tuple[str, ...]:
        """Returns the gateways that have restarted since their last answer. `addresses`: of all; `good`: of those that answered."""
        anew = tuple(it for it, now in good.items() if it in self._good and _is_less(now, self._good[it]))
        self._again ^= set(anew)
        self._again &= set(addresses)
        self._good = {it: now for it, now in {**self._good, **good}.items() if it in addresses}
        return anew

    def name(self, address: str) -> str:
        return address + AGAIN if address in self._again else address


def _is_less(now: Good, before: Good) -> bool:
    return any(now.get(pool, 0.0) < count for pool, count in before.items())


TRAFFIC_S = 60.0  # over which good and failed requests are counted; a guess


class TrafficLog:
    """What came of the last minute's requests, by pool; under "" of those that no pool could take.

    What a gateway tells first is its past, and counts for nothing.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, GatewayReport]] = {}  # the last report of each, and when
        self._added: deque[tuple[float, dict[str, Traffic]]] = deque()

    def observe(self, now: float, reports: Mapping[str, GatewayReport]) -> dict[str, Traffic]:
        added: dict[str, Traffic] = {}
        for address, it in reports.items():
            _, before = self._before.get(address, (now, it))
            self._before[address] = now, it
            for pool, count in it.failed.items():
                was = added.get(pool, Traffic())
                good = it.good.get(pool, 0.0) - before.good.get(pool, 0.0)
                failed = count - before.failed.get(pool, 0.0)
                added[pool] = Traffic(was.num_good + max(0.0, good), was.num_failed + max(0.0, failed))
        self._before = {address: last for address, last in self._before.items() if last[0] > now - TRAFFIC_S}
        self._added.append((now, added))
        while self._added[0][0] <= now - TRAFFIC_S:
            self._added.popleft()
        pools = {pool for _, each in self._added for pool in each}
        return {pool: _sum(each.get(pool, Traffic()) for _, each in self._added) for pool in sorted(pools)}


def _sum(each: Iterable[Traffic]) -> Traffic:
    found = list(each)
    return Traffic(sum(it.num_good for it in found), sum(it.num_failed for it in found))


QUIET_S = 60.0  # between two silences of one gateway that are logged; a guess


class SilenceLog:
    """Logs when a gateway falls silent and when it answers again: at most once a minute each, however often it misses a round."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}  # when a silence of it was last logged
        self._is_logged: set[str] = set()  # of those that are silent now

    def lines(self, now: float, heard: Collection[str], silent: Mapping[str, str]) -> Iterator[str]:
        """`silent`: the reason, by address."""
        for address in sorted(self._is_logged & set(heard)):
            yield f"gateway {address} answers again"
        self._is_logged &= set(silent)
        for address, why in silent.items():
            if address not in self._is_logged and now - self._logged_at.get(address, -QUIET_S) >= QUIET_S:
                self._is_logged.add(address)
                self._logged_at[address] = now
                yield f"gateway {address} does not answer: {why}"
        self._logged_at = {it: at for it, at in self._logged_at.items() if it in heard or it in silent}


EVERY_S = 1.0  # how often `sizes.next_fleet` is to be called


@dataclass(frozen=True, slots=True)
class Round:
    """What the gateways reported in one round, by address, and why others did not."""

    reports: Mapping[str, GatewayReport]
    silent: Mapping[str, str]


async def read_all(places: tuple[Endpoint, ...], pools: tuple[str, ...], key: str | None) -> Round:
    answers = await asyncio.gather(*(_ask(place, pools, key) for place in places))
    found = dict(zip((place.text for place in places), answers, strict=True))
    return Round(
        {address: it for address, it in found.items() if isinstance(it, GatewayReport)},
        {address: it for address, it in found.items() if isinstance(it, str)},
    )


async def _ask(place: Endpoint, pools: tuple[str, ...], key: str | None) -> GatewayReport | str:
    try:
        return parse_report(await read_demand(place.address, place.port, key), pools)
    except (NoReport, UnusableReport) as error:
        return str(error)


class Reconciler:
    def __init__(
        self,
        names: GatewayNames,
        cluster: ClusterState,
        sizes: Sizes,
        state: ScalerState,
        key: Callable[[], str | None],
        say: Callable[[str], None],
        rules: ScalingRules = SCALING_RULES,
    ) -> None:
        self._names, self._cluster, self._sizes, self._state = names, cluster, sizes, state
        self._key, self._say, self._rules = key, say, rules
        self._scaling = Scaling()
        self._last_wanted: Mapping[str, int] = {}
        self._cold_starts: tuple[ColdStart, ...] = ()
        self._before = Round({}, {})
        self._restarts, self._silences, self._traffic = RestartDetector(), SilenceLog(), TrafficLog()
        self._problem = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))

    async def look(self) -> None:
        named = self._names.look(time.monotonic())
        places = tuple(place.text for place in named.places)
        now = self._by_restart(places, await read_all(named.places, self._state.pools, self._key()))
        look = ScalingInput(
            addresses=tuple(map(self._restarts.name, places)),
            heard={address: it.demands for address, it in now.reports.items()},
            are_named=named.are_known,
            there=self._cluster.replicas,
            is_there_known=self._cluster.is_settled(),
            needs=self._noted(),
        )
        sizes = as_measured(self._sizes, self._cold_starts)
        old, self._scaling = self._scaling, step(self._scaling, time.monotonic(), look, sizes, self._rules)
        self._follow_cold_starts(now)
        self._log_changes(old, now, named.problem)
        self._before = now
        traffic = self._traffic.observe(self._scaling.at, now.reports)
        is_readable, nodes = self._cluster.is_readable, self._cluster.num_nodes
        self._state.publish(Result(self._scaling, now.silent, self._cold_starts, is_readable, traffic, nodes))

    def _noted(self) -> Mapping[str, tuple[Needs, ...]]:
        """The bursts that a scaler before this one saw, while this one has no number yet."""
        if self._scaling.target is not None or not self._state.note:
            return {}
        return noted(self._state.note, time.monotonic(), time.time())

    def _by_restart(self, places: tuple[str, ...], now: Round) -> Round:
        """The same round, with another name for a gateway that has restarted at its address."""
        for address in self._restarts.observe(places, {address: it.good for address, it in now.reports.items()}):
            self._say(f"gateway {address} has restarted: its earlier demand fades")
        name = self._restarts.name
        return Round(
            {name(address): it for address, it in now.reports.items()},
            {name(address): why for address, why in now.silent.items()},
        )

    def _follow_cold_starts(self, now: Round) -> None:
        wanted, demands = self._scaling.replicas, self._scaling.demands
        if wanted is not None and demands is not None:
            pools = {
                pool: PoolSnapshot(
                    number,
                    demands[pool].num_ready,
                    any(it.states.get(pool) == "ready" for it in now.reports.values()),
                    self._has_answered(pool, now),
                    self._cluster.servers.get(pool, ()),
                )
                for pool, number in wanted.items()
            }
            self._cold_starts = follow(self._cold_starts, time.time(), self._last_wanted, pools)
            self._last_wanted = wanted
        self._cluster.watch({it.pool for it in self._cold_starts if not it.is_over})

    def _has_answered(self, pool: str, now: Round) -> bool:
        before = self._before.reports
        return any(
            it.good[pool] > before[address].good[pool] for address, it in now.reports.items() if address in before
        )

    def _log_changes(self, old: Scaling, now: Round, problem: str) -> None:
        new = self._scaling
        for change in new.changes:
            self._say(f"{change.sentence}: {change.before} -> {change.after}, {change.reason}")
        for line in self._silences.lines(new.at, now.reports.keys(), now.silent):
            self._say(line)
        if problem != self._problem:
            self._say(problem or "the gateways' names have addresses again")
        self._problem = problem
        if (new.replicas is None) != (old.replicas is None) or (new.holds and new.holds != old.holds):
            self._say(
                f"no number is published: {new.holds}"
                if new.replicas is None
                else f"published: {_numbers(new.replicas)}"
            )


def _numbers(replicas: Mapping[str, int]) -> str:
    return ", ".join(f"{pool} {number}" for pool, number in replicas.items())
