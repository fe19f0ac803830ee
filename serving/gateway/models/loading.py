"""Loads and unloads models of running Tritons, for whoever runs the gateway: never for clients.

A public name means all its variants, a pinned name one; both on every server that has it. Triton loads what its repository holds:
configurations and files do not come over the network, because whoever may send them runs code there. Rule: a Triton that `tandem triton`
keeps loads only what the gateway's own repository proves, with the configuration that it was loaded with before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Literal, NamedTuple

import orjson

from serving import errors
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Lost
from serving.gateway.model_files import Assets, RepositoryVariant
from serving.gateway.threads import Threads
from serving.protocol.triton_reason import reason_of
from serving.protocol.v2 import control
from serving.repository import model_of
from serving.scheduling.routing import LoadFailure

Action = Literal["load", "unload"]
TAKEN_S = 10.0  # of an idle server, from an export until its load begins: it looks once a second (guess, not measured)
BEFORE_S = 60.0  # of one that loads another model: after so long `tandem triton` goes on to the next one beside it
PATIENCE_S = 600.0  # a large model from a slow disk, with an engine to be built; a guess, not measured
UNLOAD_POLL_S = 0.05  # an idle model of the embedded Triton is gone after about so long; a guess, not measured


class ModelOnServer(NamedTuple):
    """One Triton's model on one server."""

    pool: str
    server: Server
    name: str


