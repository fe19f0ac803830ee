"""How errors leave the gateway over gRPC: a status code, a sentence, and trailing metadata with HTTP's headers in lower case.

Rule: every kind of RequestError has a code here; a test walks them all.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc  # type: ignore[import-untyped]

from serving import errors
from serving.gateway.request.request_headers import Headers, require_once

Metadata = dict[bytes, bytes]


def metadata_in(invocation: Iterable[tuple[str, str | bytes]]) -> Metadata:
    """Of an RPC, without binary values. Raises BadRequest where one that counts came more than once."""
    pairs = [(name.encode(), value.encode("utf-8")) for name, value in invocation if isinstance(value, str)]
    metadata = dict(pairs)
    if len(metadata) < len(pairs):
        require_once(pairs)
    return metadata


def as_metadata(headers: Headers) -> tuple[tuple[str, str], ...]:
    """HTTP's headers, which are ASCII and in lower case, as gRPC takes them."""
    return tuple((name.decode(), value.decode()) for name, value in headers)


Answer = Callable[[Any, Any], Awaitable[bytes]]  # to a message, or several, and the RPC
log = logging.getLogger(__name__)

CODES: dict[type[errors.RequestError], grpc.StatusCode] = {
    errors.BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TooSlow: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.MethodNotAllowed: grpc.StatusCode.UNIMPLEMENTED,
    errors.TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,  # as gRPC itself says of a message over its limit
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded: grpc.StatusCode.UNAVAILABLE,
    errors.NeverInTime: grpc.StatusCode.DEADLINE_EXCEEDED,  # a client that tries again what is UNAVAILABLE would do so in vain
    errors.NotReady: grpc.StatusCode.UNAVAILABLE,
    errors.UpstreamLost: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExpired: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.Internal: grpc.StatusCode.INTERNAL,
}


PUSHBACK = b"grpc-retry-pushback-ms"  # gRPC's own clients wait so long before they try again; below 0 they do not


def code_of(error: errors.RequestError) -> grpc.StatusCode:
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def error_metadata(error: errors.RequestError) -> Headers:
    """Trailing metadata: what kind it is, when to come again, and what worked on it where something did."""
    metadata = [(b"tandem-error", errors.HTTP[type(error)][1].encode())]
    if error.retry_after_s is not None:
        metadata += [(k.lower().encode(), v.encode()) for k, v in errors.retry_after_headers(error.retry_after_s)]
        metadata.append((PUSHBACK, metadata[-1][1]))
    elif isinstance(error, errors.NeverInTime):
        metadata.append((PUSHBACK, b"-1"))
    return [*metadata, *error.receipt]


def set_status(error: errors.RequestError, context: Any) -> None:
    context.set_code(code_of(error))
    context.set_details(str(error))
    context.set_trailing_metadata(as_metadata(error_metadata(error)))


def with_status(
    answer: Answer, worded: Callable[[errors.RequestError], errors.RequestError] = lambda error: error
) -> Answer:
    """The same, and an error becomes the RPC's status, in the words that `worded` gives it."""

    async def answer_or_tell(message: Any, context: Any) -> bytes:
        # An error that outlives its clause keeps the frames that it passed, and the message, until they are collected as garbage.
        try:
            return await answer(message, context)
        except errors.RequestError as error:
            set_status(worded(error), context)
        except Exception:
            log.exception("a gRPC request failed")
            set_status(worded(errors.Internal("the gateway failed on this request; its log says why")), context)
        return b""

    return answer_or_tell
