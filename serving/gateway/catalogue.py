"""What the pools' Tritons serve right now: asked of Triton itself a few times a second, never read from disk.

A variant is routable on a server when Triton says it is ready, its configuration carries the parameters that a gate wrote, the
gate passed for this pool, and every instance runs on the pool's kind of device. Whatever is not routable is kept with the reason,
for `/admin/status`. Deciding between pools is not here (`serving/scheduling/`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import orjson

from serving.gateway.curves import Facts, read_facts
from serving.gateway.upstream import Answer, Lost, Target
from serving.scheduling.replica import Replica
from serving.scheduling.routing import Fleet, Pool, Variant
from serving.settings import EMULATED, GatewaySettings

POLL_S = 0.5  # how soon a model that was loaded or unloaded is noticed
POLL_DOWN_S = 0.1  # a refused connection costs little, and somebody waits for the server to be back
POLL_TIMEOUT_S = (
    5.0  # Triton answers its index in under 2 ms; one that is stopped by a debugger or a dying node does not
)
CONFIG_EVERY = 10  # polls; a reload can change a configuration without the index showing it
SUSPEND_S = 1.0  # a dead stub is reloaded within about a second; until then requests to it would wait a second each
ROUTABLE = ("passed", "not_useful", "ungated", "untrained: speed only")  # what `tandem_gate` may say
KINDS = {"cpu": "KIND_CPU", "gpu": "KIND_GPU", EMULATED: "KIND_CPU"}


@dataclass(slots=True, eq=False)
class Server:
    """One Triton of a pool and what was last seen of it."""

    target: Target
    replica: Replica  # what was sent there, as scheduling sees it
    alive: bool = False
    variants: dict[str, Variant] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)  # of every variant, by Triton's model name
    refused: dict[str, str] = field(default_factory=dict)  # Triton's model name -> why it is not routed to
    suspended: dict[str, float] = field(
        default_factory=dict
    )  # Triton's model name -> perf_counter until which it is left alone
    died: dict[str, float] = field(
        default_factory=dict
    )  # Triton's model name -> perf_counter when that was last noticed
    polls: int = 0
    triton: str | None = None  # its version

    def serves(self, name: str, now: float) -> bool:
        return self.alive and name in self.variants and self.suspended.get(name, 0.0) <= now


class Catalogue:
    """The pools, their servers and the fleet that routing sees. `on_change` is called whenever the fleet is another."""

    def __init__(self, settings: GatewaySettings, on_change: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._on_change = on_change
        self.pools = {
            name: [Server(Target(url, loop), Replica(url)) for url in pool.urls]
            for name, pool in settings.pools.items()
        }
        self.fleet = Fleet(tuple(Pool(name, ready=False) for name in settings.pools))
        self.suspended_until = 0.0  # perf_counter; from then on no model of no server is left alone
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for name, servers in self.pools.items():
            self._tasks += [asyncio.create_task(self._watch(name, server)) for server in servers]
        self._tasks.append(asyncio.create_task(self._sweep()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for servers in self.pools.values():
            for server in servers:
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

    def device(self, pool: str) -> str:
        return self._settings.pools[pool].device

    def in_flight(self, pool: str) -> int:
        return sum(len(server.target.busy) for server in self.pools[pool])

    def lost(self, server: Server) -> None:
        """Nothing answers there: no further request goes there until a poll succeeds."""
        if server.alive:
            server.alive = False
            self._publish()

    def suspend(self, server: Server, name: str, sent: float) -> None:
        """The model's process died, as a request sent at `sent` (perf_counter) tells: leave it alone until it can be back.

        Triton gives up on the requests that waited for a dead process batch by batch, a second each. One that was sent before the
        death was noticed says nothing new, and must not keep the process away that is back by now.
        """
        now = perf_counter()
        if sent < server.died.get(name, float("-inf")):
            return
        server.died[name] = now
        server.suspended[name] = self.suspended_until = now + SUSPEND_S

    # -- watching -------------------------------------------------------------------------------------------------

    async def _watch(self, pool: str, server: Server) -> None:
        while True:
            try:
                await self._poll(pool, server)
            except (Lost, ValueError, KeyError, TypeError, AttributeError):  # not there, or not Triton
                self.lost(server)
            await asyncio.sleep(POLL_S if server.alive else POLL_DOWN_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(
                0.25
            )  # how late a time limit may be noticed; deadlines of clients have timers of their own
            now = perf_counter()
            for servers in self.pools.values():
                for server in servers:
                    server.target.sweep(now)

    async def _poll(self, pool: str, server: Server) -> None:
        index = orjson.loads((await self.fetch(server, b"POST", "/v2/repository/index")).body)
        if not server.alive:
            server.triton = str(orjson.loads((await self.fetch(server, b"GET", "/v2")).body)["version"])
        ready = {entry["name"] for entry in index if entry.get("state") == "READY"}
        again = not server.alive or server.polls % CONFIG_EVERY == 0
        server.polls += 1
        server.suspended = {name: until for name, until in server.suspended.items() if until > perf_counter()}
        wanted = ready if again else ready - server.variants.keys() - server.refused.keys()
        variants = {name: v for name, v in server.variants.items() if name in ready and name not in wanted}
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
            except NotRoutable as reason:
                refused[name] = str(reason)
        if not server.alive or (variants, facts, refused) != (server.variants, server.facts, server.refused):
            server.alive, server.variants, server.facts, server.refused = True, variants, facts, refused
            self._publish()

    async def fetch(self, server: Server, method: bytes, path: str, body: bytes = b"") -> Answer:
        """A request beside the inference path. Raises Lost."""
        target = server.target
        head = b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (
            method,
            path.encode(),
            target.host_header,
            len(body),
        )
        return await target.ask(head, (body,), perf_counter() + POLL_TIMEOUT_S)

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
        pools = []
        for name, servers in self.pools.items():
            seen = {v.name: self._decided(v, name) for s in servers for v in s.variants.values() if s.alive}
            last = {v.name: self._decided(v, name) for s in servers for v in s.variants.values()}
            pools.append(Pool(name, ready=bool(seen), variants=tuple((seen or last).values())))
        known = {n for pool in pools for v in pool.variants for n in (v.model, v.name)}
        self.fleet = Fleet(tuple(pools), self.fleet.known | known)
        self._on_change()

    def _decided(self, variant: Variant, pool: str) -> Variant:
        """What the configuration says by hand goes before what was measured."""
        model = self._settings.models.get(variant.model)
        chosen = model.variants.get(pool) if model else None
        return variant if chosen is None else variant.chosen(chosen == variant.variant)


class NotRoutable(Exception):
    """Why a model that Triton serves gets no request from here."""


def read_variant(config: dict[str, Any], device: str) -> Variant:
    """A variant from Triton's JSON of its configuration, for a pool of `device` (cpu, gpu or emulated). Raises NotRoutable."""
    parameters = {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}
    missing = [
        key for key in ("tandem_model", "tandem_variant", "tandem_digest", "tandem_gate") if key not in parameters
    ]
    if missing:
        raise NotRoutable("it has no gate record (its configuration lacks the tandem_ parameters)")
    gate = parameters["tandem_gate"]
    if gate not in ROUTABLE:
        raise NotRoutable(f"its gate says '{gate}' for this pool")
    groups = config.get("instance_group", [])
    kinds = {group.get("kind") for group in groups}
    if kinds != {KINDS[device]}:
        raise NotRoutable(
            f"it has instances of {', '.join(sorted(map(str, kinds))) or 'no kind'}, not {KINDS[device]} alone"
        )
    if device == "gpu" and not all(group.get("gpus") for group in groups):
        raise NotRoutable("it has a GPU instance on no GPU")
    emulated = _printable(parameters.get("tandem_emulated", ""))
    if "tandem_emulated" in parameters and device != EMULATED:
        raise NotRoutable(f"it emulates {emulated}, which only a pool with device '{EMULATED}' may serve")
    if not emulated and device == EMULATED:
        raise NotRoutable(f"it runs as fast as it can, in a pool whose device is '{EMULATED}'")
    label = _printable(parameters.get("tandem_device_name", ""))
    device = f"{EMULATED}-{emulated}" if emulated else device
    return Variant(
        name=config["name"],
        model=parameters["tandem_model"],
        variant=parameters["tandem_variant"],
        engine=parameters.get("tandem_engine", "unknown"),
        digest=parameters["tandem_digest"],
        device=f'{device}; name="{label}"' if label else device,
        gate=gate,
        version=_version(config),
        space=parameters.get("tandem_space", ""),
        speed_ratio=_ratio(parameters.get("tandem_speed_ratio")),
    )


def _printable(text: str) -> str:
    """What may be part of a header's value."""
    return re.sub(r'[^ -~]|["\\]', "", text)


def _version(config: dict[str, Any]) -> str:
    """The one that Triton was told to serve; the newest of several. "1" where it was told none, as for a model of one version."""
    versions = config.get("version_policy", {}).get("specific", {}).get("versions", [])
    return str(max(map(int, versions), default=1))  # Triton writes int64 as text


def _ratio(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None  # "unmeasured"
