"""Health, and all of the v2 protocol over HTTP but inference and loading.

What is said of models is in `gateway/models/`, for all protocols: there a client sees the name it asked for, never the variant's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.responses import JSONResponse

from serving import errors
from serving.gateway.access import meant
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.http.fastapi_app import small_body
from serving.gateway.http.guard import caller_of
from serving.gateway.models import metadata, statistics
from serving.gateway.models.metadata import State
from serving.protocol.v2 import control, json_type

NOT_READY = {"Retry-After": "1", "Retry-After-Ms": "1000", "Tandem-Error": "not_ready"}


class Health:
    """`required` are the models that must have answered before /health/ready says so. `names_models`: which are missing is said."""

    def __init__(self, catalogue: Catalogue, state: State, required: Sequence[str], *, names_models: bool) -> None:
        self._catalogue = catalogue
        self._state = state
        self._required = list(required)
        self._names_models = names_models

    async def live(self) -> dict[str, bool]:
        return {"live": True}

    async def ready(self) -> JSONResponse:
        state = self._state
        state.was_ready = state.was_ready or self._all_routable(may_sleep=True)
        return self._answer(state.was_ready)

    async def ready_now(self) -> JSONResponse:
        return self._answer(self._all_routable() and not self._state.unanswered())

    def _all_routable(self, *, may_sleep: bool = False) -> bool:
        return self._state.is_informed() and metadata.all_routable(self._catalogue, self._required, may_sleep=may_sleep)

    def _answer(self, is_ready: bool) -> JSONResponse:
        is_ready = is_ready and not self._state.closing
        missing = metadata.not_served(self._catalogue) if self._names_models and not is_ready else {}
        return _readiness({"ready": is_ready, **({"not_served": missing} if missing else {})})


class Models:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def server(self) -> dict[str, Any]:
        return metadata.server_metadata(self._catalogue)

    async def index(self, request: Request) -> list[dict[str, str]]:
        return metadata.index(self._catalogue, caller_of(request), is_ready=_wants_ready(await small_body(request)))

    async def all_statistics(self, request: Request) -> Response:
        return _json(await statistics.of_all(self._catalogue, caller_of(request)))

    async def metadata(self, model: str, request: Request) -> Response:
        return await self._of(model, request, metadata.METADATA)

    async def config(self, model: str, request: Request) -> Response:
        return await self._of(model, request, metadata.CONFIG)

    async def statistics(self, model: str, request: Request) -> Response:
        return await self._of(model, request, metadata.STATISTICS)

    async def ready(self, model: str, request: Request) -> JSONResponse:
        is_ready = await metadata.is_model_ready(self._catalogue, model, _version(request))
        reason = "" if is_ready else metadata.why_not_loaded(self._catalogue, model)
        return _readiness({"name": model, "ready": is_ready} | ({"reason": reason} if reason else {}))

    async def _of(self, model: str, request: Request, what: str) -> Response:
        try:
            return _json(await metadata.of_model(self._catalogue, model, _version(request), what))
        except errors.NoSuchModel as error:
            error.args = (f"{error}{meant(caller_of(request), model, self._catalogue.fleet)}",)
            raise


def refuse(what: str) -> Callable[[], Awaitable[None]]:
    """The handler of a part of the protocol that is not offered."""

    async def handler() -> None:
        raise errors.Unsupported(metadata.NOT_OFFERED[what])

    return handler


async def refuse_load(model: str) -> None:
    metadata.refuse_load(model)


def _readiness(body: dict[str, Any]) -> JSONResponse:
    return JSONResponse(body) if body["ready"] else JSONResponse(body, 503, NOT_READY)


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _version(request: Request) -> str:
    """That the path names; empty where it names none, whatever stands in the query."""
    return str(request.path_params.get("version", ""))


def _wants_ready(body: bytes) -> bool:
    """Whether a request for the index, `{"ready": true}` or nothing, wants the models that are ready alone. Raises BadRequest."""
    ready = control(body).get("ready", False)
    if not isinstance(ready, bool):
        raise errors.BadRequest(f"'ready' must be true or false, not {json_type(ready)}")
    return ready
