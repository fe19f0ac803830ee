"""Loading and unloading models of Tritons that run already, for whoever runs the gateway: never for clients.

A public name means all its variants, a pinned name one; both on every server that has it. What Triton loads is what its repository
holds: configurations and files do not come over the network, because whoever may send them runs code there. Rule: a Triton that
`tandem triton` keeps is told to load only what the gateway's own repository proves, with the configuration that it was loaded with before.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, Literal, NamedTuple

import orjson

from serving import errors
from serving.gateway.assets import Assets
from serving.gateway.fleet.catalogue import Catalogue, Server
from serving.gateway.fleet.upstream import Lost
from serving.gateway.preparing import Preparing

Action = Literal["load", "unload"]
PATIENCE_S = 600.0  # a large model from a slow disk, with an engine to be built; a guess, not measured
UNLOAD_POLL_S = 0.05  # an idle model of the embedded Triton is gone after about so long; a guess, not measured
PATHS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")


class Place(NamedTuple):
    """One Triton's model on one server."""

    pool: str
    server: Server
    name: str


class Loading:
    """`assets` read the files that a load is proven by, on threads of `preparing`."""

    def __init__(self, catalogue: Catalogue, assets: Assets, preparing: Preparing) -> None:
        self._catalogue = catalogue
        self._assets = assets
        self._preparing = preparing

    async def change(self, model: str, action: Action, body: bytes) -> None:
        """Returns when it is done everywhere.

        Raises NotFound, NotReady, Forbidden, BadRequest, Unsupported, or Internal with Triton's reason.
        """
        _check(body, action)
        places = await _places(self._catalogue, model)
        bodies = [b"{}" if action == "unload" else await self._load_of(place) for place in places]
        changes = (_change(self._catalogue, *each, action) for each in zip(places, bodies, strict=True))
        for failure in await asyncio.gather(*changes, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def _load_of(self, place: Place) -> bytes:
        """What Triton is told. Its own configuration of a kept model is not the file's: it says how many instances this machine has."""
        kept = place.server.kept
        if not kept:
            return b"{}"
        if place.name not in kept:
            raise errors.Forbidden(
                f"'{place.name}' was not loaded at {place.server.target.url} since this gateway started, and Tandem keeps that server: "
                "start it again, and it loads what its repository holds"
            )
        config = kept[place.name]
        digest = orjson.loads(config)["parameters"]["tandem_digest"]["string_value"]
        await self._preparing.run(partial(self._assets.prove, place.name, digest))
        return orjson.dumps({"parameters": {"config": config.decode()}})


def _check(body: bytes, action: Action) -> None:
    try:
        request = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise errors.BadRequest(f"the request is not valid JSON: {error}") from None
    parameters = (request.get("parameters") or {}) if isinstance(request, dict) else None
    if not isinstance(parameters, dict):
        raise errors.BadRequest("the request must be a JSON object, and 'parameters' another one in it")
    for name, value in parameters.items():
        if name == "config" or name.startswith("file:"):
            raise errors.Forbidden(
                f"parameters.{name[:80]}: configurations and files are not taken over the network, because they run code; "
                "put them into the model repository"
            )
        if name != "unload_dependents" or action == "load":
            raise errors.BadRequest(f"parameters.{name[:80]} means nothing here")
        if value is not False:
            raise errors.Unsupported(
                "parameters.unload_dependents: ensembles are not served, so nothing depends on a model"
            )


async def _places(catalogue: Catalogue, model: str) -> list[Place]:
    """Where it is, was, or could be. A name that was never served is looked for in the repositories."""
    variants = {
        (pool.name, v.name)
        for pool in catalogue.fleet.pools
        for v in (*pool.variants, *pool.known)
        if model in (v.model, v.name)
    }
    alive = [(pool, s) for pool, servers in catalogue.pools.items() for s in servers if s.alive]
    if not alive:
        raise errors.NotReady("no Triton answers; try again", retry_after_s=1.0)
    held = await asyncio.gather(*(_held(catalogue, server) for _, server in alive))
    places = [
        Place(pool, server, name)
        for (pool, server), names in zip(alive, held, strict=True)
        for name in sorted(names)
        if (pool, name) in variants or (not variants and name == model)
    ]
    if not places:
        raise errors.NotFound(f"no Triton that answers has a model '{model}' in its repository")
    return places


async def _held(catalogue: Catalogue, server: Server) -> set[str]:
    try:
        index = orjson.loads((await catalogue.fetch(server, b"POST", "/v2/repository/index")).body)
    except Lost:
        return set()
    return {entry["name"] for entry in index}


async def _change(catalogue: Catalogue, place: Place, body: bytes, action: Action) -> None:
    path, server = f"/v2/repository/models/{place.name}/{action}", place.server
    try:
        # Of its own connection: Triton answers nothing else on it, and on those that share its thread, until it is done.
        answer = await catalogue.fetch(server, b"POST", path, body, patience_s=PATIENCE_S, fresh=True)
        if answer.status == 200:
            await _until_done(catalogue, place, action)
        await catalogue.look(place.pool, server)
    except Lost as lost:
        raise errors.UpstreamLost(
            f"{server.target.url} was lost while it did this ({lost})", retry_after_s=1.0
        ) from None
    if answer.status != 200:
        raise errors.Internal(f"Triton could not {action} '{place.name}': {_reason(answer.body)}")


async def _until_done(catalogue: Catalogue, place: Place, action: Action) -> None:
    """Triton answers an unload when it begins; what is in flight is still worked on."""
    if action == "load":
        return
    for _ in range(int(PATIENCE_S / UNLOAD_POLL_S)):
        index = orjson.loads((await catalogue.fetch(place.server, b"POST", "/v2/repository/index")).body)
        states = {entry.get("state") for entry in index if entry["name"] == place.name}
        if not states & {"READY", "UNLOADING"}:
            return
        await asyncio.sleep(UNLOAD_POLL_S)


def _reason(body: bytes) -> str:
    try:
        told: Any = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "it gave no reason"
    return PATHS.sub("…", str(told))[:500]
