"""`GET /v1/models` and `/v1/models/{model}`: the names that this caller may ask for, as OpenAI's clients list them.

Rule: a model that the caller may not ask is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from fastapi import Request

from serving import errors
from serving.gateway.access import meant
from serving.gateway.http.guard import caller_of
from serving.gateway.model_files import Assets
from serving.gateway.threads import Threads
from serving.protocol.openai import model_body, models_body
from serving.scheduling.routing import Fleet, Variant

UNKNOWN = 0  # OpenAI's clients want a number


class CreationTimes:
    """When models were made, from their gate records; 0 where the gateway has no model repository to look into."""

    def __init__(self, assets: Assets, threads: Threads) -> None:
        self._assets = assets
        self._threads = threads
        self._kept: dict[str, int] = {}  # digest -> seconds since 1970

    async def of(self, variants: dict[str, Variant]) -> dict[str, int]:
        """Name -> when, for names with a variant of each."""
        if any(variant.digest not in self._kept for variant in variants.values()):
            found = await self._threads.run(lambda: {v.digest: self._read(v) for v in variants.values()})
            self._kept = found if len(self._kept) > len(found) + 1000 else self._kept | found
        return {name: self._kept[variant.digest] for name, variant in variants.items()}

    def _read(self, variant: Variant) -> int:
        try:
            day = datetime.fromisoformat(self._assets.beside(variant).record.created)
        except (errors.RequestError, ValueError):
            return UNKNOWN
        return int((day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp())


class Models:
    def __init__(self, fleet: Callable[[], Fleet], assets: Assets, threads: Threads) -> None:
        self._fleet = fleet
        self._created = CreationTimes(assets, threads)

    async def models(self, request: Request) -> dict[str, Any]:
        caller, fleet = caller_of(request), self._fleet()
        named = {v.model: v for v in _variants(fleet) if caller.may_ask(v.model)}
        asleep = {model: UNKNOWN for model, _ in _asleep(fleet) if caller.may_ask(model)}
        return models_body(dict(sorted((asleep | await self._created.of(named)).items())))

    async def model(self, request: Request, model: str) -> dict[str, Any]:
        caller, fleet = caller_of(request), self._fleet()
        found = [v for v in _variants(fleet) if model in (v.model, v.name) and caller.may_ask(v.model)]
        if found:
            return model_body(model, (await self._created.of({model: found[-1]}))[model])
        if any(model in names and caller.may_ask(names[0]) for names in _asleep(fleet)):
            return model_body(model, UNKNOWN)
        raise errors.NotFound(
            f"there is no model '{model[:100]}' here; GET /v1/models lists them{meant(caller, model, fleet)}",
            param="model",
        )


def _asleep(fleet: Fleet) -> set[tuple[str, str]]:
    """(public name, variant's name) of what waits for a server of its pool: asking for it is what wakes one."""
    return {(f.model, f.name) for pool in fleet.pools for f in pool.asleep}


def _variants(fleet: Fleet) -> list[Variant]:
    """All that were ever seen, those that answer now last."""
    return [v for pool in fleet.pools for v in pool.known] + [v for pool in fleet.pools for v in pool.variants]