class Loading:
    """`assets` read the files that a load is proven by, on `threads`."""

    def __init__(self, catalogue: Catalogue, assets: Assets, threads: Threads) -> None:
        self._catalogue = catalogue
        self._assets = assets
        self._threads = threads

    async def change(self, model: str, action: Action, body: bytes) -> None:
        """Returns when it is done everywhere.

        Raises NotFound, NotReady, Forbidden, BadRequest, Unsupported, or Internal with Triton's reason.
        """
        _check(model, body, action)
        exported = await self._threads.run(partial(self._assets.exported, model)) if action == "load" else {}
        places = await _places(self._catalogue, model, exported)
        new = [place for place in places if self._is_another(place, exported)]
        await asyncio.gather(*(self._until_taken(place, exported[place.name]) for place in new))
        places = [place for place in places if place not in new]
        bodies = [b"{}" if action == "unload" else await self._load_of(place) for place in places]
        changes = (_change(self._catalogue, *each, action) for each in zip(places, bodies, strict=True))
        for failure in await asyncio.gather(*changes, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    def _is_another(self, place: ModelOnServer, exported: Mapping[str, RepositoryVariant]) -> bool:
        """Whether the gateway's repository has another file of it than its server was ever seen to serve, which Tandem keeps."""
        server, here = place.server, exported.get(place.name)
        if not server.kept or here is None or self._catalogue.device(place.pool) not in here.pools:
            return False
        config = server.kept.get(place.name)
        return config is None or orjson.loads(config)["parameters"]["tandem_digest"]["string_value"] != here.digest

    async def _until_taken(self, place: ModelOnServer, exported: RepositoryVariant) -> None:
        """Waits for what was exported since. `tandem triton` looks at its repository itself: it proves the files, tries and loads them."""
        _, server, name = place
        await self._threads.run(partial(self._assets.prove, name, exported.digest))
        try:
            await self._catalogue.poll(place.pool, server)  # what failed until now
            turn = _Turn(name, exported, server, perf_counter())
            while not turn.is_over(perf_counter()):
                await asyncio.sleep(UNLOAD_POLL_S)
                await self._catalogue.poll(place.pool, server)
        except Lost as lost:
            raise errors.UpstreamLost(
                f"{server.target.url} was lost while it did this ({lost})", retry_after_s=1.0
            ) from None

    async def _load_of(self, place: ModelOnServer) -> bytes:
        """What Triton is told. Its own configuration of a kept model is not the file's: it says how many instances this machine has."""
        kept = place.server.kept
        if not kept:
            return b"{}"
        failure = place.server.snapshot.failures.get(place.name)
        if place.name not in kept and failure is not None:
            raise errors.Forbidden(f"'{place.name}' is not loaded: {failure.reason}")
        if place.name not in kept:
            raise errors.Forbidden(
                f"'{place.name}' was not loaded at {place.server.target.url} since this gateway started, Tandem keeps that server, and the "
                "gateway's --model-repository has no such variant for it"
            )
        config = kept[place.name]
        digest = orjson.loads(config)["parameters"]["tandem_digest"]["string_value"]
        await self._threads.run(partial(self._assets.prove, place.name, digest))
        return orjson.dumps({"parameters": {"config": config.decode()}})


class _Turn:
    """Of an export at a server that takes one model after another. `now`: by perf_counter."""

    def __init__(self, name: str, exported: RepositoryVariant, server: Server, now: float) -> None:
        self._name = name
        self._exported = exported
        self._server = server
        self._began = self._moved = self._changed = now
        self._taking: frozenset[str] = frozenset()
        self._failure = self._newest_failure()  # of an earlier try
        self._was_tried = False

    def _newest_failure(self) -> LoadFailure | None:
        failure = self._server.snapshot.failures.get(self._name)
        return failure if failure is not None and failure.version == self._exported.version else None

    def is_over(self, now: float) -> bool:
        """Whether it is served. Raises Internal where its load has failed, NotReady where nothing comes of it."""
        snapshot, failure = self._server.snapshot, self._newest_failure()
        if (served := snapshot.served.get(self._name)) is not None and served.digest == self._exported.digest:
            return True
        if snapshot.taking != self._taking:
            self._taking, self._changed = snapshot.taking, now
        is_own = self._name in self._taking
        is_before = any(model_of(name) == model_of(self._name) for name in self._taking) or (
            bool(self._taking) and now - self._changed < BEFORE_S
        )
        if failure != self._failure:
            self._failure, self._moved, self._was_tried = failure, now, True
        elif is_own or (is_before and (failure is None or not self._was_tried)):
            self._moved = now
        self._was_tried |= is_own
        waited_s = now - self._moved
        is_late = now - self._began > PATIENCE_S
        if failure is not None and (is_late or waited_s > (TAKEN_S / 2 if self._was_tried else TAKEN_S)):
            raise errors.Internal(f"Triton could not load '{self._name}': {failure.reason}")
        if is_late or waited_s > TAKEN_S:
            raise errors.NotReady(
                f"'{self._name}' was exported again, and {self._server.target.url} has not taken it; its log says why",
                retry_after_s=TAKEN_S,
            )
        return False


def _check(model: str, body: bytes, action: Action) -> None:
    parameters = control(body).get("parameters", {})
    if not isinstance(parameters, dict):
        raise errors.BadRequest("'parameters' must be a JSON object")
    for name, value in parameters.items():
        if name == "config" or name.startswith("file:"):
            raise errors.LoadRefused(
                f"parameters.{name[:80]}: configurations and files are not taken over the network, because they run code; "
                "put them into the model repository",
                model=model,
            )
        if name != "unload_dependents" or action == "load":
            raise errors.BadRequest(f"parameters.{name[:80]} means nothing here")
        if not isinstance(value, bool):
            raise errors.BadRequest("parameters.unload_dependents must be true or false")
        if value:
            raise errors.Unsupported(
                "parameters.unload_dependents: ensembles are not served, so nothing depends on a model"
            )


async def _places(catalogue: Catalogue, model: str, exported: Mapping[str, RepositoryVariant]) -> list[ModelOnServer]:
    """Where it is, was, or could be. A name that was never served is looked for in the repositories."""
    variants = {
        (pool.name, name)
        for pool in catalogue.fleet.pools
        for public, name in (
            *((v.model, v.name) for v in (*pool.variants, *pool.known)),
            *((f.model, f.name) for f in pool.failures),
        )
        if model in (public, name)
    }
    alive = [(pool, s) for pool, servers in catalogue.pools.items() for s in servers if s.alive]
    if not alive:
        raise errors.NotReady("no Triton answers; try again", retry_after_s=1.0)
    held = await asyncio.gather(*(_held(server) for _, server in alive))
    places = [
        ModelOnServer(pool, server, name)
        for (pool, server), names in zip(alive, held, strict=True)
        for name in sorted(names)
        if (pool, name) in variants
        or (not variants and name == model)
        or (server.kept and name in exported and catalogue.device(pool) in exported[name].pools)
    ]
    if not places:
        raise errors.NothingToLoad(f"no Triton that answers has a model '{model}' in its repository", model=model)
    return places


async def _held(server: Server) -> set[str]:
    try:
        return {entry["name"] for entry in (await server.index()).rows}
    except Lost:
        return set()


async def _change(catalogue: Catalogue, place: ModelOnServer, body: bytes, action: Action) -> None:
    path, server = f"/v2/repository/models/{place.name}/{action}", place.server
    try:
        # Of its own connection: Triton answers nothing else on it, and on those that share its thread, until it is done.
        answer = await server.fetch(b"POST", path, body, patience_s=PATIENCE_S, fresh=True)
        if answer.status == 200:
            await _until_done(place, action)
        await catalogue.poll(place.pool, server)
    except Lost as lost:
        raise errors.UpstreamLost(
            f"{server.target.url} was lost while it did this ({lost})", retry_after_s=1.0
        ) from None
    if answer.status != 200:
        raise errors.Internal(f"Triton could not {action} '{place.name}': {reason_of(answer.body)}")


async def _until_done(place: ModelOnServer, action: Action) -> None:
    """Triton answers an unload when it begins; what is in flight is still worked on."""
    if action == "load":
        return
    num_errors = 0
    for _ in range(int(PATIENCE_S / UNLOAD_POLL_S)):
        index = await place.server.index()
        num_errors += bool(index.error)
        states = {entry.get("state") for entry in index.rows if entry["name"] == place.name}
        if not states & {"READY", "UNLOADING"} and (not index.error or num_errors > 1):  # one may fail by chance
            return
        await asyncio.sleep(UNLOAD_POLL_S)
