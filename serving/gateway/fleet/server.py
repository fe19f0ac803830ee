"""One Triton: what it serves, as it said when it was last polled, and the requests to it that are no client's.

A variant is routable when Triton says that it is ready and its configuration allows it (`variants.py`). Everything else is kept with the
reason, for `/admin/status`. Which servers there are and where requests go is not here (`catalogue.py`). Rule: nothing is read from disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import orjson

from serving.gateway.fleet.curves import Facts, read_facts
from serving.gateway.fleet.liveness import Liveness
from serving.gateway.fleet.shared_memory import SharedMemory
from serving.gateway.fleet.upstream import Answer, Lost, Target
from serving.gateway.fleet.variants import NotRoutable, read_failures, read_variant, trial_of
from serving.gateway.fleet.work import Work, read_work
from serving.protocol.triton_reason import plain_reason, reason_of
from serving.repository import TRIAL
from serving.scheduling.prediction import Full
from serving.scheduling.replica import Replica
from serving.scheduling.routing import LoadFailure, Variant

# For a server that nobody else stands in for; one that can be done without is given up sooner (`liveness.py`). Triton answers its index in
# under 2 ms; one that is stopped by a debugger or a dying node does not.
POLL_TIMEOUT_S = 5.0
HANG_UP_S = (
    3.0  # after a request's deadline, in which an answer still tells that its server works; a guess, not measured
)
HOLD_S = (
    5.0  # longer than what sees beside Triton that nobody waits (`serving/local/containment.py`) needs to restart it
)
CONFIG_EVERY = 10  # polls; a reload can change a configuration without the index showing it
MAX_CONFIGS = (
    10  # asked for again then, in turn, so that a Triton of many models is asked no more often than one of ten
)
RESTART = (
    "tandem-restart"  # the row of its index by which a Triton that Tandem keeps asks for a new start (`recycling.py`)
)
SHORT = "tandem-memory"  # likewise, by which one tells that its models alone take more memory than it may have
INDEX_FAILED = 500  # Triton's status for an index where it cannot read its model repository
LOADING, DRAINING = "loading", "draining"
SUSPEND_S = 1.0  # a dead stub is reloaded within about a second; until then requests to it would wait a second each


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """What a Triton said when it was polled; everything by Triton's name of the model."""

    served: Mapping[str, Variant] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)  # of every variant that it serves
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)  # that are ready, of what is
    refused: Mapping[str, str] = field(default_factory=dict)  # why what is ready there gets no requests
    failures: Mapping[str, LoadFailure] = field(default_factory=dict)
    loading: frozenset[str] = frozenset()
    taking: frozenset[str] = frozenset()  # models that are being loaded, or tried before they are
    changing: Mapping[tuple[str, str], str] = field(
        default_factory=dict
    )  # (name, version) of what is loading or draining beside another version that is served -> which of both
    wants_restart: str = ""  # why, as its supervisor says
    short_of_memory: str = ""  # likewise
    unloaded: frozenset[str] = frozenset()  # by somebody
    listed: frozenset[str] = frozenset()  # that its repository has, in whatever state


class Index(NamedTuple):
    """Of a model repository, a row for each version that was loaded or tried and for each other model. `error`: why it cannot be read."""

    rows: list[dict[str, Any]]
    error: str = ""


class Quarantine(NamedTuple):
    """Of a model whose answers are off, as long as its file is this one."""

    digest: str
    reason: str


class Hold(NamedTuple):
    """Of a model that does not answer what has long expired. `full` marks what is in flight of it, `since` is by perf_counter."""

    full: Full
    since: float


