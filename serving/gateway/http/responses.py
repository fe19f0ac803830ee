"""Writes errors over HTTP: the status of `errors.HTTP`, headers that say what to do, and the body of the protocol spoken at the path.

That is v2's `{"error": "<text>"}`, and OpenAI's below /v1 but for /v1/classify. Rule: whoever answers an error says at which path.
"""

from __future__ import annotations

from http import HTTPStatus

import orjson

from serving import errors
from serving.gateway.request.request_headers import Headers
from serving.protocol import openai

STATUS_LINE = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
OPENAI_PATHS, CLASSIFY_PATHS = "/v1/", "/v1/classify"  # all but the latter, served or not


def error_parts(error: errors.RequestError, path: str = "") -> tuple[int, Headers, bytes]:
    """Status, headers and body of an error, as clients of the protocol spoken at `path` read it."""
    status, kind = errors.HTTP[type(error)]
    is_openai = path.startswith(OPENAI_PATHS) and not path.startswith(CLASSIFY_PATHS)
    body = openai.error_body(error) if is_openai else orjson.dumps({"error": str(error)})
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"tandem-error", kind.encode()),
    ]
    if isinstance(error, errors.Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if error.retry_after_s is not None:
        headers += retry_after(error.retry_after_s)
    elif isinstance(error, errors.NeverInTime) or (
        is_openai and status >= 500
    ):  # which OpenAI's clients would try again
        headers.append((b"x-should-retry", b"false"))
    return status, headers, body


def retry_after(wait_s: float) -> Headers:
    seconds, milliseconds = errors.retry_after(wait_s)
    return [(b"retry-after", b"%d" % seconds), (b"retry-after-ms", b"%d" % milliseconds)]


def error_head(error: errors.RequestError, extra: Headers, path: str) -> tuple[bytes, bytes]:
    """The same as it stands on the wire: status line and header lines, and the body."""
    status, headers, body = error_parts(error, path)
    return STATUS_LINE[status] + b"".join([b"%b: %b\r\n" % line for line in headers + extra]), body
