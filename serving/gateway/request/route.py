"""Where requests with one path and the same pins may go: worked out once, and kept until the fleet changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter

from serving import errors
from serving.gateway.access import Caller, require_name
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.metrics import Metrics, Series
from serving.gateway.request.request_headers import Body, Headers
from serving.protocol.budget import most_bytes
from serving.scheduling.choice import Candidate
from serving.scheduling.routing import Decision, Fleet, Pins, decide

PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]{1,9}))?/infer")
CONGESTED_S = 1.0  # after a refusal, that the next requests are looked at by their heads first; a guess, not measured
FADES = 0.99  # of what was seen of bodies, for each that is read; a guess, not measured
MAX_ROUTES = 4096  # names and pins come from clients: past this many the kept routes are dropped and made again


@dataclass(frozen=True, slots=True)
class Destination:
    """One place a request may go, with the bytes that are the same for every request sent there."""

    decision: Decision
    pool: str
    name: str  # Triton's
    start: bytes  # of the upstream request
    candidate: Candidate
    receipt: Headers  # but for the reason
    receipt_lines: bytes  # the same, as they stand in a response
    series: Series
    rename: tuple[bytes, bytes] | None  # Triton's model name in its answer -> the name that was asked for


class Congestion:
    """Whether requests were refused for load lately: those that follow are then looked at before their bodies are. Times: perf_counter.

    `classifies`: whether images may be sent there, which is known once somebody did.
    """

    __slots__ = ("_seen", "classifies", "until")

    def __init__(self) -> None:
        self.until = -inf
        self.classifies = False
        self._seen: dict[str, tuple[float, float]] = {}  # form of a body -> bytes and rows, those of late

    def refused(self, now: float) -> None:
        self.until = now + CONGESTED_S

    def saw(self, body: Body, rows: float) -> None:
        """A request with so many rows."""
        bytes_before, rows_before = self._seen.get(body.form, (0.0, 0.0))
        self._seen[body.form] = FADES * bytes_before + body.size, FADES * rows_before + rows

    def usual_rows(self, body: Body) -> float:
        """That such a body has, going by those before it; any may have more or fewer."""
        num_bytes, rows = self._seen.get(body.form, (0.0, 0.0))
        return max(1.0, body.size * rows / num_bytes) if num_bytes else 1.0


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests with one path and the same pins may go."""

    name: str  # that was asked for
    model: str  # the public name that it belongs to
    versioned: bool
    is_pinned: bool
    destinations: list[Destination]
    candidates: list[Candidate]  # of the destinations
    by_candidate: dict[Candidate, Destination]
    max_rows: int  # that any of them takes at once
    objective_s: float  # infinite where there is none
    is_steady: bool  # some pool is there at all times, so that others may come in slowly
    unseen: tuple[str, ...] = ()  # pools that nobody has seen yet and that may serve it too
    binary_only: frozenset[str] = frozenset()  # outputs that JSON cannot hold, on any of them
    takes_parameters: bool = False  # that are the model's own, on all of them
    max_body_bytes: float = inf  # of a request that any of them takes
    usual_length: int = 0  # of a row, at which times were measured, where rows may have any; 0 where all are alike
    row_bytes: float = inf  # of all inputs in binary, at most
    congestion: Congestion = field(default_factory=Congestion)

    def least_rows(self, body: Body) -> float:
        """That a request with such a body has, whatever is in it: in JSON a row may have any number of bytes."""
        return max(1.0, min(body.binary // self.row_bytes, self.max_rows))


class Routes:
    def __init__(self, catalogue: Catalogue, candidates: Candidates, metrics: Metrics) -> None:
        self._catalogue = catalogue
        self._candidates = candidates
        self._metrics = metrics
        self._kept: dict[tuple[str, bytes | None, bytes | None], Route] = {}

    def forget(self) -> None:
        self._kept.clear()

    def of(self, model: str, version: str, headers: Mapping[bytes, bytes], caller: Caller) -> Route:
        """By name and, where one is asked for, version. Raises as `find`."""
        require_name(caller, model, self._catalogue.fleet)
        return self.find(f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer", headers, caller)

    def known(self, path: str, headers: Mapping[bytes, bytes]) -> Route | None:
        """One that was found before, whoever asked."""
        return self._kept.get((path, headers.get(b"tandem-pool"), headers.get(b"tandem-variant")))

    def find(self, path: str, headers: Mapping[bytes, bytes], caller: Caller) -> Route:
        """By v2's path, and the pins in the headers. Raises Forbidden; NotFound, NotReady or BadRequest, which are not kept."""
        if caller.models is not None and (match := PATH.fullmatch(path)):
            require_name(caller, match[1], self._catalogue.fleet)
        key = path, headers.get(b"tandem-pool"), headers.get(b"tandem-variant")
        route = self._kept.get(key)
        if route is None:
            if len(self._kept) >= MAX_ROUTES:
                self._kept.clear()
            route = self._kept[key] = self._make(*key)
        if caller.models is not None:
            caller.require_model(route.model, route.name)
        return route

    def _decide(self, name: str, pins: Pins) -> list[Decision]:
        """Whoever asks for what only a pool without a server would serve is demand for it, or nobody would ever wake it."""
        try:
            return self._catalogue.decide(name, pins)
        except errors.NotReady:
            if pools := self._catalogue.sleeping(name, pins):
                self._candidates.want(pools[0], name, perf_counter())
            raise

    def _make(self, path: str, pool: bytes | None, variant: bytes | None) -> Route:
        match = PATH.fullmatch(path)
        if match is None:
            raise errors.NotFound("the path is not /v2/models/MODEL[/versions/NUMBER]/infer")
        name, version = match.groups()
        pins = Pins(pool.decode("latin-1") if pool else None, variant.decode("latin-1") if variant else None)
        decisions = self._decide(name, pins)
        if version is not None:  # Triton calls one that it serves no more not ready, as if its process had died
            decisions = [decision for decision in decisions if decision.variant.has(version)]
            if not decisions:
                raise errors.NoSuchVersion(f"'{name}' has no version {version}", model=name, version=version)
        is_steady = any(decision.pool not in self._candidates.bridges for decision in decisions)
        destinations = [
            self._choice(name, version, decision) for decision in [*decisions, *self._away(decisions, name, pins)]
        ]
        objective_s = self._catalogue.objective_s(decisions[0].variant.model)
        return Route(
            name,
            decisions[0].variant.model,
            versioned=version is not None,
            is_pinned=decisions[0].reason == "pinned",
            destinations=destinations,
            candidates=[destination.candidate for destination in destinations],
            by_candidate={destination.candidate: destination for destination in destinations},
            max_rows=max(self._candidates.max_rows(destination.pool, destination.name) for destination in destinations),
            objective_s=inf if objective_s is None else objective_s,
            is_steady=is_steady,
            unseen=self._unseen(name) if pins.pool is None else (),
            max_body_bytes=self._max_body_bytes(destinations),
            binary_only=frozenset().union(*(self._candidates.binary_only(c.pool, c.name) for c in destinations)),
            takes_parameters=all(self._candidates.takes_parameters(c.pool, c.name) for c in destinations),
            usual_length=max(
                self._candidates.usual_length(destination.pool, destination.name) for destination in destinations
            ),
            row_bytes=max(self._candidates.row_bytes(c.pool, c.name) for c in destinations),
        )

    def _max_body_bytes(self, destinations: list[Destination]) -> float:
        elements = [self._candidates.max_elements(destination.pool, destination.name) for destination in destinations]
        return max(inf if number is None else most_bytes(number) for number in elements)

    def _unseen(self, name: str) -> tuple[str, ...]:
        return tuple(pool for pool in self._candidates.never_seen() if self._catalogue.cold_pools.may_serve(pool, name))

    def _away(self, decisions: list[Decision], name: str, pins: Pins) -> list[Decision]:
        """Where it would also go if what is cold were not: others bridge until then, and receipts say so."""
        cold = self._candidates.cold()
        if not cold:
            return []
        fleet = self._catalogue.fleet
        pools = tuple(replace(pool, ready=True) if pool.name in cold else pool for pool in fleet.pools)
        taken = {decision.pool for decision in decisions}
        return [d for d in decide(Fleet(pools, fleet.known), name, pins) if d.pool not in taken]

    def _choice(self, name: str, version: str | None, decision: Decision) -> Destination:
        if version is not None:
            decision = replace(decision, variant=decision.variant.at(version))
        variant = decision.variant
        path = f"/v2/models/{variant.name}" + (f"/versions/{version}" if version else "") + "/infer"
        receipt = receipt_headers(decision)
        return Destination(
            decision=decision,
            pool=decision.pool,
            name=variant.name,
            start=f"POST {path} HTTP/1.1\r\n".encode(),
            candidate=self._candidates.of(decision.pool, variant.name),
            receipt=receipt,
            receipt_lines=_lines(receipt),
            series=self._metrics.series(name, variant.variant, decision.pool),
            rename=None if variant.name == name else (_name_field(variant.name), _name_field(name)),
        )


def as_on(destination: Destination, server: Server) -> Destination:
    """With the receipt of this very server, which may have another processor, engine or digest than the others of its pool."""
    variant = server.differing.get(destination.name)
    if variant is None:
        return destination
    receipt = receipt_headers(replace(destination.decision, variant=variant.at(destination.decision.variant.version)))
    return replace(destination, receipt=receipt, receipt_lines=_lines(receipt))


def _lines(receipt: Headers) -> bytes:
    return b"".join(b"%b: %b\r\n" % line for line in receipt)


def receipt_headers(decision: Decision) -> Headers:
    """The response headers that say what really happened, but for the reason.

    Values come from a Triton's configuration: only printable ASCII stays.
    """
    variant = decision.variant
    receipt = {
        "tandem-pool": decision.pool,
        "tandem-device": variant.device,
        "tandem-variant": variant.variant,
        "tandem-engine": variant.engine,
        "tandem-model-digest": f"sha256:{variant.digest}",
        "tandem-gate": variant.gate,
    }
    return [(key.encode(), re.sub(r"[^ -~]", "", value).encode()) for key, value in receipt.items()]


def _name_field(name: str) -> bytes:
    return b'"model_name":"%b"' % name.encode()
