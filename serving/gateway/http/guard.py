"""Which path needs which scope, for all that FastAPI answers; and nobody's request gets to it before its key was looked at.

What is raw ASGI asks by `known`, because it is hot, and gRPC has its own guard. Rules: a path without a row needs a key before it is a 404,
a test finds routes without one; and a body is not read before its sender is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request
from starlette.routing import compile_path

from serving import errors
from serving.gateway.access import ADMIN, INFER, METRICS, Access, Caller, require_name
from serving.gateway.http.client import Receive, Scope, Send
from serving.gateway.request.headers import require_once
from serving.gateway.responses import error_response
from serving.scheduling.routing import Fleet

App = Callable[[Scope, Receive, Send], Awaitable[None]]
CALLER = "tandem.caller"  # in the scope
OPEN = ""  # no key: it tells nothing of models or traffic
# Path, as its route has it -> scope. A `{model}` in it must be one that the key may ask.
SCOPE_OF = {
    "/health/live": OPEN,
    "/health/ready": OPEN,
    "/v2/health/live": OPEN,
    "/v2/health/ready": OPEN,
    "/": OPEN,
    "/docs": OPEN,
    "/openapi.json": OPEN,
    "/ui/{name}": OPEN,
    "/v2": INFER,
    "/v2/": INFER,
    "/v2/models/stats": INFER,
    "/v2/models/{model}": INFER,
    "/v2/models/{model}/versions/{version}": INFER,
    "/v2/models/{model}/config": INFER,
    "/v2/models/{model}/versions/{version}/config": INFER,
    "/v2/models/{model}/stats": INFER,
    "/v2/models/{model}/versions/{version}/stats": INFER,
    "/v2/models/{model}/ready": INFER,
    "/v2/models/{model}/versions/{version}/ready": INFER,
    "/v2/models/{model}/infer": INFER,
    "/v2/models/{model}/trace/setting": ADMIN,
    "/v2/models/{model}/versions/{version}/infer": INFER,
    "/v2/repository/index": INFER,
    "/v2/repository/models/{model}/load": ADMIN,
    "/v2/repository/models/{model}/unload": ADMIN,
    "/v2/trace/{rest:path}": ADMIN,
    "/v2/logging/{rest:path}": ADMIN,
    "/v2/logging": ADMIN,
    "/v2/systemsharedmemory/{rest:path}": ADMIN,
    "/v2/cudasharedmemory/{rest:path}": ADMIN,
    "/v1/models": INFER,
    "/v1/models/{model}": INFER,
    "/v1/embeddings": INFER,
    "/v1/classify/{model}": INFER,
    "/metrics": METRICS,
    "/metrics/demand": METRICS,
    "/admin/status": ADMIN,
}
ROWS = [(compile_path(path)[0], needed) for path, needed in SCOPE_OF.items()]


class Guard:
    """In front of an app. `fleet` tells which model a name belongs to."""

    def __init__(self, app: App, access: Access, fleet: Callable[[], Fleet]) -> None:
        self.app = app
        self._access = access
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope[CALLER] = self._caller(scope)
        except errors.RequestError as error:
            unknown = isinstance(error, errors.Unauthenticated)
            await error_response(send, error, [], path=scope["path"], close=unknown)
            return
        await self.app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller | None:
        """None where the path is open. Raises Unauthenticated, Forbidden, or BadRequest."""
        require_once(scope["headers"])
        needed, model = row_of(scope["path"])
        if needed == OPEN:
            return None
        caller = self._access.caller_of(dict(scope["headers"]))
        if needed is not None:
            caller.require(needed)
        if model is not None:
            require_name(caller, model, self._fleet())
        return caller


def known(scope: Scope, access: Access, needed: str) -> tuple[dict[bytes, bytes], Caller]:
    """Headers and caller of a request to what is raw ASGI. Raises Unauthenticated, Forbidden, or BadRequest."""
    headers = dict(scope["headers"])
    if len(headers) < len(scope["headers"]):
        require_once(scope["headers"])
    caller = access.caller_of(headers)
    caller.require(needed)
    return headers, caller


def row_of(path: str) -> tuple[str | None, str | None]:
    """The scope, None where the path has no row, and the model in it, if it names one."""
    for regex, needed in ROWS:
        if match := regex.match(path):
            return needed, match.groupdict().get("model")
    return None, None


def caller_of(request: Request) -> Caller:
    """Whose request a handler of a path that is not open has before it."""
    caller: Caller = request.scope[CALLER]
    return caller
