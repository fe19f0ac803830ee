"""Which Tritons a pool has and what they serve right now: asked of Triton itself a few times a second, never read from disk.

A variant is routable on a server when Triton says it is ready and its configuration allows it (`variants.py`). Whatever is not routable
is kept with the reason, for `/admin/status`. Deciding between pools is not here (`serving/scheduling/`). Rule: a server that leaves its
pool is `drained`: it gets nothing new, what it works on ends, and only then are its last connections closed. One whose name has no address
any more may be leaving or may only have failed a probe: it stays for as long as it lets new connections in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import orjson

from serving import errors
from serving.gateway.background import forever
from serving.gateway.fleet import addresses
from serving.gateway.fleet.addresses import LOOK_S, LookUp, NoAddress
from serving.gateway.fleet.cold_pools import ColdPools
from serving.gateway.fleet.curves import Facts, read_facts
from serving.gateway.fleet.liveness import TICK_S, Liveness
from serving.gateway.fleet.upstream import Answer, Lost, Target
from serving.gateway.fleet.variants import KINDS_NOT_SERVED, NotRoutable, read_failures, read_variant
from serving.scheduling.outliers import silent
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
# For a server that nobody else stands in for; one that can be done without is given up sooner (`liveness.py`). Triton answers its index in
# under 2 ms; one that is stopped by a debugger or a dying node does not.
POLL_TIMEOUT_S = 5.0
SILENT_POLLS = 2  # then what is in flight there is given up, too: one may be late; a guess, not measured
CONFIG_EVERY = 10  # polls; a reload can change a configuration without the index showing it
SUSPEND_S = 1.0  # a dead stub is reloaded within about a second; until then requests to it would wait a second each

log = logging.getLogger("tandem")


@dataclass(slots=True, eq=False)
class Server:
    """One Triton of a pool and what was last seen of it."""

    target: Target
    replica: Replica  # what was sent there, as scheduling sees it
    alive: bool = False
    is_known: bool = False  # it was asked, and answered or did not
    found: dict[str, Variant] = field(default_factory=dict)  # by Triton's model name, all that it serves
    variants: dict[str, Variant] = field(default_factory=dict)  # of these, those with the digest that requests go to
    facts: dict[str, Facts] = field(default_factory=dict)  # of every variant, by Triton's model name
    refused: dict[str, str] = field(default_factory=dict)  # Triton's model name -> why it is not routed to
    failures: dict[str, LoadFailure] = field(default_factory=dict)  # by Triton's model name
    loading: frozenset[str] = frozenset()  # Triton's model names
    listed: frozenset[str] = frozenset()  # Triton's model names that its repository has, whatever their state
    kept: dict[str, bytes] = field(
        default_factory=dict
    )  # Triton's model name -> the configuration (JSON) with which `tandem triton` last loaded it; empty: it does not keep this server
    unloaded: frozenset[str] = frozenset()  # Triton's model names that somebody has unloaded
    suspended: dict[str, float] = field(
        default_factory=dict
    )  # Triton's model name -> perf_counter until which it is left alone
    died: dict[str, float] = field(
        default_factory=dict
    )  # Triton's model name -> perf_counter when that was last noticed
    back: dict[str, float] = field(
        default_factory=dict
    )  # Triton's model name -> perf_counter when it was seen to serve after it had not
    differing: dict[str, Variant] = field(
        default_factory=dict
    )  # by name, those of which a receipt has to say something else than what the pool's variant says
    polls: int = 0
    num_silent: int = 0  # polls in a row that failed, of which the first got no answer in time
    triton: str | None = None  # its version
    liveness: Liveness = field(init=False)

    def __post_init__(self) -> None:
        self.liveness = Liveness(self.target)

    def serves(self, name: str, now: float) -> bool:
        return self.alive and name in self.variants and self.suspended.get(name, 0.0) <= now


@dataclass(frozen=True, slots=True)
class Conflict:
    """Ready servers of a pool serve different files as one variant. `digests` are by the server's url."""

    chosen: str
    digests: Mapping[str, str]

    def __str__(self) -> str:
        each = ", ".join(f"{url} serves sha256:{digest[:12]}" for url, digest in sorted(self.digests.items()))
        return f"{each}; requests go to sha256:{self.chosen[:12]} alone"