@dataclass(slots=True, eq=False, weakref_slot=True)
class Server:
    """Times are by perf_counter, names Triton's."""

    target: Target
    replica: Replica  # what was sent there, as scheduling sees it
    alive: bool = False
    is_known: bool = False  # it was polled, and answered or did not
    snapshot: ServerSnapshot = field(default_factory=ServerSnapshot)
    variants: dict[str, Variant] = field(default_factory=dict)  # served, with the digest that requests go to
    differing: dict[str, Variant] = field(
        default_factory=dict
    )  # of these, whose receipt differs from the pool's variant
    kept: dict[str, bytes] = field(
        default_factory=dict
    )  # configurations (JSON) with which `tandem triton` loaded them last
    suspended: dict[str, float] = field(default_factory=dict)  # until when a model is left alone
    died: dict[str, float] = field(default_factory=dict)  # when a model's death was last noticed
    back: dict[str, float] = field(default_factory=dict)  # when it was seen to serve a model after it had not
    polls: int = 0
    num_asked: int = 0  # polls that have begun
    heard: int = 0  # the latest of them that is done
    answered: dict[str, float] = field(default_factory=dict)  # when a model last answered
    held: dict[str, Hold] = field(
        default_factory=dict
    )  # models that are left alone so that nobody waits there for them
    quarantined: dict[str, Quarantine] = field(default_factory=dict)  # by `request/parity.py`: they get no requests
    is_leaving: bool = False  # it gets nothing new, because it is to be started anew
    num_restarts: int | None = None  # because it worked on for nobody, as its supervisor tells
    new_restarts: int = 0  # of these, that nobody has counted yet
    num_silent: int = 0  # polls in a row that failed, of which the first got no answer in time
    last_index: list[dict[str, Any]] = field(default_factory=list)  # that it could tell
    index_error: str = ""  # why it cannot at present
    num_index_errors: int = 0  # polls in a row
    is_without_repository: bool = False  # as it was logged
    triton: str | None = None  # its version
    work: Work | None = None  # as it told when it was last polled while requests were under way
    liveness: Liveness = field(init=False)
    shared_memory: SharedMemory = field(init=False)

    def __post_init__(self) -> None:
        self.liveness = Liveness(self.target)
        self.shared_memory = SharedMemory(self.target)

    @property
    def num_in_flight(self) -> int:
        """Clients' requests that are there or on their way; also those that nobody waits for any more since it was left out."""
        return max(self.replica.num_in_flight, self.target.num_in_flight)

    def serves(self, name: str, now: float) -> bool:
        return self.alive and name in self.variants and self.suspended.get(name, 0.0) <= now

    def suspend(self, name: str, sent: float) -> float:
        """Leaves a model alone for a moment, and returns until when; see `Catalogue.suspend`."""
        now, never = perf_counter(), float("-inf")
        if sent < self.died.get(name, never) or sent < self.back.get(name, never):
            return 0.0
        self.died[name] = now
        self.suspended[name] = now + SUSPEND_S
        return self.suspended[name]

    def hold(self, name: str, full: Full) -> float:
        """Leaves a model alone until it answers, or a while after all of it that is in flight was given up. Returns until when at least."""
        now = perf_counter()
        self.held[name] = Hold(full, now)
        self.suspended[name] = now + HOLD_S
        return self.suspended[name]

    def renew_holds(self, now: float) -> float:
        """Returns until when a model is held at least; 0 where none is."""
        for name, hold in list(self.held.items()):
            if hold.full in self.replica.flights:
                self.suspended[name] = now + HOLD_S
            if self.answered.get(name, 0.0) > hold.since or self.suspended.get(name, 0.0) <= now:
                self.release(name)
        return max((self.suspended[name] for name in self.held), default=0.0)

    def release(self, name: str) -> None:
        """It is held no more."""
        del self.held[name]
        self.suspended.pop(name, None)

    def drain(self) -> None:
        """It gets nothing new, and what was just booked there goes elsewhere."""
        self.alive = self.replica.is_up = False
        self.snapshot, self.variants = ServerSnapshot(), {}

    async def poll(self, device: str) -> bool:
        """Asks what it serves, for a pool of this device. Returns whether that is another thing than before. Raises Lost.

        Several may be under way. What one heard is dropped where a later one is done already: it is older.
        """
        self.num_asked += 1
        turn = self.num_asked
        index, error = await self.index()
        if error and turn > self.heard:
            self.index_error, self.num_index_errors = error, self.num_index_errors + 1
        if self.alive and self.num_index_errors == 1 and error:
            return False  # a file that is replaced while Triton looks fails one index
        if not self.alive:
            self.triton = str(orjson.loads((await self.read(b"GET", "/v2")).body)["version"])
        if self.replica.num_in_flight:
            self.work = await self.ask_work()
        now = perf_counter()
        self.suspended = {name: until for name, until in self.suspended.items() if until > now}
        snapshot = await self._look(index, device, is_whole=not error)
        if turn < self.heard:
            return False
        self.heard = turn
        if not error:
            self.last_index, self.num_index_errors = index, 0
        came = snapshot.served.keys() if not self.alive else snapshot.served.keys() - self.snapshot.served.keys()
        self.back |= dict.fromkeys(came, perf_counter())
        is_news = not self.alive or snapshot != self.snapshot
        self.alive, self.snapshot = True, snapshot
        return is_news

    async def index(self) -> Index:
        """What its repository has, in whatever state. Raises Lost.

        A Triton that cannot read its repository lists nothing and serves on: the models in its statistics are loaded then, and of the
        others the last index tells which could not be.
        """
        answer = await self.read(b"POST", "/v2/repository/index")
        if answer.status == 200:
            return Index(orjson.loads(answer.body))
        counted = await self.read(b"GET", "/v2/models/stats") if answer.status == INDEX_FAILED else answer
        if counted.status != 200:
            raise Lost(f"it answers {answer.status} for its index, and {counted.status} for its statistics")
        loaded = {(row["name"], str(row["version"])) for row in orjson.loads(counted.body)["model_stats"]}
        rows = [{"name": name, "version": version, "state": "READY"} for name, version in sorted(loaded)]
        names = {name for name, _ in loaded} | {RESTART}
        for row in self.last_index:
            if row.get("state") == "UNAVAILABLE" and row["name"] != RESTART and _version(row) not in loaded:
                rows.append(row)
            elif row["name"] not in names:
                rows.append({"name": row["name"]})
        return Index(rows, reason_of(answer.body))

    async def ask_work(self) -> Work | None:
        """None where it tells none, which keeps it from nothing: a Triton may be started without statistics. Raises Lost."""
        answer = await self.read(b"GET", "/v2/models/stats")
        try:
            if answer.status != 200:
                return None
            return read_work(orjson.loads(answer.body), self.replica.num_answered, perf_counter())
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    async def _look(self, index: list[dict[str, Any]], device: str, *, is_whole: bool) -> ServerSnapshot:
        """Configurations are asked for where a model is new or serves other versions, and of some in turn at every tenth poll.

        `is_whole`: whether the index tells what is being loaded; what was tried again may be being loaded where it does not.
        """
        old = self.snapshot
        versions = _ready_versions(index)
        ready = set(versions)
        known = {
            name for name in old.served.keys() | old.refused.keys() if old.versions.get(name) == versions.get(name)
        }
        new = ready - known if self.alive else ready
        turn, is_between = divmod(self.polls, CONFIG_EVERY)
        self.polls += 1
        if not is_between and (kept := sorted(ready & known)):
            num_turns = -(-len(kept) // MAX_CONFIGS)
            new = new.union(kept[turn % num_turns :: num_turns])
        served = {name: v for name, v in old.served.items() if name in ready - new}
        facts = {name: f for name, f in old.facts.items() if name in served}
        refused = {name: reason for name, reason in old.refused.items() if name in ready - new}
        changing = _changing(index, ready)
        for name in sorted(new):
            answer = await self.read(b"GET", f"/v2/models/{name}/config")
            if answer.status != 200:
                refused[name] = f"Triton answered {answer.status} for its configuration"
                continue
            config = orjson.loads(answer.body)
            if (tried := trial_of(config)) is not None:
                changing[tried] = LOADING
                continue
            self._note_restarts(config)
            try:
                served[name] = read_variant(config, device)
                facts[name] = read_facts(config)
                if facts[name].is_kept:
                    self.kept[name] = answer.body
                if name in self.quarantined and self.quarantined[name].digest != served[name].digest:
                    del self.quarantined[name]
            except NotRoutable as reason:
                refused[name] = str(reason)
        loading = frozenset(
            entry["name"]
            for entry in index
            if entry.get("state") == "LOADING" and not entry["name"].endswith(TRIAL)  # nobody waits for it
        )
        loading -= ready
        listed = frozenset(entry["name"] for entry in index)
        maybe_loading = loading if is_whole else listed - ready
        tried_again = {name: failure for name, failure in old.failures.items() if name in maybe_loading}
        return ServerSnapshot(
            served,
            facts,
            versions,
            refused,
            tried_again | read_failures(index),
            loading=loading,
            taking=frozenset(
                row["name"].removesuffix(TRIAL)
                for row in index
                if row.get("state") == "LOADING"
                or (row["name"].endswith(TRIAL) and row.get("state") in ("READY", "UNLOADING"))
            ),
            changing=changing,
            wants_restart=_reason(index, RESTART),
            short_of_memory=_reason(index, SHORT),
            unloaded=frozenset(entry["name"] for entry in index if entry.get("reason") == "unloaded") - ready,
            listed=listed,
        )

    def _note_restarts(self, config: Mapping[str, Any]) -> None:
        told = config.get("parameters", {}).get("tandem_contained", {}).get("string_value", "")
        if told.isdecimal():
            before, self.num_restarts = self.num_restarts, int(told)
            if before is not None:
                self.new_restarts += max(0, self.num_restarts - before)

    async def fetch(
        self, method: bytes, path: str, body: bytes = b"", *, patience_s: float | None = None, fresh: bool = False
    ) -> Answer:
        """A request beside the inference path, `fresh` on a connection that nobody else uses. Raises Lost."""
        head = b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n"
        filled = head % (method, path.encode(), self.target.host_header, len(body))
        give_up_at = perf_counter() + (POLL_TIMEOUT_S if patience_s is None else patience_s)
        return await self.target.ask(filled, (body,), give_up_at, fresh=fresh)

    async def read(self, method: bytes, path: str) -> Answer:
        """A request that changes nothing there. It is sent once more, on a new connection, if the first one ends. Raises Lost."""
        try:
            return await self.fetch(method, path)
        except Lost as lost:
            if lost.refused or lost.timed_out or lost.silent:
                raise
        return await self.fetch(method, path, fresh=True)

    async def infer(self, name: str, body: bytes, length: int | None, give_up_at: float) -> Answer:
        """An inference beside the inference path, of a request whose JSON part has `length` bytes; None: all of it is JSON. Raises Lost."""
        head = b"POST /v2/models/%b/infer HTTP/1.1\r\n%bContent-Length: %d\r\n" % (
            name.encode(),
            self.target.host_header,
            len(body),
        )
        if length is not None:
            head += b"Inference-Header-Content-Length: %d\r\n" % length
        return await self.target.ask(head + b"\r\n", (body,), give_up_at)


def _reason(index: list[dict[str, Any]], name: str) -> str:
    row: dict[str, Any] = next((it for it in index if it["name"] == name), {})
    return plain_reason(str(row.get("reason", ""))) if row.get("state") == "UNAVAILABLE" else ""


def _version(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["name"], str(row.get("version") or "1")


def _changing(index: list[dict[str, Any]], ready: Collection[str]) -> dict[tuple[str, str], str]:
    words = {"LOADING": LOADING, "UNLOADING": DRAINING}
    return {_version(row): words[row["state"]] for row in index if row["name"] in ready and row.get("state") in words}


def _ready_versions(index: list[dict[str, Any]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for row in index:
        if row.get("state") == "READY":
            found.setdefault(row["name"], set()).add(str(row.get("version") or "1"))
    return {name: frozenset(versions) for name, versions in found.items()}
