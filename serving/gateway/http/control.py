"""Everything but inference: health, metadata, the index, metrics, status. FastAPI, because none of it is hot.

Names are put right here too: a client sees the name it asked for, never the variant's. Errors have the body of the path's protocol, also
for what FastAPI itself refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

import serving
from serving import errors
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.http.client import Receive, Scope, Send
from serving.gateway.http.compression import content_coding, decompress
from serving.gateway.http.guard import caller_of
from serving.gateway.http.pages import add_pages
from serving.gateway.metrics import Metrics, Rendering, rendering_for
from serving.gateway.models import metadata as model_metadata
from serving.gateway.models import statistics
from serving.gateway.models.loading import Loading
from serving.gateway.models.metadata import State
from serving.gateway.responses import error_parts
from serving.gateway.triton_words import worded
from serving.protocol.v2 import json_type, parse
from serving.scheduling.outliers import condition
from serving.scheduling.routing import decide, preference_for

OTHER_METHODS = ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"]  # than POST, on the inference path
LIVE = "Whether this process answers."
METADATA = "The inputs and outputs of a model."
CONFIG = "The configuration of the variant that a name means now."
STATISTICS = "What Tritons counted for a name, summed over variants and servers."
MAX_CONTROL_BYTES = 64 * 1024  # of a request to load or unload, which has a parameter or none
MODEL_READY = "Whether a model can be asked at this moment."
AWAY: dict[int | str, dict[str, Any]] = {503: {"description": "It is not; Retry-After says when to ask again."}}
STATUS_ERRORS: dict[int, type[errors.RequestError]] = {
    404: errors.NoSuchPath,
    405: errors.MethodNotAllowed,
    413: errors.TooLarge,
}


def build_public(
    catalogue: Catalogue, state: State, required: list[str], *, admin_here: bool = False, has_keys: bool = False
) -> FastAPI:
    """The app that clients see. `required` are the models that must have answered before /health/ready says so.

    `admin_here`: `add_admin` will add what the operator may, and clients are the operator's. `has_keys`: health, which is open to
    everybody, names no model.
    """
    app = _app("Tandem", catalogue)
    _add_health(app, catalogue, state, required, names_models=not has_keys)
    _add_models(app, catalogue)
    _add_refusals(app, admin_here)
    return app


def add_admin(
    app: FastAPI,
    public: FastAPI,
    catalogue: Catalogue,
    metrics: Metrics,
    state: State,
    loading: Loading,
    *,
    has_keys: bool = False,
) -> None:
    """Paths for the operator: on a loopback bind beside the others, otherwise on a listener of their own."""
    add_pages(app, public, has_keys=has_keys)
    _add_loading(app, loading)

    @app.get("/metrics", tags=["admin"], summary="What was counted and measured.", response_class=PlainTextResponse)
    async def scrape(request: Request) -> Response:
        rendering = rendering_for(", ".join(request.headers.getlist("accept")))
        return Response(await metrics.text(rendering), headers={"Vary": "Accept"}, media_type=rendering.media_type)

    @app.get(
        "/metrics/demand", tags=["admin"], summary="What the scaler reads of that.", response_class=PlainTextResponse
    )
    async def demand() -> Response:
        return Response(metrics.demand(), media_type=Rendering.TEXT_0.media_type)

    @app.get("/admin/status", tags=["admin"], summary="Pools and models as they are now, and what a name means.")
    async def status() -> dict[str, Any]:
        return _status(catalogue, metrics, state)


def build_admin(
    public: FastAPI,
    catalogue: Catalogue,
    metrics: Metrics,
    state: State,
    loading: Loading,
    required: list[str],
    *,
    has_keys: bool = False,
) -> FastAPI:
    """The app of the admin listener. Its documents describe `public` too, which shows none of its own there."""
    app = _app("Tandem admin", catalogue)
    _add_health(app, catalogue, state, required, names_models=not has_keys)
    add_admin(app, public, catalogue, metrics, state, loading, has_keys=has_keys)
    return app


def _app(title: str, catalogue: Catalogue) -> FastAPI:
    """An app without FastAPI's own documents, whose page loads its scripts from another host."""
    app = FastAPI(
        title=title,
        version=serving.__version__,
        generate_unique_id_function=_operation_id,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _handle_errors(app, catalogue)
    app.add_middleware(HeadAsGet)
    return app


def _operation_id(route: APIRoute) -> str:
    """What generated clients call an operation: `metadata_model_version`."""
    return "_".join([route.name, *re.findall(r"\{(\w+)\}", route.path)])


class HeadAsGet:
    """HEAD on whatever can be got: the server leaves the body out by itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD" and not scope["path"].endswith("/infer"):
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


def _handle_errors(app: FastAPI, catalogue: Catalogue) -> None:
    def answer(request: Request, error: errors.RequestError) -> Response:
        if catalogue.has_triton_words and request.url.path.startswith("/v2"):
            error = worded(error)
        status, headers, body = error_parts(error, request.url.path)
        return Response(body, status, {k.decode(): v.decode() for k, v in (*headers, *error.receipt)})

    @app.exception_handler(errors.RequestError)
    async def ours(request: Request, error: errors.RequestError) -> Response:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return answer(request, errors.BadRequest(f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        text = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.method} is not taken at {request.url.path}",
        }.get(error.status_code, str(error.detail))
        response = answer(request, STATUS_ERRORS.get(error.status_code, errors.BadRequest)(text))
        response.headers.update(error.headers or {})  # Allow
        return response

    @app.exception_handler(Exception)
    async def internal(request: Request, _: Exception) -> Response:
        return answer(request, errors.Internal("the gateway failed on this request; its log says why"))


def _add_health(app: FastAPI, catalogue: Catalogue, state: State, required: list[str], *, names_models: bool) -> None:
    def missing() -> dict[str, str]:
        return model_metadata.not_served(catalogue) if names_models else {}

    @app.get("/health/live", tags=["health"], summary=LIVE)
    @app.get("/v2/health/live", tags=["v2"], summary=LIVE, operation_id="live_now")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get(
        "/health/ready", tags=["health"], summary="Whether traffic may come: stays so until shutdown.", responses=AWAY
    )
    async def ready() -> JSONResponse:
        state.was_ready = state.was_ready or model_metadata.all_routable(catalogue, required, may_sleep=True)
        return _ready(state.was_ready and not state.closing, missing())

    @app.get(
        "/v2/health/ready", tags=["v2"], summary="Whether every model can be asked at this moment.", responses=AWAY
    )
    async def ready_now() -> JSONResponse:
        return _ready(model_metadata.all_routable(catalogue, required) and not state.closing, missing())


def _ready(good: bool, missing: dict[str, str]) -> JSONResponse:
    """`missing`: public name -> why it is not served."""
    headers = {} if good else {"Retry-After": "1", "Retry-After-Ms": "1000", "Tandem-Error": "not_ready"}
    body = {"ready": good} if good or not missing else {"ready": good, "not_served": missing}
    return JSONResponse(body, 200 if good else 503, headers)


def _add_models(app: FastAPI, catalogue: Catalogue) -> None:
    @app.get("/v2", tags=["v2"], summary="Name, version and extensions of the server.")
    @app.get("/v2/", include_in_schema=False)
    async def server() -> dict[str, Any]:
        return model_metadata.server_metadata(catalogue)

    @app.post(
        "/v2/repository/index", tags=["v2"], summary="All names that can be asked for, and whether they can be now."
    )
    async def index(request: Request) -> list[dict[str, str]]:
        return model_metadata.index(catalogue, caller_of(request), is_ready=_ready_wanted(await _small_body(request)))

    @app.get("/v2/models/stats", tags=["v2"], summary="The statistics of every public name.")
    async def all_statistics(request: Request) -> Response:
        return _json(await statistics.of_all(catalogue, caller_of(request)))

    @app.get("/v2/models/{model}", tags=["v2"], summary=METADATA)
    @app.get("/v2/models/{model}/versions/{version}", tags=["v2"], summary=METADATA)
    async def metadata(model: str, request: Request) -> Response:
        return await _told(catalogue, model, _version(request), model_metadata.METADATA)

    @app.get("/v2/models/{model}/config", tags=["v2"], summary=CONFIG)
    @app.get("/v2/models/{model}/versions/{version}/config", tags=["v2"], summary=CONFIG)
    async def config(model: str, request: Request) -> Response:
        return await _told(catalogue, model, _version(request), model_metadata.CONFIG)

    @app.get("/v2/models/{model}/stats", tags=["v2"], summary=STATISTICS)
    @app.get("/v2/models/{model}/versions/{version}/stats", tags=["v2"], summary=STATISTICS)
    async def statistics_of(model: str, request: Request) -> Response:
        return await _told(catalogue, model, _version(request), model_metadata.STATISTICS)

    @app.get("/v2/models/{model}/ready", tags=["v2"], summary=MODEL_READY, responses=AWAY)
    @app.get("/v2/models/{model}/versions/{version}/ready", tags=["v2"], summary=MODEL_READY, responses=AWAY)
    async def ready(model: str, request: Request) -> JSONResponse:
        return _ready_model(model, await model_metadata.is_model_ready(catalogue, model, _version(request)))

    @app.api_route("/v2/models/{model}/infer", methods=OTHER_METHODS, include_in_schema=False)
    @app.api_route(
        "/v2/models/{model}/versions/{version}/infer",
        methods=OTHER_METHODS,
        include_in_schema=False,
    )
    async def infer_by_other_method() -> None:
        raise HTTPException(405, headers={"Allow": "POST"})


def _add_refusals(app: FastAPI, admin_here: bool) -> None:
    def refuse(what: str) -> Callable[[], Any]:
        async def answer() -> None:
            raise errors.Unsupported(model_metadata.NOT_OFFERED[what])

        return answer

    for what in model_metadata.NOT_OFFERED:
        app.add_api_route(f"/v2/{what}/{{rest:path}}", refuse(what), methods=["GET", "POST"], include_in_schema=False)
    app.add_api_route(
        "/v2/models/{model}/trace/setting", refuse("trace"), methods=["GET", "POST"], include_in_schema=False
    )
    app.add_api_route("/v2/logging", refuse("logging"), methods=["GET", "POST"], include_in_schema=False)

    if not admin_here:

        @app.post("/v2/repository/models/{model}/load", include_in_schema=False)
        @app.post("/v2/repository/models/{model}/unload", include_in_schema=False)
        async def load(model: str) -> None:
            model_metadata.refuse_load(model)


def _add_loading(app: FastAPI, loading: Loading) -> None:
    @app.post(
        "/v2/repository/models/{model}/load",
        tags=["admin"],
        summary="Load a model's variants, or one, anew.",
        response_class=Response,
    )
    async def load(model: str, request: Request) -> Response:
        await loading.change(model, "load", await _small_body(request))
        return Response()

    @app.post(
        "/v2/repository/models/{model}/unload",
        tags=["admin"],
        summary="Unload a model's variants, or one.",
        response_class=Response,
    )
    async def unload(model: str, request: Request) -> Response:
        await loading.change(model, "unload", await _small_body(request))
        return Response()


async def _small_body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_CONTROL_BYTES:
            raise errors.TooLarge(f"the body has more than {MAX_CONTROL_BYTES} bytes, the most that is taken here")
    coding = content_coding(request.headers.get("content-encoding", "").encode("latin-1"))
    return decompress(body, coding, MAX_CONTROL_BYTES) if body and coding else body  # at most 0.1 ms: not on a thread


def _version(request: Request) -> str:
    """That the path names; empty where it names none, whatever stands in the query."""
    return str(request.path_params.get("version", ""))


def _ready_wanted(body: bytes) -> bool:
    """Whether a request for the index, `{"ready": true}` or nothing, wants the models that are ready alone. Raises BadRequest."""
    ready = parse(body).get("ready", False) if body else False
    if not isinstance(ready, bool):
        raise errors.BadRequest(f"'ready' must be true or false, not {json_type(ready)}")
    return ready


def _ready_model(model: str, good: bool) -> JSONResponse:
    headers = {} if good else {"Retry-After": "1", "Retry-After-Ms": "1000", "Tandem-Error": "not_ready"}
    return JSONResponse({"name": model, "ready": good}, 200 if good else 503, headers)


async def _told(catalogue: Catalogue, model: str, version: str, what: str) -> Response:
    return _json(await model_metadata.of_model(catalogue, model, version, what))


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _status(catalogue: Catalogue, metrics: Metrics, state: State) -> dict[str, Any]:
    now, pools = perf_counter(), {}
    for pool in metrics.pools():
        servers = catalogue.pools[pool.name]
        pools[pool.name] = {
            "device": catalogue.device(pool.name),
            "state": pool.state,
            "since": datetime.fromtimestamp(pool.since, UTC).isoformat(timespec="seconds"),
            "share": round(pool.share, 3),
            "in_flight": pool.in_flight,
            "queued": pool.num_waiting,
            "demand_replicas": round(pool.demand_replicas, 3),
            "demand_only_replicas": round(pool.demand_only_replicas, 3),
            "demand_unseen_replicas": round(pool.demand_unseen_replicas, 3),
            "price_per_hour": pool.price_per_hour,
            "unresolved": catalogue.unknown[pool.name],
            "digest_conflicts": {
                name: {
                    "chosen": f"sha256:{conflict.chosen}",
                    "servers": {url: f"sha256:{digest}" for url, digest in conflict.digests.items()},
                }
                for name, conflict in catalogue.conflicts[pool.name].items()
            },
            "servers": [
                {
                    "url": s.target.url,
                    "alive": s.alive,
                    "health": condition(s.replica.health, now),
                    "left_out_s": round(max(0.0, s.replica.health.ejected_until - now), 3),
                    "in_flight": len(s.target.busy),
                    "triton": s.triton,
                    "variants": sorted(s.variants),
                    "refused": s.refused,
                    "not_loaded": {name: failure.reason for name, failure in s.failures.items()},
                }
                for s in servers
            ],
        }
    models: dict[str, Any] = {}
    for name in sorted({model for pool in catalogue.fleet.pools for model, _ in pool.names}):
        models[name] = {
            "variants": _variants_of(catalogue, name),
            "public": _public(catalogue, name),
            "not_loaded": [
                {"name": f.name, "variant": f.variant, "version": f.version, "pool": pool.name, "reason": f.reason}
                for pool in catalogue.fleet.pools
                for f in pool.failures
                if f.model == name
            ],
        }
    return {"version": 1, "tandem": serving.__version__, "closing": state.closing, "pools": pools, "models": models}


def _public(catalogue: Catalogue, model: str) -> dict[str, str] | None:
    try:
        first = decide(catalogue.fleet, model)[0]
    except errors.RequestError:
        return None
    return {
        "pool": first.pool,
        "variant": first.variant.variant,
        "reason": first.reason,
        "preference": preference_for(first.variant),
    }


def _variants_of(catalogue: Catalogue, model: str) -> list[dict[str, Any]]:
    return [
        {
            "name": v.name,
            "variant": v.variant,
            "pool": pool.name,
            "device": v.device,
            "engine": v.engine,
            "digest": f"sha256:{v.digest}",
            "speed_ratio": v.speed_ratio,
        }
        for pool in catalogue.fleet.pools
        for v in pool.variants
        if v.model == model
    ]
