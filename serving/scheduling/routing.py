"""Which pool and which variant answer a request, and the reason that goes into its receipt.

Takes what is known of the pools as plain values. It does not know targets, connections or time. The rule an editor must keep:
a variant is only ever chosen from a pool that lists it as routable, so nothing is sent where no gate allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from serving.errors import BadRequest, NoSuchModel, NotFound, NotReady

RETRY_AFTER_S = 1.0  # embedded Triton is back about a second after a crash (docs/measurements.md)


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant as a pool's Triton reports it.

    `name` is Triton's model name (and the name that pins it), `device` and `gate` the values of the headers `Tandem-Device`
    and `Tandem-Gate`, `speed_ratio` its speed beside FP32 where it was measured to be clearly faster on that pool's
    processor, else None.
    """

    name: str
    model: str
    variant: str
    engine: str
    digest: str
    device: str
    speed_ratio: float | None = None
    by_hand: bool | None = None  # whether the configuration names this one of a model's; None where it names none
    gate: str = "passed"
    dtype: str = "unmeasured"  # types that its products compute in there, as a profile showed
    version: str = "1"  # of the source's model, shared by its variants
    space: str = ""  # of an embedding: which vectors its own may be compared with
    in_space: bool = True  # that is the one that the model's public name stands for
    earlier: tuple[tuple[str, str], ...] = ()  # (version, digest) of those that are served beside it
    task: str = ""  # by which answers are compared; empty where its Triton does not say
    max_loss: float = 0.0  # that its gate found beside FP32, 0..1
    versions: frozenset[str] = frozenset()  # that its Triton was told to serve; empty where nobody told it

    def has_same_receipt(self, other: Variant) -> bool:
        """Whether a receipt says the same of both."""
        return (self.device, self.engine, self.dtype, self.digest, self.gate, self.earlier) == (
            other.device,
            other.engine,
            other.dtype,
            other.digest,
            other.gate,
            other.earlier,
        )

    def has(self, version: str) -> bool:
        """Whether a version is there, as far as anybody knows."""
        return not self.versions or str(int(version)) in self.versions

    def at(self, version: str) -> Variant:
        """As it is for whoever asks for this version."""
        digests = dict(self.earlier)
        return (
            replace(self, version=version, digest=digests[version], dtype="unmeasured") if version in digests else self
        )

    def chosen(self, yes: bool) -> Variant:
        return replace(self, by_hand=yes)


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A variant that a Triton was told to load and could not, and Triton's reason. An earlier version of it may be served meanwhile.

    Or one that waits for a server of its pool (`Pool.asleep`): nothing is wrong with it.
    """

    name: str
    model: str
    variant: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pool:
    """What routing sees of a pool.

    Whether any of its servers answers, the variants it may serve now, all that it ever served, what could not be loaded there, and what
    waits for a server of it.
    """

    name: str
    ready: bool
    variants: tuple[Variant, ...] = ()
    known: tuple[Variant, ...] = ()
    failures: tuple[LoadFailure, ...] = ()
    asleep: tuple[LoadFailure, ...] = ()

    @property
    def names(self) -> set[tuple[str, str]]:
        """(public name, variant's name) of what it serves, served, could not load, or will serve."""
        served = {(v.model, v.name) for v in (*self.variants, *self.known)}
        return served | {(f.model, f.name) for f in (*self.failures, *self.asleep)}

    def may_serve(self, name: str, variant: str | None) -> bool:
        """Whether it ever served a name, public or a variant's, or waits to."""
        known = [(v.model, v.name, v.variant) for v in self.known] + [(f.model, f.name, f.variant) for f in self.asleep]
        return any(name in (model, own) and variant in (None, it) for model, own, it in known)

    @property
    def has_answered(self) -> bool:
        return bool(self.variants or self.known or self.failures)


@dataclass(frozen=True, slots=True)
class Decision:
    pool: str
    variant: Variant
    reason: str


@dataclass(frozen=True, slots=True)
class Pins:
    """What the client insists on. None is no pin."""

    pool: str | None = None
    variant: str | None = None


NO_PINS = Pins()


@dataclass(frozen=True, slots=True)
class Fleet:
    """All pools, in the order of `tandem.yaml`, which decides only between equally cheap ones.

    And every model name ever seen, so that a model that is away is 503 and not 404.
    """

    pools: tuple[Pool, ...] = ()
    known: frozenset[str] = field(default_factory=frozenset)

    @property
    def can_deny(self) -> bool:
        """Whether a name can be called unknown: before any pool has answered, only where all pools wait for models that are named."""
        has_answered = any(pool.has_answered for pool in self.pools)
        return has_answered or (bool(self.pools) and all(pool.asleep for pool in self.pools))

    @property
    def routable(self) -> frozenset[str]:
        """The names, public ones and variants', that some pool serves now."""
        return frozenset(n for pool in self.pools if pool.ready for v in pool.variants for n in (v.model, v.name))

    def failures_of(self, name: str) -> list[LoadFailure]:
        """Why a name, public or a variant's, is not served or not in its newest version; FP32's reason first."""
        found = {f for pool in self.pools for f in pool.failures if name in (f.model, f.name)}
        return sorted(found, key=lambda f: (f.variant != "fp32", f.name, f.version))

    def asleep(self, name: str) -> dict[str, LoadFailure]:
        """Pools that will serve a name, public or a variant's, once they have a server -> what they lack."""
        return {pool.name: f for pool in self.pools for f in pool.asleep if name in (f.model, f.name)}


def declared_spaces(variants: Iterable[Variant], in_repository: Mapping[str, str]) -> dict[str, str]:
    """Embedding model -> the space that its public name stands for: FP32's; where nobody has FP32, what most variants have.

    `in_repository`: that of an FP32 which no server may have shown yet; without it, vectors given at a start would be of another space
    than those that follow.
    """
    of_model: dict[str, list[Variant]] = {}
    for variant in variants:
        if variant.space:
            of_model.setdefault(variant.model, []).append(variant)
    return {
        model: _most_common(
            [v.space for v in own if v.variant == "fp32"]
            or [space for of, space in in_repository.items() if of == model]
            or [v.space for v in own]
        )
        for model, own in of_model.items()
    }


def _most_common(spaces: list[str]) -> str:
    return min(spaces, key=lambda space: (-spaces.count(space), space))


def chosen_digest(num_servers: Mapping[str, int], before: str | None) -> str:
    """Of one variant, the digest that requests go to, where ready servers of a pool serve several (digest -> how many serve it).

    The one that most serve; of equals the one that has the requests already; else the first by its letters, so that gateways without a
    past agree. Neither age nor version counts: a roll-out moves the requests once, half-way, and a rollback moves them back.
    """
    return min(num_servers, key=lambda digest: (-num_servers[digest], digest != before, digest))


def preferred(variants: Sequence[Variant]) -> Variant | None:
    """The one that a model's public name means on a pool: named by hand, else the fastest that was measured, else FP32.

    Vectors under one name have to be comparable, on every pool: one of another space is taken only by hand. None if nothing is left.
    """
    comparable = [v for v in variants if v.by_hand or v.in_space]
    return max(
        comparable,
        key=lambda v: (bool(v.by_hand), v.speed_ratio or float(v.variant == "fp32"), v.variant),
        default=None,
    )


def preference_for(variant: Variant) -> str:
    """Why `preferred` took this one, in a word."""
    if variant.by_hand:
        return "named_by_hand"
    if variant.speed_ratio is not None and variant.variant != "fp32":
        return "measured_fastest"
    return "none_measured_faster" if variant.variant == "fp32" else "only_variant"


def decide(fleet: Fleet, name: str, pins: Pins = NO_PINS) -> list[Decision]:
    """What a request to model `name` would get on each pool that may answer it, in the order of the pools; `choice.py` chooses.

    Raises BadRequest for pins that contradict or name nothing, NotFound for a model nobody has, NotReady for one that is away.
    """
    if pins.pool is not None and pins.pool not in {pool.name for pool in fleet.pools}:
        names = ", ".join(pool.name for pool in fleet.pools)
        raise BadRequest(f"Tandem-Pool names '{pins.pool}'; the pools here are: {names}")
    found = [
        Decision(pool.name, choice, "pinned" if pins != NO_PINS or choice.name == name else "")
        for pool in fleet.pools
        if pool.ready and pins.pool in (None, pool.name)
        if (choice := _choose(pool, name, pins.variant)) is not None
    ]
    if not found:
        raise _nothing(fleet, name, pins)
    if found[0].reason:
        return found
    reasons = ["only_pool"] if len(found) == 1 else ["first_ready"] + ["next_ready"] * (len(found) - 1)
    return [Decision(d.pool, d.variant, reason) for d, reason in zip(found, reasons, strict=True)]


def _choose(pool: Pool, name: str, pinned: str | None) -> Variant | None:
    exact = [v for v in pool.variants if v.name == name]
    if exact:
        if pinned not in (None, exact[0].variant):
            raise BadRequest(f"the model name '{name}' and Tandem-Variant '{pinned}' contradict each other")
        return exact[0]
    if pinned is not None:
        return next((v for v in pool.variants if v.model == name and v.variant == pinned), None)
    return preferred([v for v in pool.variants if v.model == name])


def _nothing(fleet: Fleet, name: str, pins: Pins) -> BadRequest | NotFound | NotReady:
    """A pin is wrong only where it names what was never there: what is loaded again may be back in a second."""
    seen: list[tuple[str, Variant | LoadFailure]]
    seen = [(pool.name, v) for pool in fleet.pools for v in (*pool.variants, *pool.known) if name in (v.model, v.name)]
    seen += [
        (pool.name, f) for pool in fleet.pools for f in (*pool.failures, *pool.asleep) if name in (f.model, f.name)
    ]
    variants = {v.variant for _, v in seen}
    if pins.variant is not None and seen and fleet.can_deny and pins.variant not in variants:
        return BadRequest(f"'{name}' has no variant '{pins.variant}' here; it has: {', '.join(sorted(variants))}")
    where = {pool for pool, v in seen if pins.variant in (None, v.variant)}
    unknown = {pool.name for pool in fleet.pools if not pool.variants and not pool.known}  # it has not answered yet
    if where and pins.pool is not None and pins.pool not in where | unknown:
        places = ", ".join(sorted(where))
        return BadRequest(f"'{name}'{_variant(pins)} is not served by pool '{pins.pool}'; it is by: {places}")
    failed = [f for f in fleet.failures_of(name) if pins.variant in (None, f.variant)]
    if failed:
        why = reason_for(name, failed[0])
        return NotReady(f"'{name}'{_variant(pins)} is not served: {why}", retry_after_s=RETRY_AFTER_S)
    asleep = [f for f in fleet.asleep(name).values() if pins.variant in (None, f.variant)]
    if asleep:
        return NotReady(f"'{name}'{_variant(pins)} is not ready: {asleep[0].reason}", retry_after_s=RETRY_AFTER_S)
    if seen or name in fleet.known or not fleet.can_deny:
        return NotReady(f"'{name}'{_variant(pins)} is not ready; try again", retry_after_s=RETRY_AFTER_S)
    return NoSuchModel(f"there is no model '{name}' here; POST /v2/repository/index lists them", model=name)


class Told(Protocol):
    """What has a reason, in words that name a variant."""

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str: ...


def reason_for(name: str, failure: Told) -> str:
    """Why it could not be loaded, in the words of whoever asked for `name`: a public name hides the variant's."""
    return failure.reason.replace(failure.name, name)


def _variant(pins: Pins) -> str:
    return f" as {pins.variant}" if pins.variant else ""
