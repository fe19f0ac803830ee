"""The pools as the scheduler sees them: a queue for each pool, and for each of its variants the cost and the time that it takes.

Follows the catalogue, and outlives its changes, because what was learnt from answers lives here. Where a configuration carries no curve, a
quick one is measured beside the traffic. Deciding is not here (`serving/scheduling/`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from math import inf
from time import perf_counter, time
from typing import Any
from weakref import WeakKeyDictionary

from serving.decisions.prices import EQUAL_PER_HOUR
from serving.gateway.fleet import curves
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.cold_pools import LEAST_S
from serving.gateway.fleet.curves import Facts
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.work import Work, pace_of
from serving.protocol.budget import most_bytes
from serving.scheduling.admission import PoolQueue
from serving.scheduling.bridge import ALWAYS_WARM, SHARED_BY, Bridge, Demand, step
from serving.scheduling.choice import Candidate
from serving.scheduling.prediction import Service
from serving.scheduling.replica import Replica
from serving.scheduling.turns import Use, is_queue, use_of
from serving.settings import GatewaySettings, comes_and_goes, price_of_one

AGAIN_S = (5.0, 15.0, 60.0, 600.0)  # between tries to measure what could not be; then the last; a guess, not measured
SURE_S = 60.0  # that what was measured is not doubted; a guess, not measured
MAX_CHANGES = 256  # of a pool's state, that are remembered: some hours of a pool that comes and goes every few minutes
LOOK_S = 0.5  # how often it is looked whether a pool has nothing to do; a guess, not measured


@dataclass(slots=True)
class _Known:
    """One variant on one pool. Another digest or other facts make another one."""

    pool: str
    digest: str
    facts: Facts
    candidate: Candidate
    model: str  # its public name
    is_measured_now: bool = False
    sure_until: float = 0.0  # perf_counter

    def use(self, service: Service, without: frozenset[str]) -> None:
        """The service, on a pool of which these servers do not serve it."""
        s = service
        self.candidate.use(Service(s.curve, s.num_instances, s.max_batch, s.correction, known=s.full, without=without))


class Candidates:
    def __init__(self, settings: GatewaySettings, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._prices = {name: price_of_one(pool) or EQUAL_PER_HOUR for name, pool in settings.pools.items()}
        self.queues = {
            name: PoolQueue(name, [server.replica for server in servers]) for name, servers in catalogue.pools.items()
        }
        self.demands = {name: Demand() for name in settings.pools}
        self.only_demands = {name: Demand() for name in settings.pools}  # of these, what no other pool may answer
        self.unseen_demands = {name: Demand() for name in settings.pools}  # of these, an upper bound
        # Of these, what several pools may answer and at least one other may not: by these pools' names, in order, and then by pool.
        self.shared_demands: dict[str, dict[str, Demand]] = {}
        # By pool, its last states and when each began; the newest last.
        self.changes = {name: deque([(time(), "down")], MAX_CHANGES) for name in settings.pools}
        # Pools whose servers come and go, and what is known of that; None before the first look.
        self.bridges: dict[str, Bridge | None] = {
            name: None for name, pool in settings.pools.items() if comes_and_goes(name, pool)
        }
        self.servers: dict[Replica, Server] = {}
        self._work: WeakKeyDictionary[Server, Work] = WeakKeyDictionary()  # as it was last compared
        self._known: dict[tuple[str, str], _Known] = {}  # by pool and Triton's model name
        self._measuring: set[asyncio.Task[None]] = set()
        self.num_measuring = 0  # for the first time

    async def stop(self) -> None:
        for task in self._measuring:
            task.cancel()
        await asyncio.gather(*self._measuring, return_exceptions=True)

    def of(self, pool: str, name: str) -> Candidate:
        return self._known[pool, name].candidate

    def max_rows(self, pool: str, name: str) -> int:
        return self._known[pool, name].facts.max_rows

    def usual_length(self, pool: str, name: str) -> int:
        return self._known[pool, name].facts.usual_length

    def max_elements(self, pool: str, name: str) -> int | None:
        return self._known[pool, name].facts.max_elements

    def max_body_bytes(self) -> float:
        """Of a request that any of them takes; infinite where one takes any length, and as long as some are not known."""
        elements = [known.facts.max_elements for known in self._known.values()]
        if not elements or self.never_seen():
            return inf
        return max(inf if number is None else most_bytes(number) for number in elements)

    def row_bytes(self, pool: str, name: str) -> float:
        return self._known[pool, name].facts.row_bytes

    def binary_only(self, pool: str, name: str) -> frozenset[str]:
        return self._known[pool, name].facts.binary_only

    def takes_parameters(self, pool: str, name: str) -> bool:
        return self._known[pool, name].facts.takes_parameters

    def cold(self) -> list[str]:
        """Pools that are away and were there before."""
        known = {pool for pool, _ in self._known}
        return [name for name in self.bridges if name in known and self.num_answering(name) == 0]

    def never_seen(self) -> list[str]:
        """Pools that come and go and have not come yet: nobody knows what they will serve."""
        known = {pool for pool, _ in self._known}
        return [name for name in self.bridges if name not in known]

    def shared_among(self, pools: Iterable[str]) -> dict[str, Demand]:
        """Of traffic that just these pools may answer, by pool. There are as many sets as there are ways to take some of all pools."""
        names = sorted(pools)
        key = SHARED_BY.join(names)
        found = self.shared_demands.get(key)
        if found is None:
            found = self.shared_demands[key] = {name: Demand() for name in names}
        return found

    def want(self, pool: str, name: str, now: float) -> None:
        """A request came for a name, public or a variant's, that this pool alone would serve, and it has no server."""
        variants = (
            v for p in self._catalogue.fleet.pools if p.name == pool for v in p.known if name in (v.model, v.name)
        )
        known = next((self._known[pool, v.name] for v in variants if (pool, v.name) in self._known), None)
        cost_s = LEAST_S if known is None else known.candidate.service.work_s(1)
        self.demands[pool].note(now, cost_s)
        self.only_demands[pool].note(now, cost_s)
        self._catalogue.cold_pools.want(pool, now)

    def state(self, pool: str) -> str:
        """For `tandem_pool_state`."""
        bridge = self.bridges.get(pool)
        if bridge is not None:
            return bridge.state
        return "ready" if self.num_answering(pool) else "down"

    def since(self, pool: str) -> float:
        """When its state began (time.time()), as far as anybody looked."""
        return self.changes[pool][-1][0]

    def share(self, pool: str) -> float:
        """Of the requests, that may go there now."""
        bridge = self.bridges.get(pool)
        return bridge.share if bridge is not None else float(self.num_answering(pool) > 0)

    def look(self, now: float) -> None:
        """How much of the traffic may go to the pools that come and go; to be asked a few times a second."""
        for pool in self.bridges:
            self._look(pool, now)
        for pool, servers in self._catalogue.pools.items():
            for server in servers:
                self._compare(pool, server)
        self._doubt(now)
        for pool, changes in self.changes.items():
            if (state := self.state(pool)) != changes[-1][1]:
                changes.append((time(), state))

    def _compare(self, pool: str, server: Server) -> None:
        """Whether others send to a server, and how fast it is, by what it told of its work since the last time."""
        work, before = server.work, self._work.get(server)
        if work is None or work is before:
            return
        self._work[server] = work

        def seconds(name: str, rows: int) -> float | None:
            known = self._known.get((pool, name))
            return known.candidate.service.curve.seconds(rows) if known else None

        replica = server.replica
        if before is None:
            replica.compare(work.num_requests, work.num_ours, 1.0)
            return
        self._mend(pool, work, before)
        is_told = replica.compare(work.num_requests, work.num_ours, work.pace(before, seconds))
        self._use(pool, replica, work, before)
        if not is_told:
            return
        for name, executions in work.since(before).items():
            if known := self._known.get((pool, name)):
                rows_per_s = sum(rows * num for rows, (num, _) in executions.items()) / (work.told_s - before.told_s)
                pace = pace_of(executions, known.candidate.service.curve.seconds)
                is_alike = not known.facts.usual_length
                known.candidate.share_with(replica.others_ratio * rows_per_s, pace, is_alike=is_alike)

    def _use(self, pool: str, replica: Replica, work: Work, before: Work) -> None:
        """Tells what it did of each model, for whoever sent it."""
        uses: dict[str, Use] = {}
        for name, executions in work.since(before).items():
            if (known := self._known.get((pool, name))) is not None:
                took_s = sum(all_s for _, all_s in executions.values())
                by_rows = {rows: num for rows, (num, _) in executions.items()}
                use = use_of(known.candidate.service, by_rows, took_s, is_alike=not known.facts.usual_length)
                uses[known.model] = use if known.model not in uses else uses[known.model].with_another(use)
        replica.queued = frozenset(
            known.model
            for name, rows in work.rows_waiting(before).items()
            if (known := self._known.get((pool, name))) is not None and is_queue(known.candidate.service, rows)
        )
        self.queues[pool].did(replica, uses, work.told_s - before.told_s)

    def _mend(self, pool: str, work: Work, before: Work) -> None:
        """Curves that were measured while others kept the server busy; of rows of any length executions do not tell how long they were."""
        for name, executions in work.since(before).items():
            known = self._known.get((pool, name))
            if known is None or known.facts.curve is not None or known.facts.usual_length:
                continue
            if curve := curves.mended(known.candidate.service.curve, executions):
                known.use(known.facts.service(curve, known.model), known.candidate.service.without)

    def _look(self, pool: str, now: float) -> None:
        old, num_answering = self.bridges[pool], self.num_answering(pool)
        if old is None and num_answering == 0 and not self._catalogue.is_known(pool):
            return  # it may be warm: nobody has heard of it yet
        if num_answering > 0:
            self._catalogue.cold_pools.came(pool, now)
        was_there_before = old is None and num_answering > 0
        new = ALWAYS_WARM if was_there_before else step(old or Bridge(), now, num_answering)
        self.bridges[pool] = new
        for (name, _), known in self._known.items():
            if name == pool:
                known.candidate.share = new.share

    def num_answering(self, pool: str) -> int:
        return sum(server.alive and bool(server.variants) for server in self._catalogue.pools[pool])

    def update(self) -> None:
        """The fleet is another; to be called before anything else looks at it."""
        leaving = {replica: server for replica, server in self.servers.items() if replica.num_in_flight}
        here = {server.replica: server for servers in self._catalogue.pools.values() for server in servers}
        self.servers = leaving | here
        for pool, servers in self._catalogue.pools.items():
            for server in servers:
                server.replica.is_up = server.alive and bool(server.variants)
            self._see(pool, [server for server in servers if server.alive])
            self._tell_who_serves(pool, [server for server in servers if server.replica.is_up])
            self.queues[pool].serve_with([server.replica for server in servers])
            if pool in self.bridges and (self.num_answering(pool) or self.bridges[pool] is not None):
                self._look(pool, perf_counter())

    def _see(self, pool: str, servers: list[Server]) -> None:
        """What most of them say of a variant counts, and of equals what was known: while a new digest is rolled out there are two."""
        said: dict[str, Counter[tuple[str, Facts]]] = {}
        for server in servers:
            for name, variant in server.variants.items():
                said.setdefault(name, Counter())[variant.digest, server.snapshot.facts[name]] += 1
        for name, counts in said.items():
            known = self._known.get((pool, name))
            most = max(counts.values())
            if known is not None and counts[known.digest, known.facts] == most:
                continue
            digest, facts = counts.most_common(1)[0][0]
            first = next(s for s in servers if name in s.variants and s.snapshot.facts[name] == facts)
            self._know(pool, name, digest, facts, first)

    def _tell_who_serves(self, pool: str, up: list[Server]) -> None:
        for (at, name), known in self._known.items():
            if at != pool:
                continue
            without = frozenset(server.replica.name for server in up if name not in server.variants)
            if without != known.candidate.service.without:
                known.use(known.candidate.service, without)

    def _know(self, pool: str, name: str, digest: str, facts: Facts, server: Server) -> None:
        model = server.variants[name].model
        candidate = Candidate(self.queues[pool], facts.service(model=model), self._prices[pool], variant=name)
        known = self._known[pool, name] = _Known(pool, digest, facts, candidate, model)
        if facts.curve is None:
            self.num_measuring += 1
            self._begin(known, self._measure_first(known, server))

    # -- measuring ----------------------------------------------------------------------------------------------------

    def _doubt(self, now: float) -> None:
        """What even idle would be too slow for somebody was perhaps measured at a bad moment, and no answer would ever tell."""
        for known in self._known.values():
            if known.candidate.num_hopeless == 0 or known.facts.curve is not None:
                continue
            if known.is_measured_now or now < known.sure_until:
                continue
            self._begin(known, self._measure_again(known))

    def _begin(self, known: _Known, measuring: Coroutine[Any, Any, None]) -> None:
        known.is_measured_now = True
        task = asyncio.create_task(measuring)
        self._measuring.add(task)
        task.add_done_callback(self._measuring.discard)

    async def _measure_first(self, known: _Known, server: Server) -> None:
        try:
            is_whole = await self._measure(known, server)
        finally:
            self.num_measuring -= 1
        if is_whole:
            known.is_measured_now, known.sure_until = False, perf_counter() + SURE_S
        else:
            await asyncio.sleep(AGAIN_S[0])
            await self._measure_again(known)

    async def _measure_again(self, known: _Known) -> None:
        """When the pool has nothing to do, until it does not break off."""
        name = known.candidate.variant
        for pause_s in chain(AGAIN_S, repeat(AGAIN_S[-1])):
            await self._until_quiet(known)
            if self._known.get((known.pool, name)) is not known:
                return
            server = self._catalogue.pick(known.pool, name)
            if server is not None and await self._measure(known, server):
                break
            await asyncio.sleep(pause_s)
        known.is_measured_now, known.sure_until = False, perf_counter() + SURE_S

    async def _until_quiet(self, known: _Known) -> None:
        queue = known.candidate.queue
        while True:
            if not queue.in_flight and not queue.num_waiting:
                return
            await asyncio.sleep(LOOK_S)

    async def _measure(self, known: _Known, server: Server) -> bool:
        """Whether it did not break off."""
        name = known.candidate.variant
        measured = await curves.measure(known.facts, partial(server.infer, name))
        if measured.curve is not None:
            known.use(known.facts.service(measured.curve, known.model), known.candidate.service.without)
        return measured.is_whole
