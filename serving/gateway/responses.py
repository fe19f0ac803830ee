"""How errors leave the gateway: v2's body `{"error": "<text>"}`, the status of `errors.HTTP`, and headers that say what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from serving import errors

Headers = list[tuple[bytes, bytes]]
OUTCOMES = {
    errors.RateLimited: "rate_limited",
    errors.Overloaded: "shed",
    errors.NotReady: "shed",
    errors.DeadlineExpired: "expired",
    errors.UpstreamLost: "backend_error",
    errors.Internal: "backend_error",
}


def outcome_of(error: errors.RequestError) -> str:
    """The value of the `outcome` label."""
    return OUTCOMES.get(type(error), "client_error")


def error_parts(error: errors.RequestError) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an error."""
    status, kind = errors.HTTP[type(error)]
    body = orjson.dumps({"error": str(error)})
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"tandem-error", kind.encode()),
    ]
    if error.retry_after_s is not None:
        headers += [(k.lower().encode(), v.encode()) for k, v in errors.retry_after_headers(error.retry_after_s)]
    return status, headers, body


async def error_response(
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    error: errors.RequestError,
    extra: Headers,
    *,
    close: bool = False,
) -> None:
    status, headers, body = error_parts(error)
    headers += extra
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