class Catalogue:
    """The pools, their servers and the fleet that routing sees. `on_change` is called whenever the fleet is another."""

    def __init__(
        self,
        settings: GatewaySettings,
        on_change: Callable[[], None],
        look_up: LookUp = addresses.look_up,
        in_repository: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._settings = settings
        self.cold_pools = ColdPools(settings, in_repository or {})
        self._on_change = on_change
        self._look_up = look_up
        self.pools: dict[str, list[Server]] = {name: [] for name in settings.pools}
        self.drained: dict[str, list[Server]] = {name: [] for name in settings.pools}  # that are not done yet
        self.unknown: dict[str, dict[str, str]] = {name: {} for name in settings.pools}  # url -> why nobody can tell
        self._known: dict[str, dict[str, Variant]] = {name: {} for name in settings.pools}  # what each ever served
        self._digests: dict[str, dict[str, str]] = {name: {} for name in settings.pools}  # Triton's model name -> last
        self.conflicts: dict[str, dict[str, Conflict]] = {name: {} for name in settings.pools}  # by Triton's model name
        self._meant: dict[tuple[str, str], list[str]] = {}  # pool and url of the settings -> addresses of servers
        self._nameless: set[tuple[str, str]] = set()  # of these, names without an address by now
        self._watching: dict[Server, asyncio.Task[None]] = {}
        self.fleet = _fleet([Pool(name, ready=False, asleep=self._asleep(name)) for name in settings.pools])
        self.suspended_until = 0.0  # perf_counter; from then on no model of no server is left alone
        self._tasks: list[asyncio.Task[None]] = []
        self._is_started = False
        self._names: list[tuple[str, str]] = []
        for name, pool in settings.pools.items():
            for url in pool.urls:
                if addresses.is_literal(addresses.split(url)[0]):
                    self._meant[name, url] = [url]
                else:
                    self._names.append((name, url))
            self._gather(name)

    def start(self) -> None:
        self._is_started = True
        for pool, servers in self.pools.items():
            for server in servers:
                self._begin_watch(pool, server)
        for pool, url in self._names:
            follow = forever(f"looking up {url}", partial(self._follow, pool, url))
            self._tasks.append(asyncio.create_task(follow))
        self._tasks.append(asyncio.create_task(forever("looking after connections", self._sweep)))

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._watching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for servers in (*self.pools.values(), *self.drained.values()):
            for server in servers:
                server.liveness.stop()
                server.target.close_idle()

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
            servers = (server for servers in self.pools.values() for server in servers if server.alive)
            reason = next((server.refused[name] for server in servers if name in server.refused), None)
            if reason is None:
                raise
        if reason in KINDS_NOT_SERVED:
            raise errors.Unsupported(f"'{name}' is not served here: {reason}")
        raise errors.NotFound(f"'{name}' is loaded and gets no requests from here: {reason}")

    def is_unloaded(self, name: str) -> bool:
        """Whether a name, public or a variant's, is away because somebody unloaded it, as far as anybody knows: all its pools answer."""
        away = [(pool.name, v.name) for pool in self.fleet.pools for v in pool.known if name in (v.model, v.name)]
        places = [(server, own) for pool, own in away for server in self.pools[pool]]
        is_gone = all(server.alive and own not in server.found for server, own in places)
        return is_gone and any(own in server.unloaded for server, own in places)

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
    def is_loading(self) -> bool:
        """Whether some Triton is still loading what nobody has served yet."""
        servers = (server for servers in self.pools.values() for server in servers if server.alive)
        return any(name not in self.fleet.known for server in servers for name in server.loading)

    @property
    def may_lack_models(self) -> bool:
        return self._settings.allow_missing

    @property
    def has_triton_words(self) -> bool:
        """Whether clients are told Triton's name and words."""
        return self._settings.triton_words

    def is_known(self, pool: str) -> bool:
        """Whether every server that its urls mean was asked once: until then nobody can tell whether it is away."""
        named = all((pool, url) in self._meant or url in self.unknown[pool] for url in self._settings.pools[pool].urls)
        return named and all(server.is_known for server in self.pools[pool])

    def digest_conflicts(self, pool: str) -> dict[tuple[str, str], bool]:
        """(model, variant) that the pool ever served -> whether its servers serve different files as it now."""
        return {(v.model, v.variant): name in self.conflicts[pool] for name, v in self._known[pool].items()}

    def device(self, pool: str) -> str:
        return self._settings.pools[pool].device

    def in_flight(self, pool: str) -> int:
        return sum(len(server.target.busy) for server in (*self.pools[pool], *self.drained[pool]))

    def lost(self, server: Server) -> None:
        """Nothing answers there: no further request goes there until a poll succeeds."""
        if server.alive:
            server.alive = False
            self._publish()

    def suspend(self, server: Server, name: str, sent: float) -> None:
        """The model's process died or was unloaded, as a request sent at `sent` (perf_counter) tells: leave it alone until it can be back.

        Triton gives up on the requests that waited for a dead process batch by batch, a second each. One that was sent before the
        death was noticed, or before the model was back, says nothing new, and must not keep the process away that is back by now.
        """
        now, never = perf_counter(), float("-inf")
        if sent < server.died.get(name, never) or sent < server.back.get(name, never):
            return
        server.died[name] = now
        server.suspended[name] = self.suspended_until = now + SUSPEND_S

    # -- which servers --------------------------------------------------------------------------------------------

    async def _follow(self, pool: str, url: str) -> None:
        """Keeps the pool's servers to what a name means."""
        host, port = addresses.split(url)
        while True:
            try:
                found = await self._look_up(host, port)
            except OSError as error:
                self._unresolved(pool, url, error)
            else:
                self.unknown[pool].pop(url, None)
                self._nameless.discard((pool, url))
                self._now_means(pool, url, [addresses.url_of(address, port) for address in found])
            await asyncio.sleep(LOOK_S)

    def _unresolved(self, pool: str, url: str, error: OSError) -> None:
        """What is known stays, because a resolver that fails must not empty a pool. Of a name that has no address, what answers stays."""
        self.unknown[pool][url] = error.strerror or str(error)
        if isinstance(error, NoAddress):
            self._nameless.add((pool, url))
            answering = {server.target.url for server in self.pools[pool] if server.alive}
            self._now_means(pool, url, [one for one in self._meant.get((pool, url), ()) if one in answering])

    def _now_means(self, pool: str, url: str, servers: list[str]) -> None:
        if self._meant.get((pool, url)) != servers:
            self._meant[pool, url] = servers
            self._gather(pool)
            self._publish()

    def _gather(self, pool: str) -> None:
        """The pool's servers are those that its urls mean: new ones are watched, the others drained."""
        loop = asyncio.get_running_loop()
        here = {server.target.url: server for server in self.pools[pool]}
        wanted: dict[str, Server] = {}
        for given in self._settings.pools[pool].urls:
            for url in self._meant.get((pool, given), ()):
                if url in wanted:
                    continue
                server = wanted[url] = here.pop(url) if url in here else Server(Target(url, loop), Replica(url))
                server.target.host_header = b"Host: %b\r\n" % given.removeprefix("http://").encode()
                if self._is_started and server not in self._watching:
                    self._begin_watch(pool, server)
        self.pools[pool] = list(wanted.values())
        for server in here.values():
            self._drain(pool, server)

    def _drain(self, pool: str, server: Server) -> None:
        server.alive = server.replica.is_up = False
        server.found = server.variants = {}  # so that what was just booked there goes elsewhere
        if task := self._watching.pop(server, None):
            task.cancel()
        self.drained[pool].append(server)

    # -- watching -------------------------------------------------------------------------------------------------

    def _begin_watch(self, pool: str, server: Server) -> None:
        watch = forever(f"asking {server.target.url}", partial(self._watch, pool, server))
        self._watching[server] = asyncio.create_task(watch)

    async def _watch(self, pool: str, server: Server) -> None:
        is_news = (
            True  # for the first poll, and for the first after a mistake of ours, which may have left things half done
        )
        while True:
            try:
                is_news |= await self._poll(pool, server)
                server.num_silent = 0
            except Lost as lost:
                server.num_silent += lost.timed_out or server.num_silent > 0
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
        while True:
            await asyncio.sleep(
                TICK_S
            )  # how late a time limit may be noticed; deadlines of clients have timers of their own
            now = perf_counter()
            self._listen(now)
            for servers in (*self.pools.values(), *self.drained.values()):
                for server in servers:
                    server.target.sweep(now)
            for pool, servers in self.drained.items():
                for server in servers:
                    server.target.close_idle()
                self.drained[pool] = [s for s in servers if s.target.busy or s.replica.num_in_flight]

    def _listen(self, now: float) -> None:
        """Gives up servers that fell silent, once for each silence, and what is in flight there with them."""
        servers = [server for servers in self.pools.values() for server in servers]
        for server in servers:
            server.liveness.tick()
        quiet_s = {server: server.liveness.quiet_s for server in servers}
        serves = {server: {v.model for v in server.variants.values()} for server in servers}
        for server in silent(quiet_s, serves, {server for server in servers if server.alive}):
            if server.liveness.is_reported or not (server.alive or server.target.busy):
                continue
            server.liveness.is_reported = True
            log.warning("%s answers nothing; what it works on is tried elsewhere", server.target.url)
            server.replica.fell_silent(now)
            self.lost(server)
            server.target.give_up()

    async def _poll(self, pool: str, server: Server) -> bool:
        """Asks it what it serves. Returns whether that is another thing than before.

        A Triton that stops goes on with those who are connected, and waits for them until its time is over; it lets nobody else in.
        """
        if not self._has_name(pool, server):
            server.target.close_idle()
        index = orjson.loads((await self.fetch(server, b"POST", "/v2/repository/index")).body)
        if not server.alive:
            server.triton = str(orjson.loads((await self.fetch(server, b"GET", "/v2")).body)["version"])
        ready = {entry["name"] for entry in index if entry.get("state") == "READY"}
        again = not server.alive or server.polls % CONFIG_EVERY == 0
        server.polls += 1
        failures = read_failures(index)
        loading = frozenset(entry["name"] for entry in index if entry.get("state") == "LOADING") - ready
        unloaded = frozenset(entry["name"] for entry in index if entry.get("reason") == "unloaded") - ready
        server.suspended = {name: until for name, until in server.suspended.items() if until > perf_counter()}
        wanted = ready if again else ready - server.found.keys() - server.refused.keys()
        variants = {name: v for name, v in server.found.items() if name in ready and name not in wanted}
        facts = {name: f for name, f in server.facts.items() if name in variants}
        refused = {name: r for name, r in server.refused.items() if name in ready and name not in wanted}
        for name in sorted(wanted):
            answer = await self.fetch(server, b"GET", f"/v2/models/{name}/config")
            if answer.status != 200:
                refused[name] = f"Triton answered {answer.status} for its configuration"
                continue
            config = orjson.loads(answer.body)
            try:
                variants[name] = read_variant(config, self._settings.pools[pool].device)
                facts[name] = read_facts(config)
                if facts[name].is_kept:
                    server.kept[name] = answer.body
            except NotRoutable as reason:
                refused[name] = str(reason)
        came = variants.keys() if not server.alive else variants.keys() - server.found.keys()
        server.back |= dict.fromkeys(came, perf_counter())
        listed = frozenset(entry["name"] for entry in index)
        seen = (variants, facts, refused, unloaded, failures, loading, listed)
        had = (
            server.found,
            server.facts,
            server.refused,
            server.unloaded,
            server.failures,
            server.loading,
            server.listed,
        )
        if server.alive and seen == had:
            return False
        server.alive, server.found, server.facts, server.refused = True, variants, facts, refused
        server.unloaded, server.failures, server.loading, server.listed = unloaded, failures, loading, listed
        return True

    def _has_name(self, pool: str, server: Server) -> bool:
        """Whether anybody would still find it."""
        urls = (url for url in self._settings.pools[pool].urls if (pool, url) not in self._nameless)
        return any(server.target.url in self._meant.get((pool, url), ()) for url in urls)

    async def look(self, pool: str, server: Server) -> None:
        """Asks a server now what it serves, because something was just changed there. Raises Lost."""
        if await self._poll(pool, server):
            self._publish()

    async def fetch(
        self,
        server: Server,
        method: bytes,
        path: str,
        body: bytes = b"",
        *,
        patience_s: float = POLL_TIMEOUT_S,
        fresh: bool = False,
    ) -> Answer:
        """A request beside the inference path, `fresh` on a connection that nobody else uses. Raises Lost."""
        target = server.target
        head = b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (
            method,
            path.encode(),
            target.host_header,
            len(body),
        )
        return await target.ask(head, (body,), perf_counter() + patience_s, fresh=fresh)

    async def infer(self, server: Server, name: str, body: bytes, length: int, give_up_at: float) -> Answer:
        """An inference beside the inference path, of a binary request whose JSON part has `length` bytes. Raises Lost."""
        target = server.target
        head = (
            b"POST /v2/models/%b/infer HTTP/1.1\r\n%bContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n"
        )
        filled = head % (name.encode(), target.host_header, len(body), length)
        return await target.ask(filled, (body,), give_up_at)

    def objective_s(self, model: str) -> float | None:
        settings = self._settings.models.get(model)
        return settings.objective.latency_s if settings else None

    def _publish(self) -> None:
        for name in self.pools:
            self._choose_digests(name)
        now = {
            name: {v.name: v for server in servers if server.alive for v in server.variants.values()}
            for name, servers in self.pools.items()
        }
        for name, variants in now.items():
            self._known[name] |= variants
            for gone in self._gone(name):
                del self._known[name][gone]
        spaces = declared_spaces(v for variants in self._known.values() for v in variants.values())
        pools = []
        for name, variants in now.items():
            known = tuple(self._decided(v, name, spaces) for v in self._known[name].values())
            here = tuple(self._decided(v, name, spaces) for v in variants.values())
            for server in self.pools[name]:
                told = server.variants.items()
                server.differing = {n: v for n, v in told if n in variants and not v.is_told_like(variants[n])}
            failures = tuple(sorted(self._failures(name), key=lambda failure: failure.name))
            pools.append(Pool(name, bool(here), here or known, known, failures, self._asleep(name)))
        self.fleet = _fleet(pools)
        self._on_change()

    def _gone(self, pool: str) -> list[str]:
        """Variants that were served and that no repository of the pool's servers has any more, as far as Tandem keeps those servers."""
        servers = self.pools[pool]
        if not servers or not all(server.alive and server.kept for server in servers):
            return []
        return [name for name in self._known[pool] if not any(name in server.listed for server in servers)]

    def _choose_digests(self, pool: str) -> None:
        """Of each variant one digest gets the requests, however many the pool's servers serve (`routing.chosen_digest`)."""
        alive = [server for server in self.pools[pool] if server.alive]
        serving: dict[str, Counter[str]] = {}
        for server in alive:
            for name, variant in server.found.items():
                serving.setdefault(name, Counter())[variant.digest] += 1
        chosen = {name: chosen_digest(num, self._digests[pool].get(name)) for name, num in serving.items()}
        if self.is_known(pool):  # before, whoever answered first would be the one that has the requests already
            self._digests[pool] |= chosen
        for server in alive:
            server.variants = {n: v for n, v in server.found.items() if v.digest == chosen[n]}
        was = self.conflicts[pool]
        self.conflicts[pool] = now = {
            name: Conflict(chosen[name], {s.target.url: s.found[name].digest for s in alive if name in s.found})
            for name, num in serving.items()
            if len(num) > 1
        }
        for name in sorted(now.keys() | was.keys()):
            if name in now and now[name] != was.get(name):
                log.warning("pool %s: servers differ in %s: %s", pool, name, now[name])
            elif name not in now:
                log.warning("pool %s: servers do not differ in %s any more", pool, name)

    def _asleep(self, pool: str) -> tuple[LoadFailure, ...]:
        return tuple(self.cold_pools.of(pool, self.pools[pool], self._known[pool]))

    def _failures(self, pool: str) -> Iterable[LoadFailure]:
        """What servers of the pool could not load. One that serves it, in that version or a later, makes up for the others."""
        alive = [server for server in self.pools[pool] if server.alive]
        newest = {v.name: int(v.version) for server in alive for v in server.found.values()}
        for failure in {f for server in alive for f in server.failures.values()}:
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
