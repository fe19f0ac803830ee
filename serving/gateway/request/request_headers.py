"""Reads request headers: Tandem-Deadline-Ms, Tandem-Priority, those that tell of the body. The receipt of a response is `route.py`'s."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from serving import errors
from serving.scheduling.admission import DEFAULT, HIGHEST, LOWEST

Headers = list[tuple[bytes, bytes]]
MAX_DIGITS = 18  # of a length

ONCE = {
    b"inference-header-content-length": "Inference-Header-Content-Length",
    b"tandem-deadline-ms": "Tandem-Deadline-Ms",
    b"tandem-priority": "Tandem-Priority",
    b"tandem-pool": "Tandem-Pool",
    b"tandem-variant": "Tandem-Variant",
    b"authorization": "Authorization",
    b"x-api-key": "X-API-Key",
}
TRACESTATE = b"tracestate"  # may come in parts, by W3C's Trace Context

CLASSIFY = "classify"  # a form


class Body(NamedTuple):
    """What is known of a body before it is read. `form`: how it is written, so that those of one form are like each other.

    `size`: bytes as they come, 0 where nobody says; `binary`: of these, bytes of tensors, as far as that is known.
    """

    form: str
    size: int
    binary: int = 0


def join_lists(by_name: dict[bytes, bytes], headers: Headers) -> None:
    """Where names came several times: what may come in parts is whole in `by_name`, which else has the last."""
    if TRACESTATE in by_name:
        by_name[TRACESTATE] = b",".join(value for name, value in headers if name == TRACESTATE)


def declared_size(headers: Mapping[bytes, bytes]) -> int:
    """Bytes of the body as it comes; 0 where its head does not say."""
    return int(headers.get(b"content-length", b"0"))


def v2_body(headers: Mapping[bytes, bytes]) -> Body:
    """Of a request at /v2/…/infer."""
    size, length = declared_size(headers), headers.get(b"inference-header-content-length")
    if b"content-encoding" in headers:
        return Body("compressed", size)
    if length is None or not length.isdigit() or len(length) > MAX_DIGITS:
        return Body("json", size)
    return Body("binary", size, max(0, size - int(length)))


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
