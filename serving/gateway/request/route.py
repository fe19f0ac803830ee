"""Where requests with one path and the same pins may go: worked out once, and kept until the fleet or the control document changes.

Where that splits a model's requests, each arm has a route, and whose request it is says which (`Split`).
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from time import perf_counter
from typing import Any, Protocol

from serving import errors
from serving.control.document import NO_CONTROL, Control, ModelControl, Target
from serving.control.revisions import NOTHING, Revision
from serving.gateway.access import ANYBODY, Caller, meant, require_name
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.metrics import Metrics, Series
from serving.gateway.request.request_headers import Body, Headers
from serving.protocol.budget import most_bytes
from serving.scheduling.choice import Candidate, turn_of
from serving.scheduling.routing import NO_PINS, RETRY_AFTER_S, Decision, Fleet, Pins, Variant, decide

PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]{1,9}))?/infer")
CONGESTED_S = 1.0  # after a refusal, that the next requests are looked at by their heads first; a guess, not measured
FADES = 0.99  # of what was seen of bodies, for each that is read; a guess, not measured
MAX_ROUTES = 4096  # names and pins come from clients: past this many the kept routes are dropped and made again
MAX_KNOWN, MAX_KNOWN_BYTES = 4096, 64  # of callers by name or header, which may be the client's: at most a megabyte


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


class Side(Protocol):
    """An arm of a rollout, which is told how its requests ended."""

    def answered(self, request: Any, reply: Any) -> None:
        """`InferRequest` and `Reply`, which are made of routes."""

    def failed(self, outcome: str) -> None: ...


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
    arm: str = ""  # of the control document
    split: Split | None = None  # the routes of all arms, of which this is one
    side: Side | None = None  # of a rollout that compares

    def least_rows(self, body: Body) -> float:
        """That a request with such a body has, whatever is in it: in JSON a row may have any number of bytes."""
        return max(1.0, min(body.binary // self.row_bytes, self.max_rows))


class Split:
    """Which arm answers whom. Whoever is known by a key or a header stays with an arm; a first arm that grows keeps whom it has."""

    def __init__(self, model: str, of: ModelControl, routes: Sequence[Route], weights: Sequence[float]) -> None:
        bounds = list(itertools.accumulate(weights))
        self._bounds = [bound / bounds[-1] for bound in bounds[:-1]]
        self._routes = tuple(routes)
        self._salt = model.encode()[:16]  # so that canaries of two models are not tried on the same callers
        kind, _, name = of.sticky_by.partition(":")
        self._header = name.encode()
        self._is_by_key = kind == "key"
        self._numbers = itertools.count(1)
        self._known: dict[str | bytes, Route] = {}  # of callers that came before, by name or header

    def of(self, headers: Mapping[bytes, bytes], caller: Caller) -> Route:
        header = headers.get(self._header) if self._header else None
        who = caller.name if self._is_by_key and caller is not ANYBODY else header
        if who is None:
            return self._at(turn_of(next(self._numbers)))
        return self._known.get(who) or self._find(who)

    def _find(self, who: str | bytes) -> Route:
        text = who.encode() if isinstance(who, str) else who
        route = self._at(int.from_bytes(blake2b(text, digest_size=8, salt=self._salt).digest()) / 2**64)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        if len(text) <= MAX_KNOWN_BYTES:
            self._known[who] = route
        return route

    def _at(self, place: float) -> Route:
        """In 0..1."""
        return self._routes[bisect_right(self._bounds, place)]


class Routes:
    def __init__(self, catalogue: Catalogue, candidates: Candidates, metrics: Metrics) -> None:
        self._catalogue = catalogue
        self._candidates = candidates
        self._metrics = metrics
        self._kept: dict[tuple[str, bytes | None, bytes | None], Route] = {}
        self._control: Control | None = NO_CONTROL  # None: there is one, which was not read yet
        self._revision = NOTHING
        self._of_targets: dict[tuple[str, str], Route | None] = {}
        self.side_of: Callable[[str, str], Side | None] = lambda _model, _arm: None

    def to(self, name: str, target: Target) -> Route | None:
        """Where this target of a model answers, for requests that are no client's; None: nothing serves it now."""
        key = name, str(target)
        if key not in self._of_targets:
            self._of_targets[key] = self._arm(name, NO_PINS, target, "", Congestion())
        return self._of_targets[key]

    def unanswered(self) -> dict[str, str]:
        """Model that is served -> what the document wants it to be answered by, which nothing serves now."""
        found = {}
        for name, of in (self._control or NO_CONTROL).models.items():
            targets = of.targets
            if targets and name in self._catalogue.fleet.routable and not any(self.to(name, it) for it in targets):
                found[name] = str(targets[0])
        return found

    def follow(self, control: Control | None, revision: Revision) -> None:
        """From the next request on."""
        self._control, self._revision = control, revision
        self.forget()

    def forget(self) -> None:
        self._kept.clear()
        self._of_targets.clear()

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
            try:
                route = self._kept[key] = self._make(*key)
            except errors.NoSuchModel as error:
                error.args = (f"{error}{self.meant(error.model, caller)}",)
                raise
        if route.split is not None:
            route = route.split.of(headers, caller)
        if caller.models is not None:
            caller.require_model(route.model, route.name)
        return route

    def meant(self, name: str, caller: Caller) -> str:
        """`; did you mean 'x'?`, or nothing, for a name that is unknown."""
        return meant(caller, name, self._catalogue.fleet)

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
        if self._control is None:
            raise errors.NotReady("the control document was not read yet; try again", retry_after_s=RETRY_AFTER_S)
        name, version = match.groups()
        pins = Pins(pool.decode("latin-1") if pool else None, variant.decode("latin-1") if variant else None)
        control = self._control.models.get(name) if version is None else None
        if control is not None and (control.stable is not None or control.arms):
            return self._controlled(name, pins, control)
        decisions = self._decide(name, pins)
        if version is not None:  # Triton calls one that it serves no more not ready, as if its process had died
            decisions = [decision for decision in decisions if decision.variant.has(version)]
            if not decisions:
                raise errors.NoSuchVersion(f"'{name}' has no version {version}", model=name, version=version)
        return self._route(name, version, pins, decisions, self._away(decisions, name, pins))

    def _controlled(self, name: str, pins: Pins, control: ModelControl) -> Route:
        """As the control document says. An arm that nothing serves now leaves its requests to the others.

        Raises NotReady and BadRequest.
        """
        self._decide(name, pins)  # for whoever has to be woken, and for what is wrong with pins
        congestion = Congestion()
        arms = control.arms
        if arms and mixes_spaces(self._catalogue.fleet, name, control):
            arms = dict([max(arms.items(), key=lambda it: it[1].weight)])
        found = [
            (arm.weight, route)
            for label, arm in arms.items()
            if (route := self._arm(name, pins, arm, label, congestion)) is not None
        ]
        if len(found) > 1:
            routes = [route for _, route in found]
            return replace(routes[0], split=Split(name, control, routes, [weight for weight, _ in found]))
        route = found[0][1] if found else None
        if route is None and control.stable is not None:
            route = self._arm(name, pins, control.stable, "", congestion)
        if route is None:
            wanted = " and ".join(map(str, arms.values())) or control.stable
            raise errors.NotReady(
                f"'{name}' is to be answered by its {wanted}, which nothing serves now; try again",
                retry_after_s=RETRY_AFTER_S,
            )
        return route

    def _arm(self, name: str, pins: Pins, target: Target, label: str, congestion: Congestion) -> Route | None:
        """None where nothing serves it now. A pin of the client's goes before the target's variant."""
        both = Pins(pins.pool, pins.variant or target.variant)
        fleet = self._catalogue.fleet
        if target.version is not None:
            fleet = only_version(fleet, str(target.version))
        try:
            decisions = decide(fleet, name, both)
        except (errors.NotFound, errors.NotReady, errors.BadRequest):
            return None
        version = None if target.version is None else str(target.version)
        route = self._route(name, version, both, decisions, self._away(decisions, name, both, version), label)
        side = self.side_of(name, label) if pins.variant is None else None
        return replace(route, versioned=False, is_pinned=pins != NO_PINS, congestion=congestion, side=side)

    def _route(
        self,
        name: str,
        version: str | None,
        pins: Pins,
        decisions: list[Decision],
        away: list[Decision],
        arm: str = "",
    ) -> Route:
        """Of places that answer now, and of those that would but for being cold."""
        is_steady = any(decision.pool not in self._candidates.bridges for decision in decisions)
        destinations = [self._choice(name, version, decision, arm) for decision in [*decisions, *away]]
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
            arm=arm,
        )

    def _max_body_bytes(self, destinations: list[Destination]) -> float:
        elements = [self._candidates.max_elements(destination.pool, destination.name) for destination in destinations]
        return max(inf if number is None else most_bytes(number) for number in elements)

    def _unseen(self, name: str) -> tuple[str, ...]:
        return tuple(pool for pool in self._candidates.never_seen() if self._catalogue.cold_pools.may_serve(pool, name))

    def _away(self, decisions: list[Decision], name: str, pins: Pins, version: str | None = None) -> list[Decision]:
        """Where it would also go if what is cold were not: others bridge until then, and receipts say so."""
        cold = self._candidates.cold()
        if not cold:
            return []
        fleet = self._catalogue.fleet
        pools = tuple(replace(pool, ready=True) if pool.name in cold else pool for pool in fleet.pools)
        fleet = Fleet(pools, fleet.known)
        if version is not None:
            fleet = only_version(fleet, version)
        taken = {decision.pool for decision in decisions}
        return [d for d in decide(fleet, name, pins) if d.pool not in taken]

    def _choice(self, name: str, version: str | None, decision: Decision, arm: str = "") -> Destination:
        if version is not None:
            decision = replace(decision, variant=decision.variant.at(version))
        variant = decision.variant
        path = f"/v2/models/{variant.name}" + (f"/versions/{version}" if version else "") + "/infer"
        receipt = receipt_headers(decision)
        if self._revision.number:
            receipt.append((b"tandem-revision", self._revision.name.encode()))
        if version is not None:
            receipt.append((b"tandem-version", version.encode()))
        if arm:
            receipt.append((b"tandem-arm", arm.encode()))
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


