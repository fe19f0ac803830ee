"""What a client says of its RPC in metadata, and is told there: the names of HTTP's headers in lower case, with the same meaning."""

from __future__ import annotations

from collections.abc import Iterable

from serving.gateway.http.request_headers import require_once
from serving.gateway.responses import Headers

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
