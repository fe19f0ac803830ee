"""The pools, their servers, and the fleet that routing sees, kept up to date while the gateway runs.

Servers follow the addresses that the settings' URLs mean (`membership.py`), each is polled a few times a second (`server.py`), and
whenever one says something new the fleet is made anew (`Catalogue.fleet`). Deciding between pools is not here (`serving/scheduling/`).
Rule: a server that leaves its pool is `drained`: it gets nothing new, what it works on ends, and only then are its connections closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from serving import errors
from serving.gateway.background import forever
from serving.gateway.fleet import addresses
from serving.gateway.fleet.addresses import LookUp
from serving.gateway.fleet.cold_pools import ColdPools
from serving.gateway.fleet.liveness import TICK_S
from serving.gateway.fleet.membership import Membership
from serving.gateway.fleet.recycling import Recycling
from serving.gateway.fleet.server import HANG_UP_S, Quarantine, Server
from serving.gateway.fleet.upstream import Lost, Target
from serving.gateway.fleet.variants import KINDS_NOT_SERVED
from serving.scheduling.outliers import silent
from serving.scheduling.prediction import Full
from serving.scheduling.replica import Replica
from serving.scheduling.routing import (
    NO_PINS,
    Decision,
    Fleet,
    LoadFailure,
    Pins,
    Pool,
    Variant,
    chosen_digest,
    declared_spaces,
)
from serving.scheduling.routing import decide as decide_in
from serving.settings import GatewaySettings

POLL_S = 0.5  # how soon a model that was loaded or unloaded is noticed
POLL_DOWN_S = 0.1  # a refused connection costs little, and somebody waits for the server to be back
SILENT_POLLS = 2  # then what is in flight there is given up, too: one may be late; a guess, not measured
LATE_TICK_S = (
    2 * TICK_S
)  # then this process stood still itself, and answers may have come meanwhile that nobody has read

log = logging.getLogger("tandem")


@dataclass(frozen=True, slots=True)
class Conflict:
    """Ready servers of a pool serve different files as one variant. `digests` are by the server's url."""

    chosen: str
    digests: Mapping[str, str]

    def __str__(self) -> str:
        each = ", ".join(f"{url} serves sha256:{digest[:12]}" for url, digest in sorted(self.digests.items()))
        return f"{each}; requests go to sha256:{self.chosen[:12]} alone"