def only_version(fleet: Fleet, version: str) -> Fleet:
    """As if nothing else were served."""
    pools = [
        (pool, tuple(v for v in pool.variants if v.has(version)), tuple(v for v in pool.known if v.has(version)))
        for pool in fleet.pools
    ]
    return Fleet(
        tuple(
            replace(pool, ready=pool.ready and bool(variants), variants=variants, known=known)
            for pool, variants, known in pools
        ),
        fleet.known,
    )


def variants_of(fleet: Fleet, model: str) -> list[Variant]:
    """By its public name; those that were served once, too."""
    return [v for pool in fleet.pools for v in (*pool.variants, *pool.known) if v.model == model]


def mixes_spaces(fleet: Fleet, model: str, control: ModelControl) -> bool:
    """Whether arms would give vectors that cannot be compared: those of two versions never can be."""
    return len({arm.version for arm in control.arms.values()}) > 1 and any(v.space for v in variants_of(fleet, model))


def as_on(destination: Destination, server: Server) -> Destination:
    """With the receipt of this very server, which may have another processor, engine or digest than the others of its pool."""
    variant = server.differing.get(destination.name)
    if variant is None:
        return destination
    receipt = receipt_headers(replace(destination.decision, variant=variant.at(destination.decision.variant.version)))
    receipt += destination.receipt[len(receipt) :]
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
        "tandem-dtype": variant.dtype,
        "tandem-model-digest": f"sha256:{variant.digest}",
        "tandem-gate": variant.gate,
    }
    return [(key.encode(), re.sub(r"[^ -~]", "", value).encode()) for key, value in receipt.items()]


def _name_field(name: str) -> bytes:
    return b'"model_name":"%b"' % name.encode()
