"""Loading and unloading models of Tritons that run already, for whoever runs the gateway: never for clients.

A public name means all its variants, a pinned name one; both on every server that has it. What Triton loads is what its repository
holds: configurations and files do not come over the network, because whoever may send them runs code there. A Triton that `tandem triton`
keeps is left alone: it proves files before it loads them, and brings back what vanishes.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Literal, NamedTuple

import orjson

from serving import errors
from serving.gateway.fleet.catalogue import Catalogue, Server
from serving.gateway.fleet.upstream import Lost

Action = Literal["load", "unload"]
PATIENCE_S = 600.0  # a large model from a slow disk, with an engine to be built; a guess, not measured
UNLOAD_POLL_S = 0.05  # an idle model of the embedded Triton is gone after about so long; a guess, not measured
PATHS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*")


class Place(NamedTuple):
    """One Triton's model on one server."""

    pool: str
    server: Server
    name: str


async def change(catalogue: Catalogue, model: str, action: Action, body: bytes) -> None:
    """Returns when it is done everywhere.

    Raises NotFound, NotReady, Forbidden, BadRequest, Unsupported, or Internal with Triton's reason.
    """
    _check(body, action)
    places = await _places(catalogue, model)
    kept = next((place for place in places if _is_kept(place)), None)
    if kept is not None:
        raise errors.Forbidden(
            f"'{kept.name}' at {kept.server.target.url} is kept by Tandem, which loads what its repository holds and brings back what "
            "vanishes: change the repository and start that server again"
        )
    done = await asyncio.gather(*(_change(catalogue, place, action) for place in places), return_exceptions=True)
    for failure in done:
        if isinstance(failure, BaseException):
            raise failure


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


def _is_kept(place: Place) -> bool:
    """A server that keeps one of its models keeps all."""
    return any(facts.is_kept for facts in place.server.facts.values())


async def _change(catalogue: Catalogue, place: Place, action: Action) -> None:
    path, server = f"/v2/repository/models/{place.name}/{action}", place.server
    try:
        # Of its own connection: Triton answers nothing else on it, and on those that share its thread, until it is done.
        answer = await catalogue.fetch(server, b"POST", path, b"{}", patience_s=PATIENCE_S, fresh=True)
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
