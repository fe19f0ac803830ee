"""What is expected of each model, what is served, and why the rest is not: the one account of a gateway.

Readiness, the index, the status and by it `tandem up` and `tandem models` read it, so that they cannot differ. An entry is a variant
in a pool. Expected is what a Triton was told to serve: not what somebody unloaded, not what waits for a pool that comes and goes, and
nothing that no repository has any more, which the catalogue forgets. Rule: no clock, no requests; all of it follows from the last polls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from serving.gateway.fleet.catalogue import Catalogue
from serving.repository import model_of
from serving.scheduling.routing import Pool


class State(StrEnum):
    SERVED = "served"
    LOADING = "loading"
    DRAINING = "draining"  # another version is served, and what was sent to this one before is still answered
    NOT_LOADED = "not_loaded"  # Triton could not, or Tandem does not let it: the reason says why
    AWAY = "away"  # it was served, and may be back in a second
    UNLOADED = "unloaded"  # by somebody
    WAITING = "waiting"  # for a server of a pool that comes and goes


WHY_CHANGING = {
    State.LOADING: "it answers the rows of its gate before it is served, or is being loaded",
    State.DRAINING: "another version took its place, and it answers what it was sent before",
}
EXPECTED = (State.SERVED, State.LOADING, State.NOT_LOADED, State.AWAY)


@dataclass(frozen=True, slots=True)
class Entry:
    """A variant in a pool. One that serves an earlier version than the one that could not be loaded has an entry for each."""

    name: str
    model: str
    variant: str
    version: str
    pool: str
    state: State
    reason: str = ""
    dtype: str = ""  # types that its products compute in, of what is served

    @property
    def is_expected(self) -> bool:
        return self.state in EXPECTED

    def is_of(self, name: str) -> bool:
        """Whether a name, public or a variant's, means it."""
        return name in (self.model, self.name)


def entries(catalogue: Catalogue) -> list[Entry]:
    """Of every pool, in their order; by name."""
    return [entry for pool in catalogue.fleet.pools for entry in _of_pool(catalogue, pool)]


def _of_pool(catalogue: Catalogue, pool: Pool) -> Iterator[Entry]:
    known = {v.name: v for v in (*pool.known, *pool.variants)}
    served = {v.name for v in pool.variants} if pool.ready else set()
    failures = {f.name: f for f in pool.failures}
    asleep = {f.name: f for f in pool.asleep}
    loading, changing = catalogue.loading(pool.name), catalogue.changing(pool.name)
    for name in sorted({*known, *failures, *asleep, *loading}):
        if name in served:
            v = known[name]
            yield Entry(name, v.model, v.variant, v.version, pool.name, State.SERVED, dtype=v.dtype)
            for (own, version), state in changing.items():
                if own == name and version != v.version:
                    yield Entry(name, v.model, v.variant, version, pool.name, State(state), WHY_CHANGING[State(state)])
        if f := failures.get(name):
            yield Entry(name, f.model, f.variant, f.version, pool.name, State.NOT_LOADED, f.reason)
        elif name in served:
            continue
        elif f := asleep.get(name):
            yield Entry(name, f.model, f.variant, f.version, pool.name, State.WAITING, f.reason)
        elif (was := known.get(name)) is not None:
            state, reason = State.AWAY, "no pool serves it now"
            if (why := next(iter(catalogue.quarantined(pool.name).get(name, {}).values()), None)) is not None:
                yield Entry(
                    name, was.model, was.variant, was.version, pool.name, State.NOT_LOADED, f"quarantined: {why}"
                )
                continue
            if name in loading:
                state, reason = State.LOADING, "it is being loaded"
            elif catalogue.is_unloaded(pool.name, name):
                state, reason = State.UNLOADED, "unloaded"
            yield Entry(name, was.model, was.variant, was.version, pool.name, state, reason)
        else:
            model = model_of(name)
            yield Entry(name, model, name[len(model) + 1 :], "1", pool.name, State.LOADING, "it is being loaded")


def lacking(account: Iterable[Entry]) -> list[Entry]:
    """What is expected and served by no pool: a variant that is away or being loaded, and a model of which no variant could be loaded.

    A variant that could not be loaded is made up for by the others of its model.
    """
    account = list(account)
    served = {name for entry in account if entry.state is State.SERVED for name in (entry.model, entry.name)}
    failed = {entry.name for entry in account if entry.state is State.NOT_LOADED}
    return [
        entry
        for entry in account
        if (entry.state is State.NOT_LOADED and entry.model not in served)
        or (entry.state in (State.AWAY, State.LOADING) and entry.name not in served | failed)
    ]


def first_failure(account: Iterable[Entry], name: str) -> Entry | None:
    """Why a name, public or a variant's, is not served or not in its newest version; FP32's reason first."""
    failed = [entry for entry in account if entry.state is State.NOT_LOADED and entry.is_of(name)]
    return min(failed, key=lambda e: (e.variant != "fp32", e.name, e.version), default=None)


def newest(account: Sequence[Entry], name: str) -> str:
    """The version that is, or was, served under a name."""
    own = [e for e in account if e.is_of(name) and e.state not in (State.NOT_LOADED, State.WAITING, State.DRAINING)]
    served = [e for e in own if e.state is State.SERVED]
    return max((e.version for e in served or own), key=int, default="1")
