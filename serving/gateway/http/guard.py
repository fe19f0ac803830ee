"""Looks at a request's key before anybody answers it. Which endpoint needs which scope is in the table (`gateway/endpoints.py`).

What FastAPI answers stands behind `Guard`; raw endpoints look by themselves (`exchange.py`), because they are hot; gRPC has its own guard.
Rules: a path that is not in the table needs a key before it is a 404; and a body is not read before its sender is known.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request

from serving import errors
from serving.gateway.access import Access, Caller, require_name
from serving.gateway.http.asgi import App, Receive, Scope, Send
from serving.gateway.http.endpoint import OPEN, Endpoints
from serving.gateway.http.responses import error_parts
from serving.gateway.request.request_headers import require_once
from serving.scheduling.routing import Fleet

CALLER = "tandem.caller"  # in the scope


class Guard:
    """In front of an app. `endpoints`: of all listeners. `fleet` tells which model a name belongs to."""

    def __init__(self, app: App, endpoints: Endpoints, access: Access, fleet: Callable[[], Fleet]) -> None:
        self.app = app
        self._endpoints = endpoints
        self._access = access
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope[CALLER] = self._caller(scope)
        except errors.RequestError as error:
            status, headers, body = error_parts(error, scope["path"])
            if isinstance(error, errors.Unauthenticated):
                headers.append((b"connection", b"close"))
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await self.app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller | None:
        """None where the path is open. Raises Unauthenticated, Forbidden, or BadRequest."""
        require_once(scope["headers"])
        endpoint, model = self._endpoints.find(scope["path"])
        if endpoint is not None and endpoint.scope == OPEN:
            return None
        caller = self._access.caller_of(dict(scope["headers"]))
        if endpoint is not None:
            caller.require(endpoint.scope)
        if model is not None:
            require_name(caller, model, self._fleet())
        return caller


def caller_of(request: Request) -> Caller:
    """Whose request a handler of a path that is not open has before it."""
    caller: Caller = request.scope[CALLER]
    return caller
