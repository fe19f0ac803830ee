"""How errors leave the gateway over gRPC: a status code, a sentence, and trailing metadata with HTTP's headers in lower case.

Rule: every kind of RequestError has a code here; a test walks them all.
"""

from __future__ import annotations

from enum import IntEnum

from serving import errors
from serving.gateway.request.request_headers import Headers


class Code(IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


CODES: dict[type[errors.RequestError], Code] = {
    errors.BadRequest: Code.INVALID_ARGUMENT,
    errors.TooSlow: Code.DEADLINE_EXCEEDED,
    errors.MethodNotAllowed: Code.UNIMPLEMENTED,
    errors.TooLarge: Code.RESOURCE_EXHAUSTED,  # as gRPC's own servers say of a message over their limit
    errors.Unauthenticated: Code.UNAUTHENTICATED,
    errors.Forbidden: Code.PERMISSION_DENIED,
    errors.NotFound: Code.NOT_FOUND,
    errors.RateLimited: Code.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: Code.RESOURCE_EXHAUSTED,
    errors.Overloaded: Code.UNAVAILABLE,
    errors.NeverInTime: Code.DEADLINE_EXCEEDED,  # a client that tries again what is UNAVAILABLE would do so in vain
    errors.NotReady: Code.UNAVAILABLE,
    errors.UpstreamLost: Code.UNAVAILABLE,
    errors.DeadlineExpired: Code.DEADLINE_EXCEEDED,
    errors.Unsupported: Code.UNIMPLEMENTED,
    errors.Internal: Code.INTERNAL,
}


PUSHBACK = b"grpc-retry-pushback-ms"  # gRPC's own clients wait so long before they try again; below 0 they do not


def code_of(error: errors.RequestError) -> Code:
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def error_metadata(error: errors.RequestError) -> Headers:
    """Trailing metadata: what kind it is, when to come again, and what worked on it where something did."""
    metadata = [(b"tandem-error", errors.HTTP[type(error)][1].encode())]
    if error.retry_after_s is not None:
        seconds, milliseconds = (b"%d" % number for number in errors.retry_after(error.retry_after_s))
        metadata += [(b"retry-after", seconds), (b"retry-after-ms", milliseconds), (PUSHBACK, milliseconds)]
    elif isinstance(error, errors.NeverInTime):
        metadata.append((PUSHBACK, b"-1"))
    return [*metadata, *error.receipt]


def as_text(metadata: Headers) -> dict[str, str]:
    """For the parameters of a streamed response."""
    return {name.decode(): value.decode() for name, value in metadata}
