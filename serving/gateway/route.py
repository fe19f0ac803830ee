"""What can be said of an inference request before it comes: kept per (path, pins) until the fleet changes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from serving import errors
from serving.gateway.catalogue import Catalogue, Server
from serving.gateway.metrics import Metrics, Series
from serving.gateway.responses import Headers
from serving.scheduling.routing import Decision, Pins, decide

PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]{1,9}))?/infer")
MAX_ROUTES = 4096  # names and pins come from clients: past this many the kept routes are dropped and made again


@dataclass(frozen=True, slots=True)
class Choice:
    """One place a request may go, with the bytes that are the same for every request sent there."""

    decision: Decision
    pool: str
    name: str  # Triton's
    start: bytes  # of the upstream request
    receipt: Headers
    receipt_lines: bytes  # the same, as they stand in a response
    series: Series
    rename: tuple[bytes, bytes] | None  # Triton's model name in its answer -> the name that was asked for
    only: Server | None  # the pool's server, where it has one


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests with one path and the same pins go, best first."""

    name: str  # that was asked for
    versioned: bool
    choices: list[Choice]


class Routes:
    def __init__(self, catalogue: Catalogue, metrics: Metrics) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._kept: dict[tuple[str, bytes | None, bytes | None], Route] = {}

    def forget(self) -> None:
        self._kept.clear()

    def find(self, path: str, pool: bytes | None, variant: bytes | None) -> Route:
        """Raises NotFound, NotReady or BadRequest, which are not kept."""
        route = self._kept.get((path, pool, variant))
        if route is None:
            if len(self._kept) >= MAX_ROUTES:
                self._kept.clear()
            route = self._kept[path, pool, variant] = self._make(path, pool, variant)
        return route

    def _make(self, path: str, pool: bytes | None, variant: bytes | None) -> Route:
        match = PATH.fullmatch(path)
        if match is None:
            raise errors.NotFound("the path is not /v2/models/MODEL[/versions/NUMBER]/infer")
        name, version = match.groups()
        pins = Pins(pool.decode("latin-1") if pool else None, variant.decode("latin-1") if variant else None)
        decisions = decide(self._catalogue.fleet, name, pins)
        return Route(name, version is not None, [self._choice(name, version, decision) for decision in decisions])

    def _choice(self, name: str, version: str | None, decision: Decision) -> Choice:
        variant = decision.variant
        path = f"/v2/models/{variant.name}" + (f"/versions/{version}" if version else "") + "/infer"
        receipt = receipt_headers(decision)
        servers = self._catalogue.pools[decision.pool]
        return Choice(
            decision=decision,
            pool=decision.pool,
            name=variant.name,
            start=f"POST {path} HTTP/1.1\r\n".encode(),
            receipt=receipt,
            receipt_lines=b"".join(b"%b: %b\r\n" % line for line in receipt),
            series=self._metrics.series(name, variant.variant, decision.pool),
            rename=None if variant.name == name else (_name_field(variant.name), _name_field(name)),
            only=servers[0] if len(servers) == 1 else None,
        )


def receipt_headers(decision: Decision) -> Headers:
    """The response headers that say what really happened. Values come from a Triton's configuration: only printable ASCII stays."""
    variant = decision.variant
    receipt = {
        "tandem-pool": decision.pool,
        "tandem-device": variant.device,
        "tandem-variant": variant.variant,
        "tandem-engine": variant.engine,
        "tandem-model-digest": f"sha256:{variant.digest}",
        "tandem-gate": variant.gate,
        "tandem-reason": decision.reason,
    }
    return [(key.encode(), re.sub(r"[^ -~]", "", value).encode()) for key, value in receipt.items()]


def _name_field(name: str) -> bytes:
    return b'"model_name":"%b"' % name.encode()
