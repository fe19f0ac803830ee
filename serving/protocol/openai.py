"""OpenAI's bodies, sans-I/O: what an error looks like.

Types and codes are those that OpenAI's own API gives, so that clients that look at them decide as they would there; what it has no code
for has the word of `Tandem-Error`. Rule: the message is ours and says the way out; nothing is in a code alone.
"""

from __future__ import annotations

import orjson

from serving import errors

INVALID = "invalid_request_error"
SERVER = "server_error"
# class -> (`type`, `code`); None where OpenAI has no code either
ERRORS: dict[type[errors.RequestError], tuple[str, str | None]] = {
    errors.BadRequest: (INVALID, None),
    errors.MethodNotAllowed: (INVALID, "method_not_supported"),
    errors.TooLarge: (INVALID, "too_large"),
    errors.Unauthenticated: (INVALID, "invalid_api_key"),
    errors.Forbidden: (INVALID, "insufficient_permissions"),
    errors.NotFound: (INVALID, "model_not_found"),
    errors.NoSuchPath: (INVALID, None),
    errors.RateLimited: ("rate_limit_error", "rate_limit_exceeded"),
    errors.Overloaded: (SERVER, "overloaded"),
    errors.NotReady: (SERVER, "not_ready"),
    errors.UpstreamLost: (SERVER, "upstream_lost"),
    errors.DeadlineExpired: (SERVER, "deadline_expired"),
    errors.Unsupported: (SERVER, "unsupported"),
    errors.Internal: (SERVER, "internal"),
}


def error_body(error: errors.RequestError) -> bytes:
    kind, code = ERRORS[type(error)]
    return orjson.dumps({"error": {"message": str(error), "type": kind, "param": error.param, "code": code}})
