"""`GET /v1/models` and `/v1/models/{model}`: the names that this caller may ask for, as OpenAI's clients list them.

Rule: a model that the caller may not ask is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException

from serving import errors
from serving.gateway.assets import Assets
from serving.gateway.http.guard import caller_of
from serving.gateway.openai.embeddings import PATH
from serving.gateway.threads import Threads
from serving.protocol.openai import model_body, models_body
from serving.scheduling.routing import Fleet, Variant

OTHER_METHODS = ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"]  # than POST
UNKNOWN = 0  # OpenAI's clients want a number


class Created:
    """When models were made, from their gate records; 0 where the gateway has no model repository to look into."""

    def __init__(self, assets: Assets, preparing: Threads) -> None:
        self._assets = assets
        self._preparing = preparing
        self._kept: dict[str, int] = {}  # digest -> seconds since 1970

    async def of(self, variants: dict[str, Variant]) -> dict[str, int]:
        """Name -> when, for names with a variant of each."""
        if any(variant.digest not in self._kept for variant in variants.values()):
            found = await self._preparing.run(lambda: {v.digest: self._read(v) for v in variants.values()})
            self._kept = found if len(self._kept) > len(found) + 1000 else self._kept | found
        return {name: self._kept[variant.digest] for name, variant in variants.items()}

    def _read(self, variant: Variant) -> int:
        try:
            day = datetime.fromisoformat(self._assets.beside(variant).record.created)
        except (errors.RequestError, ValueError):
            return UNKNOWN
        return int((day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp())


def add_openai(app: FastAPI, fleet: Callable[[], Fleet], assets: Assets, preparing: Threads) -> None:
    created = Created(assets, preparing)

    @app.get("/v1/models", tags=["openai"], summary="The models that can be asked for, as OpenAI's clients list them.")
    async def models(request: Request) -> dict[str, Any]:
        caller = caller_of(request)
        named = {v.model: v for v in _variants(fleet()) if caller.may_ask(v.model)}
        made = {model: UNKNOWN for model, _ in _asleep(fleet()) if caller.may_ask(model)} | await created.of(named)
        return models_body(dict(sorted(made.items())))

    @app.get("/v1/models/{model}", tags=["openai"], summary="One of them; also the name of a variant.")
    async def retrieve(request: Request, model: str) -> dict[str, Any]:
        caller = caller_of(request)
        found = [v for v in _variants(fleet()) if model in (v.model, v.name) and caller.may_ask(v.model)]
        if not found and any(model in names and caller.may_ask(names[0]) for names in _asleep(fleet())):
            return model_body(model, UNKNOWN)
        if not found:
            raise errors.NotFound(f"there is no model '{model[:100]}' here; GET /v1/models lists them", param="model")
        return model_body(model, (await created.of({model: found[-1]}))[model])

    @app.api_route(PATH, methods=OTHER_METHODS, include_in_schema=False)
    async def embeddings_by_other_method() -> None:
        raise HTTPException(405, headers={"Allow": "POST"})


def _asleep(fleet: Fleet) -> set[tuple[str, str]]:
    """(public name, variant's name) of what waits for a server of its pool: asking for it is what wakes one."""
    return {(f.model, f.name) for pool in fleet.pools for f in pool.asleep}


def _variants(fleet: Fleet) -> list[Variant]:
    """All that were ever seen, those that answer now last."""
    return [v for pool in fleet.pools for v in pool.known] + [v for pool in fleet.pools for v in pool.variants]
