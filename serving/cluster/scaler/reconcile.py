"""One look after another: who is there, what they publish, what follows, and who is told.

The gateways are asked side by side, none for longer than `asking.LIMIT_S`; names and the cluster are looked at on threads that nobody
waits for. Lines are said for what changes alone: a decision with its reason, a gateway that falls silent, why nothing is told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serving.cluster.scaler.cluster_state import ClusterState
from serving.cluster.scaler.discovery import Names, Place
from serving.cluster.scaler.liveness import Silences, Starts
from serving.cluster.scaler.reports import Heard, NotHeard, NotUsable, demand, heard
from serving.cluster.scaler.state import Answer, Told
from serving.decisions.cold_start import ColdStart, Seen, follow
from serving.decisions.scaling import Lane, Look, Scaling, step
from serving.decisions.wake import WAKE_RULES, WakeRules

EVERY_S = 1.0  # how often `wake.want` is to be asked


@dataclass(frozen=True, slots=True)
class Round:
    """What the gateways said at one look, by address, and why others said nothing."""

    heard: Mapping[str, Heard]
    silent: Mapping[str, str]


async def ask_all(places: tuple[Place, ...], pools: tuple[str, ...], key: str | None) -> Round:
    answers = await asyncio.gather(*(_ask(place, pools, key) for place in places))
    found = dict(zip((place.text for place in places), answers, strict=True))
    return Round(
        {address: it for address, it in found.items() if isinstance(it, Heard)},
        {address: it for address, it in found.items() if isinstance(it, str)},
    )


async def _ask(place: Place, pools: tuple[str, ...], key: str | None) -> Heard | str:
    try:
        return heard(await demand(place.address, place.port, key), pools)
    except (NotHeard, NotUsable) as error:
        return str(error)


class Looking:
    def __init__(
        self,
        names: Names,
        cluster: ClusterState,
        lanes: tuple[Lane, ...],
        told: Told,
        key: Callable[[], str | None],
        say: Callable[[str], None],
        rules: WakeRules = WAKE_RULES,
    ) -> None:
        self._names, self._cluster, self._lanes, self._told = names, cluster, lanes, told
        self._key, self._say, self._rules = key, say, rules
        self._scaling = Scaling()
        self._last_wanted: Mapping[str, int] = {}
        self._cold_starts: tuple[ColdStart, ...] = ()
        self._before = Round({}, {})
        self._starts, self._silences = Starts(), Silences()
        self._problem = ""

    async def go_on(self) -> None:
        """Until it is cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, began + EVERY_S - time.monotonic()))

    async def look(self) -> None:
        named = self._names.look(time.monotonic())
        places = tuple(place.text for place in named.places)
        now = self._by_start(places, await ask_all(named.places, self._told.pools, self._key()))
        look = Look(
            addresses=tuple(map(self._starts.name, places)),
            heard={address: it.demands for address, it in now.heard.items()},
            are_named=named.are_known,
            there=self._cluster.replicas,
            is_there_known=self._cluster.is_settled(),
        )
        old, self._scaling = self._scaling, step(self._scaling, time.monotonic(), look, self._lanes, self._rules)
        self._follow_cold_starts(now)
        self._tell_changes(old, now, named.problem)
        self._before = now
        self._told.tell(Answer(self._scaling, now.silent, self._cold_starts, self._cluster.is_readable))

    def _by_start(self, places: tuple[str, ...], now: Round) -> Round:
        """The same, with another name for a gateway that has started anew at its address."""
        for address in self._starts.see(places, {address: it.good for address, it in now.heard.items()}):
            self._say(f"gateway {address} has started anew: what it said before fades")
        name = self._starts.name
        heard, silent = now.heard.items(), now.silent.items()
        return Round({name(address): it for address, it in heard}, {name(address): why for address, why in silent})

    def _follow_cold_starts(self, now: Round) -> None:
        wanted, demands = self._scaling.replicas, self._scaling.demands
        if wanted is not None and demands is not None:
            seen = {
                pool: Seen(
                    number,
                    demands[pool].num_ready,
                    any(it.states.get(pool) == "ready" for it in now.heard.values()),
                    self._has_answered(pool, now),
                    self._cluster.servers.get(pool, ()),
                )
                for pool, number in wanted.items()
            }
            self._cold_starts = follow(self._cold_starts, time.time(), self._last_wanted, seen)
            self._last_wanted = wanted
        self._cluster.watch({it.pool for it in self._cold_starts if not it.is_over})

    def _has_answered(self, pool: str, now: Round) -> bool:
        before = self._before.heard
        return any(it.good[pool] > before[address].good[pool] for address, it in now.heard.items() if address in before)

    def _tell_changes(self, old: Scaling, now: Round, problem: str) -> None:
        new = self._scaling
        for change in new.changes:
            self._say(f"{change.sentence}: {change.before} -> {change.after}, {change.reason}")
        for line in self._silences.lines(new.at, now.heard.keys(), now.silent):
            self._say(line)
        if problem != self._problem:
            self._say(problem or "the gateways' names have addresses again")
        self._problem = problem
        if (new.replicas is None) != (old.replicas is None) or (new.holds and new.holds != old.holds):
            self._say(f"nothing is told: {new.holds}" if new.replicas is None else f"told: {_numbers(new.replicas)}")


def _numbers(replicas: Mapping[str, int]) -> str:
    return ", ".join(f"{pool} {number}" for pool, number in replicas.items())
