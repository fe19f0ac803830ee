"""Reads the request headers Tandem-Deadline-Ms, Tandem-Priority, Content-Length. The receipt in a response's headers is `route.py`'s."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from serving import errors
from serving.scheduling.admission import DEFAULT, HIGHEST, LOWEST

Headers = list[tuple[bytes, bytes]]

ONCE = {
    b"inference-header-content-length": "Inference-Header-Content-Length",
    b"tandem-deadline-ms": "Tandem-Deadline-Ms",
    b"tandem-priority": "Tandem-Priority",
    b"tandem-pool": "Tandem-Pool",
    b"tandem-variant": "Tandem-Variant",
    b"authorization": "Authorization",
    b"x-api-key": "X-API-Key",
}


def declared_size(headers: Mapping[bytes, bytes]) -> int:
    """Bytes of the body as it comes; 0 where its head does not say."""
    return int(headers.get(b"content-length", b"0"))


def wait_s(deadline_ms: bytes | None) -> float:
    """`Tandem-Deadline-Ms` in seconds; infinite where there is none. Raises BadRequest."""
    if deadline_ms is None:
        return inf
    try:
        asked_s = float(deadline_ms) / 1000
    except ValueError:
        raise errors.BadRequest("Tandem-Deadline-Ms must be a number of milliseconds") from None
    if not 0 < asked_s < inf:
        raise errors.BadRequest("Tandem-Deadline-Ms must be more than 0 milliseconds")
    return asked_s


def priority(header: bytes | None, highest: int) -> int:
    """`Tandem-Priority`, at best `highest`. Raises BadRequest."""
    if header is None:
        return max(DEFAULT, highest)
    if len(header) != 1 or not header.isdigit() or not HIGHEST <= int(header) <= LOWEST:
        raise errors.BadRequest(f"Tandem-Priority must be a number from {HIGHEST}, the highest, to {LOWEST}")
    return max(int(header), highest)


def require_once(headers: Headers) -> None:
    """Of two that differ each reader would believe another. Raises BadRequest."""
    names = [name for name, _ in headers]
    for name, text in ONCE.items():
        if names.count(name) > 1:
            raise errors.BadRequest(f"{text} came more than once")
