"""The FastAPI app for every endpoint except inference, made from the table of endpoints.

Who answers what is in that table (`gateway/endpoints.py`). Errors have the body of the path's protocol, also for what FastAPI itself
refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from serving import errors
from serving.documents.nearest import nearest
from serving.gateway.http.compression import content_coding, decompress
from serving.gateway.http.endpoint import Endpoint
from serving.gateway.http.responses import error_parts
from serving.gateway.triton_words import worded
from serving.protocol.budget import CONTROL_BYTES

KSERVE_V1 = re.compile(r"/v1/models/([^/:]+):(?:predict|explain)")
# A misspelt query parameter is an error here. Elsewhere it is passed over: clients of the protocols send what proxies want
# (tritonclient's `query_params`, OpenAI's `default_query`), and Triton passes it over, too.
OURS = "/admin/"
MAX_QUOTED = 80  # letters of what a client sent, in a message
STATUS_ERRORS: dict[int, type[errors.RequestError]] = {
    404: errors.NoSuchPath,
    405: errors.MethodNotAllowed,
    413: errors.TooLarge,
}


def build(endpoints: Iterable[Endpoint], *, has_triton_words: bool) -> FastAPI:
    """Without FastAPI's own documents, whose page loads its scripts from another host."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for row in endpoints:
        if row.is_raw:  # for other methods: 405
            app.router.routes.append(Route(row.path, _answered_directly, methods=row.methods))
        else:
            strict = [Depends(_require_known_query)] if row.path.startswith(OURS) else []
            app.add_api_route(row.path, row.handler, methods=[*row.methods], response_model=None, dependencies=strict)
    _handle_errors(app, has_triton_words=has_triton_words)
    return app


def _require_known_query(request: Request) -> None:
    """Raises BadRequest for a parameter that the endpoint does not take, or that came twice."""
    known = {str(it.alias) for it in request.scope["route"].dependant.query_params}
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            taken = nearest(name, known) if known else "; it takes none"
            raise errors.BadRequest(f"unknown query parameter {name[:MAX_QUOTED]!r} at {request.url.path}{taken}")
        if given.count(name) > 1:
            raise errors.BadRequest(f"the query parameter {name!r} came more than once")


async def _answered_directly(request: Request) -> Response:
    raise AssertionError(f"{request.method} {request.url.path} is for no app")


async def small_body(request: Request) -> bytes:
    """Raises TooLarge."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > CONTROL_BYTES.most:
            raise CONTROL_BYTES.exceeded(where="the body", way_out="it needs one parameter or none")
    coding = content_coding(request.headers.get("content-encoding", "").encode("latin-1"))
    return decompress(body, coding, CONTROL_BYTES.most) if body and coding else body  # at most 0.1 ms: not on a thread


def _handle_errors(app: FastAPI, *, has_triton_words: bool) -> None:
    def answer(request: Request, error: errors.RequestError) -> Response:
        if has_triton_words and request.url.path.startswith("/v2"):
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
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        text = {
            404: _nothing_at(request.url.path),
            405: _not_taken(request.method, request.url.path, allowed),
        }.get(error.status_code, str(error.detail))
        response = answer(request, STATUS_ERRORS.get(error.status_code, errors.BadRequest)(text))
        if allowed:
            response.headers["Allow"] = allowed
        return response

    @app.exception_handler(Exception)
    async def internal(request: Request, _: Exception) -> Response:
        return answer(request, errors.Internal("the gateway failed on this request; its log says why"))


def _nothing_at(path: str) -> str:
    only = "; of /v1 only /v1/embeddings, /v1/models and /v1/classify/{model} are served"
    return f"there is nothing at {path}{only if path.startswith('/v1/') else ''}"


def _not_taken(method: str, path: str, allowed: str) -> str:
    if kserve := KSERVE_V1.fullmatch(path):
        return f"KServe v1 is not served; use /v2/models/{kserve[1]}/infer"
    return f"{method} is not taken at {path}" + (f"; {allowed} it" if allowed == "POST" else f"; it takes {allowed}")