class Catalogue:
    """`on_change` is called whenever the fleet is another. `in_repository`: as `ColdPools` takes it; `spaces`: FP32's, by model."""

    def __init__(
        self,
        settings: GatewaySettings,
        on_change: Callable[[], None],
        look_up: LookUp = addresses.look_up,
        in_repository: Mapping[str, Collection[str]] | None = None,
        spaces: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._on_change = on_change
        self._spaces = spaces or {}
        self.cold_pools = ColdPools(settings, in_repository or {})
        self.pools: dict[str, list[Server]] = {name: [] for name in settings.pools}
        self.drained: dict[str, list[Server]] = {name: [] for name in settings.pools}  # that are not done yet
        self._known: dict[str, dict[str, Variant]] = {name: {} for name in settings.pools}  # what each ever served
        self._digests: dict[str, dict[str, str]] = {name: {} for name in settings.pools}  # Triton's model name -> last
        self.conflicts: dict[str, dict[str, Conflict]] = {name: {} for name in settings.pools}  # by Triton's model name
        self.fleet = _fleet([Pool(name, ready=False, asleep=self._asleep(name)) for name in settings.pools])
        self.num_contained = dict.fromkeys(settings.pools, 0)  # restarts of servers that worked on for nobody
        self.suspended_until = 0.0  # perf_counter; from then on no model of no server is left alone
        self._membership = Membership(settings.pools, look_up, self._answering, self._members_changed)
        self._polling: dict[Server, asyncio.Task[None]] = {}
        self._resorts: set[tuple[Server, str]] = set()  # quarantined models that answer, because nothing else does
        self._tasks: list[asyncio.Task[None]] = []
        self._is_started = False
        for name in settings.pools:
            self._reconcile(name)

    def start(self) -> None:
        self._is_started = True
        for pool in self.pools:
            self._reconcile(pool)
        self._tasks = [
            *self._membership.start(),
            asyncio.create_task(forever("looking after connections", self._sweep)),
            asyncio.create_task(forever("looking after new starts", Recycling(self.pools, self._publish).run)),
        ]

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._polling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        servers = [one for some in (*self.pools.values(), *self.drained.values()) for one in some]
        await asyncio.gather(*(server.shared_memory.trim() for server in servers))
        for server in servers:
            server.liveness.stop()
            server.target.close()

    # -- what is asked of it --------------------------------------------------------------------------------------

    def pick(self, pool: str, name: str, tried: Sequence[Server] = ()) -> Server | None:
        """The pool's server with the fewest requests in flight that serves Triton's model `name`, an untried one if there is one.

        None if none serves it.
        """
        now = perf_counter()
        servers = [server for server in self.pools[pool] if server.serves(name, now)]
        if len(servers) < 2:
            return servers[0] if servers else None
        return min(servers, key=lambda s: (s in tried, len(s.target.busy)))

    def decide(self, name: str, pins: Pins = NO_PINS) -> list[Decision]:
        """`routing.decide`. Of a model that a Triton has and that is not routed to, the error says why: Unsupported or NotFound."""
        try:
            return decide_in(self.fleet, name, pins)
        except (errors.NotFound, errors.NotReady) as error:
            pools = self.sleeping(name, pins) if isinstance(error, errors.NotReady) else []
            if pools and pools[0] in self.fleet.asleep(
                name
            ):  # else a server of it is known, and may be back in a second
                error.retry_after_s = self.cold_pools.retry_after_s(pools[0], perf_counter())
            if name in self.fleet.known:
                raise
            refused = (server.snapshot.refused for server in self._alive())
            reason = next((reasons[name] for reasons in refused if name in reasons), None)
            if reason is None:
                raise
        if reason in KINDS_NOT_SERVED:
            raise errors.Unsupported(f"'{name}' is not served here: {reason}")
        raise errors.NotFound(f"'{name}' is loaded and gets no requests from here: {reason}")

    def is_unloaded(self, pool: str, name: str) -> bool:
        """Whether a variant is away from a pool because somebody unloaded it, as far as anybody knows: all its servers answer."""
        servers = self.pools[pool]
        is_gone = all(server.alive and name not in server.snapshot.served for server in servers)
        return is_gone and any(name in server.snapshot.unloaded for server in servers)

    def loading(self, pool: str) -> set[str]:
        """Variants that some Triton of a pool is loading and does not serve yet."""
        return {name for server in self.pools[pool] if server.alive for name in server.snapshot.loading}

    def changing(self, pool: str) -> dict[tuple[str, str], str]:
        """(Triton's model name, version) -> `loading` or `draining`, beside what some Triton of a pool serves of it."""
        return {key: state for s in self.pools[pool] if s.alive for key, state in s.snapshot.changing.items()}

    def sleeping(self, name: str, pins: Pins = NO_PINS) -> list[str]:
        """Pools that would serve a name, public or a variant's, if they had a server, where no other pool has one that may.

        Of those that come and go alone; and none before everybody was asked: until then nobody can tell who is away.
        """
        places = [
            pool.name
            for pool in self.fleet.pools
            if pins.pool in (None, pool.name) and pool.may_serve(name, pins.variant)
        ]
        if not all(map(self.cold_pools.comes_and_goes, places)) or not all(map(self.is_known, self._settings.pools)):
            return []
        return [own for own in places if not any(server.alive for server in self.pools[own])]

    def sleepers(self) -> frozenset[str]:
        """Names that wait for a pool that comes and goes and has no server now, as far as that is known."""
        pools = (p for p in self.fleet.pools if self.cold_pools.comes_and_goes(p.name) and self.is_known(p.name))
        return frozenset(n for pool in pools for f in pool.asleep for n in (f.model, f.name))

    @property
    def may_all_sleep(self) -> bool:
        """Whether every pool comes and goes, so that there may be no server at all."""
        return all(map(self.cold_pools.comes_and_goes, self._settings.pools))

    @property
    def may_lack_models(self) -> bool:
        return self._settings.allow_missing

    @property
    def has_triton_words(self) -> bool:
        """Whether clients are told Triton's name and words."""
        return self._settings.triton_words

    def is_known(self, pool: str) -> bool:
        """Whether every server that its URLs mean was asked once: until then nobody can tell whether it is away."""
        return self._membership.is_known(pool) and all(server.is_known for server in self.pools[pool])

    def unresolved(self, pool: str) -> dict[str, str]:
        """URL of the settings -> why its name could not be looked up."""
        return self._membership.unknown[pool]

    def digest_conflicts(self, pool: str) -> dict[tuple[str, str], bool]:
        """(model, variant) that the pool ever served -> whether its servers serve different files as it now."""
        return {(v.model, v.variant): name in self.conflicts[pool] for name, v in self._known[pool].items()}

    def quarantined(self, pool: str) -> dict[str, dict[str, str]]:
        """Triton's model name -> url of each of the pool's servers where it gets no requests because its answers are off -> why."""
        found: dict[str, dict[str, str]] = {}
        for server in self.pools[pool]:
            for name, away in server.quarantined.items():
                found.setdefault(name, {})[server.target.url] = away.reason
        return found

    def num_quarantined(self, pool: str) -> dict[tuple[str, str], int]:
        """(model, variant) that the pool ever served -> on how many servers it is quarantined."""
        now = self.quarantined(pool)
        return {(v.model, v.variant): len(now.get(name, ())) for name, v in self._known[pool].items()}

    def device(self, pool: str) -> str:
        return self._settings.pools[pool].device

    def in_flight(self, pool: str) -> int:
        return sum(server.num_in_flight for server in (*self.pools[pool], *self.drained[pool]))

    def _alive(self) -> Iterator[Server]:
        return (server for servers in self.pools.values() for server in servers if server.alive)

    def objective_s(self, model: str) -> float | None:
        settings = self._settings.models.get(model)
        return settings.objective.latency_s if settings else None

    # -- what happens to servers ----------------------------------------------------------------------------------

    def lost(self, server: Server) -> None:
        """Nothing answers there: no further request goes there until a poll succeeds."""
        if server.alive:
            server.alive = False
            self._publish()

    def hold(self, server: Server, name: str, full: Full, sent: float) -> None:
        """A model there has not answered what was sent then (perf_counter), long after that expired. Where it answers nothing else, either,
        it gets nothing for a while: what supervises the server restarts it once nobody waits.
        """
        if server.answered.get(name, 0.0) > max(sent, perf_counter() - HANG_UP_S):
            return
        if name not in server.held:
            log.warning(
                "%s at %s does not answer what has long expired; it gets nothing for now", name, server.target.url
            )
        self.suspended_until = max(self.suspended_until, server.hold(name, full))

    def suspend(self, server: Server, name: str, sent: float) -> None:
        """The model's process died or was unloaded, as a request sent at `sent` (perf_counter) tells: leave it alone until it can be back.

        Triton gives up on the requests that waited for a dead process batch by batch, a second each. One that was sent before the
        death was noticed, or before the model was back, says nothing new, and must not keep the process away that is back by now.
        """
        self.suspended_until = max(self.suspended_until, server.suspend(name, sent))

    def quarantine(self, server: Server, name: str, reason: str) -> bool:
        """Sends a model there nothing any more. False, and nothing is done, where no other server has any variant of it."""
        variant = server.variants.get(name)
        if variant is None or not any(
            it.model == variant.model and it.in_space and (other is not server or own != name)
            for other in self._alive()
            for own, it in other.variants.items()
        ):
            return False
        server.quarantined[name] = Quarantine(variant.digest, reason)
        log.error("%s at %s is quarantined: %s", name, server.target.url, reason)
        self._publish()
        return True

    def release_quarantine(self, server: Server, name: str) -> None:
        """Its answers are right again."""
        if server.quarantined.pop(name, None) is not None:
            log.warning("%s at %s is not quarantined any more", name, server.target.url)
            self._publish()

    async def poll(self, pool: str, server: Server) -> None:
        """Asks a server now what it serves, because something was just changed there. Raises Lost."""
        if await self._ask(pool, server):
            self._publish()

    async def _ask(self, pool: str, server: Server) -> bool:
        is_news = await server.poll(self.device(pool))
        if server.num_index_errors > 1 and not server.is_without_repository:
            server.is_without_repository = True
            log.warning("%s serves on without its model repository: %s", server.target.url, server.index_error)
        elif not server.num_index_errors and server.is_without_repository:
            server.is_without_repository = False
            log.warning("%s has its model repository again", server.target.url)
        more, server.new_restarts = server.new_restarts, 0
        if more:
            self.num_contained[pool] += more
            log.warning("%s was restarted because it worked on though nobody waited for it", server.target.url)
            self._release(server)
        return is_news

    def _release(self, server: Server) -> None:
        """It is another process than the one that did not answer."""
        for name in list(server.held):
            server.release(name)

    def _answering(self, pool: str) -> set[str]:
        return {server.target.url for server in self.pools[pool] if server.alive}

    def _members_changed(self, pool: str) -> None:
        self._reconcile(pool)
        self._publish()

    def _reconcile(self, pool: str) -> None:
        """Makes the pool's servers those that its URLs mean: new ones are polled, the others drained."""
        loop = asyncio.get_running_loop()
        before = {server.target.url: server for server in self.pools[pool]}
        self.pools[pool] = []
        for address, url in self._membership.members(pool).items():
            server = before.pop(address, None) or Server(Target(address, loop), Replica(address))
            server.target.host_header = b"Host: %b\r\n" % url.removeprefix("http://").encode()
            if self._is_started and server not in self._polling:
                polling = forever(f"asking {address}", partial(self._keep_polling, pool, server))
                self._polling[server] = asyncio.create_task(polling)
            self.pools[pool].append(server)
        for server in before.values():
            self._drain(pool, server)

    def _drain(self, pool: str, server: Server) -> None:
        server.drain()
        if task := self._polling.pop(server, None):
            task.cancel()
        self.drained[pool].append(server)

    async def _keep_polling(self, pool: str, server: Server) -> None:
        is_news = True  # at first, and after a mistake of ours, which may have left things half done
        while True:
            if not self._membership.is_named(pool, server.target.url):
                # A Triton that stops goes on with those who are connected, and lets nobody else in: only a new connection tells.
                server.target.close_idle()
            try:
                is_news |= await self._ask(pool, server)
                server.num_silent = 0
            except Lost as lost:
                server.num_silent += lost.timed_out or server.num_silent > 0
                if not lost.timed_out:
                    self._release(server)
                if server.num_silent >= SILENT_POLLS:
                    server.target.give_up()
                self.lost(server)
            except (ValueError, KeyError, TypeError, AttributeError):  # not Triton
                self.lost(server)
            server.is_known = True
            if is_news:
                self._publish()
                is_news = False
            await asyncio.sleep(POLL_S if server.alive else POLL_DOWN_S)

    async def _sweep(self) -> None:
        """Ends what waits too long. How late that may be noticed is a tick; deadlines of clients have timers of their own."""
        last, was_late = perf_counter(), False
        while True:
            await asyncio.sleep(TICK_S)
            now = perf_counter()
            was_late, last = not was_late and now - last > LATE_TICK_S, now
            self._check_liveness(now)
            for servers in (*self.pools.values(), *self.drained.values()):
                for server in servers:
                    if not was_late:
                        server.target.sweep(now)
                    server.shared_memory.sweep(now)
                    if server.held:
                        self.suspended_until = max(self.suspended_until, server.renew_holds(now))
            for pool, servers in self.drained.items():
                for server in servers:
                    server.target.close_idle()
                self.drained[pool] = [s for s in servers if s.target.busy or s.replica.num_in_flight]

    def _check_liveness(self, now: float) -> None:
        """Gives up servers that fell silent, once for each silence, and what is in flight there with them."""
        servers = [server for servers in self.pools.values() for server in servers]
        for server in servers:
            server.liveness.tick()
        quiet_s = {server: server.liveness.quiet_s for server in servers}
        serves = {server: {v.model for v in server.variants.values()} for server in servers}
        for server in silent(quiet_s, serves, set(self._alive())):
            if server.liveness.is_reported or not (server.alive or server.target.busy):
                continue
            server.liveness.is_reported = True
            log.warning("%s answers nothing; what it works on is tried elsewhere", server.target.url)
            server.replica.fell_silent(now)
            self.lost(server)
            server.target.give_up()

    # -- the fleet ------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        for name in self.pools:
            self._choose_digests(name)
        self._resort_to_quarantined()
        now = {
            name: {v.name: v for server in servers if server.alive for v in server.variants.values()}
            for name, servers in self.pools.items()
        }
        for name, variants in now.items():
            self._known[name] |= variants
            for gone in self._gone(name):
                del self._known[name][gone]
        known_anywhere = (v for variants in self._known.values() for v in variants.values())
        spaces = declared_spaces(known_anywhere, self._spaces)
        pools = []
        for name, variants in now.items():
            known = tuple(self._decided(v, name, spaces) for v in self._known[name].values())
            here = tuple(self._decided(v, name, spaces) for v in variants.values())
            for server in self.pools[name]:
                served = server.variants.items()
                server.differing = {n: v for n, v in served if n in variants and not v.has_same_receipt(variants[n])}
            failures = tuple(sorted(self._failures(name), key=lambda failure: failure.name))
            pools.append(Pool(name, bool(here), here or known, known, failures, self._asleep(name)))
        self.fleet = _fleet(pools)
        self._on_change()

    def _gone(self, pool: str) -> list[str]:
        """Variants that were served, and whose folder was removed: no server of the pool has them loaded or in its repository."""
        servers = self.pools[pool]
        if not servers or not all(server.alive for server in servers):
            return []
        return [name for name in self._known[pool] if not any(name in server.snapshot.listed for server in servers)]

    def _choose_digests(self, pool: str) -> None:
        """Of each variant one digest gets the requests, however many the pool's servers serve (`routing.chosen_digest`)."""
        alive = [server for server in self.pools[pool] if server.alive]
        serving: dict[str, Counter[str]] = {}
        for server in alive:
            for name, variant in server.snapshot.served.items():
                serving.setdefault(name, Counter())[variant.digest] += 1
        chosen = {name: chosen_digest(num, self._digests[pool].get(name)) for name, num in serving.items()}
        if self.is_known(pool):  # before, whoever answered first would be the one that has the requests already
            self._digests[pool] |= chosen
        for server in alive:
            server.variants = {
                n: v
                for n, v in server.snapshot.served.items()
                if v.digest == chosen[n] and n not in server.quarantined and not server.is_leaving
            }
        was = self.conflicts[pool]
        self.conflicts[pool] = now = {
            name: Conflict(
                chosen[name], {s.target.url: s.snapshot.served[name].digest for s in alive if name in s.snapshot.served}
            )
            for name, num in serving.items()
            if len(num) > 1
        }
        for name in sorted(now.keys() | was.keys()):
            if name in now and now[name] != was.get(name):
                log.warning("pool %s: servers differ in %s: %s", pool, name, now[name])
            elif name not in now:
                log.warning("pool %s: servers do not differ in %s any more", pool, name)

    def _resort_to_quarantined(self) -> None:
        """What is quarantined answers where nobody else serves its model any more: a wrong answer now and then is better than none."""
        served = {v.model for server in self._alive() for v in server.variants.values() if v.in_space}
        before, self._resorts = self._resorts, set()
        for pool, servers in self.pools.items():
            for server in servers:
                for name in server.quarantined if server.alive else ():
                    variant = server.snapshot.served.get(name)
                    if variant is None or variant.model in served:
                        continue
                    if variant.digest == self._digests[pool].get(name, variant.digest):
                        server.variants[name] = variant
                        self._resorts.add((server, name))
        for server, name in self._resorts - before:
            log.error("%s at %s is quarantined and answers: nothing else does", name, server.target.url)

    def _asleep(self, pool: str) -> tuple[LoadFailure, ...]:
        return tuple(self.cold_pools.of(pool, self.pools[pool], self._known[pool]))

    def _failures(self, pool: str) -> Iterable[LoadFailure]:
        """What servers of the pool could not load. One that serves it, in that version or a later, makes up for the others."""
        alive = [server for server in self.pools[pool] if server.alive]
        newest = {v.name: int(v.version) for server in alive for v in server.snapshot.served.values()}
        for failure in {f for server in alive for f in server.snapshot.failures.values()}:
            if newest.get(failure.name, 0) < int(failure.version):
                known = self._known[pool].get(failure.name)
                yield failure if known is None else replace(failure, model=known.model)

    def _decided(self, variant: Variant, pool: str, spaces: dict[str, str]) -> Variant:
        """What the configuration says by hand goes before what was measured."""
        if variant.space != spaces.get(variant.model, ""):
            variant = replace(variant, in_space=False)
        model = self._settings.models.get(variant.model)
        chosen = model.variants.get(pool) if model else None
        return variant if chosen is None else variant.chosen(chosen == variant.variant)


def _fleet(pools: list[Pool]) -> Fleet:
    return Fleet(tuple(pools), frozenset(n for pool in pools for names in pool.names for n in names))
