"""Runs the rollouts of the control document: compares a candidate with what is pinned, and has it judged every second.

As a `shadow` a sample of requests is sent once more to both, on a server of the same pool that has nothing else to do, so that only
capacity that is idle is used and both are timed alike; clients have their answer by then. As a `canary` both answer clients, and a sample
of either's is sent to the other, too. The judge hears all gateways (`shared_judge.py`). What follows is `decisions/rollout.py`'s; a
candidate that is proven worse is rolled back here at once, and in the document for everybody else. Rule: nothing here is on the way of an
answer, and one copy of a request is kept at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from serving import errors
from serving.control.document import Control, ModelControl, RolloutSettings, Target
from serving.control.evidence import comparison_of
from serving.control.revisions import NOTHING, Revision
from serving.control.stores import Store
from serving.decisions.rollout import COST, LATENCY, TAIL, Arm, Block, Judge, Judgement, Losses, Margins, Outcome
from serving.errors import TandemError
from serving.export.gates import likeness
from serving.gateway.background import forever
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Answer, Lost
from serving.gateway.fleet.work import Work
from serving.gateway.metrics import RolloutGauge
from serving.gateway.request.dispatch import InferRequest
from serving.gateway.request.inference import Reply
from serving.gateway.request.route import Destination, Routes
from serving.gateway.request.shared_judge import SharedJudge
from serving.protocol.tensors import all_outputs
from serving.scheduling.choice import turn_of

BLOCK_S = 1.0
MAX_BYTES = 256 * 2**10  # of a request, and of an answer, that is compared: larger ones take the event loop too long
MAX_LATENCIES = 100  # of an arm in a block, twice that at most: more say little more about its quantiles
ENDED_S = 5.0  # after which a rollout's log is taken away: by then all gateways have read how it ended
IDLE_S, LOOK_S = 1.0, 0.02  # how long a copy waits for a server without work, and how often it looks: 13 µs each
PATIENCE_S = 10.0  # for the answer to a copy
# How the gate of a task measures answers -> which of the judge's limits holds for that; all others are shares of decisions.
METRICS = {likeness.COSINE: "cosine", likeness.NOISE: "error"}
# Of two versions of one file the one with 5 % of 200 requests a second was 1.2 and 1.5 times as slow, the one with half 0.98 and 1.01 times
# (digits on two pools, 2026-11-25).
FAIR_RATIO = 0.5
OURS = frozenset({"backend_error", "expired"})  # outcomes that are an arm's own fault
HEADS = ("canary", "stable")
COMPARING = ("shadow", "canary")


class Count:
    """What one arm did since the last block."""

    __slots__ = ("_every", "latencies_s", "num", "num_failed")

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.num = self.num_failed = 0
        self._every = 1  # of how many one latency is kept, so that they are of the whole block

    def answered(self, latency_s: float) -> None:
        self.num += 1
        if self.num % self._every == 0:
            self.latencies_s.append(latency_s)
            if len(self.latencies_s) > 2 * MAX_LATENCIES:
                del self.latencies_s[::2]
                self._every *= 2

    def failed(self) -> None:
        self.num += 1
        self.num_failed += 1

    def taken(self, num_latencies: int = MAX_LATENCIES) -> Arm:
        """With so many of them at most."""
        every = -(-len(self.latencies_s) // num_latencies) or 1
        arm = Arm(self.latencies_s[::every], self.num, self.num_failed)
        self.latencies_s, self.num, self.num_failed, self._every = [], 0, 0, 1
        return arm


@dataclass(frozen=True, slots=True)
class Copy:
    """Of a request that was answered."""

    body: bytes
    framing: bytes
    rows: float
    pool: str
    answer: Answer
    server: str


class Side:
    """One arm of a rollout, as requests meet it (`route.Side`)."""

    def __init__(self, rollout: Rollout, *, is_candidate: bool) -> None:
        self._rollout = rollout
        self._is_candidate = is_candidate
        self._count = rollout.counts[is_candidate] if rollout.settings.step == "canary" else None
        self._ratio = rollout.settings.sample_ratio

    def answered(self, request: InferRequest, reply: Reply) -> None:
        if self._count is not None:
            self._count.answered(reply.answered - reply.began)
        rollout = self._rollout
        rollout.num_seen += 1
        if turn_of(rollout.num_seen) < self._ratio:
            size = sum(map(len, request.chunks))
            if rollout.is_busy or size > MAX_BYTES or reply.answer.rest or len(reply.answer.start) > MAX_BYTES:
                rollout.num_skipped += 1
                return
            body, pool = b"".join(request.chunks), reply.destination.pool
            copy = Copy(body, request.framing, request.rows, pool, reply.answer, reply.server)
            rollout.begin(copy, is_candidate=self._is_candidate)

    def failed(self, outcome: str) -> None:
        if self._count is not None and outcome in OURS:
            self._count.failed()


class Rollout:
    """A candidate beside what is pinned, in one step. `change(step, why)` puts another in force, an empty one takes that back."""

    def __init__(
        self,
        model: str,
        of: ModelControl,
        settings: RolloutSettings,
        pinned: Target,
        rollouts: Rollouts,
        change: Callable[[str, str], None],
        revision: Revision = NOTHING,
        store: Store | None = None,
    ) -> None:
        self.of = of
        self.model, self.settings, self.may_mix = model, settings, of.may_mix
        self.names = str(settings.candidate), str(pinned)
        self.counts = Count(), Count()  # of the pinned one, of the candidate
        self.num_seen = self.num_skipped = self.num_compared = 0
        self.copies_s: dict[str, float] = {}  # by pool, of servers, that copies took
        self.is_busy = False
        self.since = datetime.now(UTC)
        self.is_over = False
        self.judgement: Judgement | None = None  # with which it ended
        self._decided = ""  # the step that follows: a rollback holds here at once, a promotion may have to wait
        self._outcome: Outcome = "held"  # as of the last block, whether anything follows from it or not
        self.targets = pinned, settings.candidate
        self._rollouts = rollouts
        self._change = change
        self.origin = revision.origin
        self._metric = ""  # known once answers were compared here
        self._shared = SharedJudge(comparison_of(model, of, revision), store, self._made_judge)
        self._num_s = 0.0  # since the last block
        self._work: WeakKeyDictionary[Server, Work] = WeakKeyDictionary()  # as it was when costs were compared last
        self._losses: dict[str, list[float]] = {}  # by the candidate's server
        self._lock = asyncio.Lock()  # while somebody reads the judgement

    def follows(self, before: Rollout) -> None:
        """Of the same, with the evidence that led to this step."""
        self.judgement, self._shared, self._lock = before.judgement, before._shared, before._lock
        self.copies_s = before.copies_s

    @property
    def is_running(self) -> bool:
        """What waits to be promoted answers clients meanwhile, and is judged on."""
        return self.settings.step in COMPARING and self._decided != "rollback"

    @property
    def gauge(self) -> RolloutGauge:
        outcome = self._outcome if self.is_running or self.judgement is None else self.judgement.outcome
        return RolloutGauge(self.model, self.settings.step, outcome, self.num_compared, self.num_skipped)

    # -- one sample ---------------------------------------------------------------------------------------------------

    def begin(self, copy: Copy, *, is_candidate: bool) -> None:
        self.is_busy = True
        self._rollouts.spawn(self._compare(copy, is_candidate=is_candidate))

    async def _compare(self, copy: Copy, *, is_candidate: bool) -> None:
        try:
            if self.settings.step == "canary":
                place = self._rollouts.place(self.model, self.targets[not is_candidate], copy.pool)
                sent = None if place is None else await self._send(place, copy)
                if sent is None:
                    self.num_skipped += 1
                    return
                other, server, _ = sent
                ours, theirs = (copy.answer, other) if is_candidate else (other, copy.answer)
                self._note(ours, theirs, copy.server if is_candidate else server, place)
                return
            order = (0, 1) if self.num_seen % 2 else (1, 0)  # so that neither finds the caches warmer
            places = [self._rollouts.place(self.model, target, copy.pool) for target in self.targets]
            got: dict[int, tuple[Answer | None, str, float]] = {}
            for index in order:
                place = places[index]
                found = None if place is None else await self._send(place, copy)
                if found is None:
                    self.num_skipped += 1
                    return
                got[index] = found
            for index, (answer, _, took_s) in got.items():
                if answer is None or answer.status != 200:
                    self.counts[index].failed()
                else:
                    self.counts[index].answered(took_s)
            self._note(got[1][0], copy.answer, got[1][1], places[1])
        finally:
            self.is_busy = False

    async def _send(self, place: Destination, copy: Copy) -> tuple[Answer | None, str, float] | None:
        """Answer, server and seconds, once a server of the pool has nothing to do. None: none had; without an answer: it was lost."""
        server = await self._rollouts.idle(place)
        if server is None:
            return None
        head = b"%b%b%b" % (place.start, server.target.host_header, copy.framing)
        began = perf_counter()
        try:
            answer = await server.target.ask(head, (copy.body,), began + PATIENCE_S)
        except Lost as lost:
            errors.without_frames(lost)
            return None, server.target.url, perf_counter() - began
        if answer.status == 200:
            device_s = place.candidate.service.work_s(copy.rows)
            self.copies_s[place.pool] = self.copies_s.get(place.pool, 0.0) + device_s
            self._rollouts.bill(self.model, place.pool, device_s)
        return answer, server.target.url, perf_counter() - began

    def _note(self, ours: Answer | None, theirs: Answer | None, server: str, place: Destination | None) -> None:
        """What the candidate answered beside the pinned one. Where that has failed itself nothing is said of either."""
        if theirs is None or theirs.status != 200 or place is None:
            return
        task, has_rows = place.decision.variant.task, self._rollouts.has_rows(place)
        try:
            right = _outputs(theirs, has_rows)
        except errors.Internal:
            return
        try:
            left = [] if ours is None or ours.status != 200 else _outputs(ours, has_rows)
        except errors.Internal:
            left = []
        found = likeness.losses(task, left, right)
        if not found:
            return
        self._metric = METRICS.get(likeness.METRICS.get(task, likeness.NOISE), "agreement")
        self._losses.setdefault(server, []).append(sum(found) / len(found))  # rows of a request cling together
        self.num_compared += 1

    # -- every second -------------------------------------------------------------------------------------------------

    async def judge(self) -> None:
        """Takes what happened since the last time, hears what other gateways saw, and acts on what is proven."""
        self._num_s += BLOCK_S
        if not self.is_running:
            return
        async with self._lock:
            if self._num_s < self._shared.block_s and not await self._is_urgent():
                return
            self._num_s = 0.0
            most = self._shared.num_latencies
            arms = await self._with_cost(self.counts[1].taken(most), self.counts[0].taken(most))
            block = Block(*arms, self._taken_losses())
            is_any = bool(block.candidate.num or block.primary.num or block.losses)
            num_before = self._shared.judge.num_blocks
            await self._shared.hear(block if is_any else None)
            judge = self._shared.judge
            if judge.num_blocks == num_before:
                return
            outcome = judge.outcome()
            if outcome == "promoted" and self._is_blind:
                outcome = "held"
            self._outcome = outcome
            step = self._following(outcome, judge)
            if step is None and outcome == "rolled_back":
                step = ""  # what is worse is not promoted, whether it may be taken back or not
            if step is None or step == self._decided:
                return
            self._decided, self.judgement = step, await asyncio.to_thread(judge.judgement)
            because = ", ".join(self.judgement.because) or "within all limits"
            num = f"{self.judgement.num_candidate} requests and {self.judgement.num_compared} comparisons"
            what = outcome.replace("_", " ") if step else "not promoted"
            self._change(step, f"{self.names[0]} of {self.model} {what} after {num}: {because}")

    async def _is_urgent(self) -> bool:
        """Whether what a long block holds so far proves that the candidate is worse."""
        if not (self.counts[1].num_failed or self._losses):
            return False
        ours, theirs = (Arm((), count.num, count.num_failed) for count in reversed(self.counts))
        return await self._shared.is_urgent(Block(ours, theirs, self._losses_so_far))

    async def end(self) -> None:
        """Another step is in force: reads what led to it elsewhere."""
        async with self._lock:
            if self.judgement is None:
                await self._shared.hear(None)

    def _following(self, outcome: Outcome, judge: Judge) -> str | None:
        """The step that a judgement leads to; None: none.

        Of a shadow and a small canary times and costs are told alone: what answers few requests has colder caches than what answers
        the most.
        """
        if outcome == "rolled_back" and self.settings.rolls_back:
            because = judge.judgement(with_intervals=False).because
            is_fair = self.settings.step == "canary" and self.settings.canary_ratio >= FAIR_RATIO
            return "rollback" if is_fair or set(because) - {LATENCY, TAIL, COST} else None
        is_last = self.settings.step == "canary" or not self.may_mix
        if outcome != "promoted" or not self.settings.promotes or not is_last:
            return None
        return None if self.model in self._rollouts.lacks() else "promote"  # judged on until it is there

    @property
    def _is_blind(self) -> bool:
        """Whether answers are to be compared, and none was yet: all were too large, say, or no server was ever idle."""
        return self.settings.sample_ratio > 0 and not self._shared.metric

    @property
    def _losses_so_far(self) -> tuple[Losses, ...]:
        """In this block."""
        return tuple(Losses(self._metric, values, server) for server, values in self._losses.items())

    def _taken_losses(self) -> tuple[Losses, ...]:
        taken, self._losses = self._losses_so_far, {}
        return taken

    async def _with_cost(self, ours: Arm, theirs: Arm) -> tuple[Arm, Arm]:
        """Of a canary: of a shadow the copies are alone on their servers, and what the pinned one does beside them is not."""
        if self.settings.step != "canary":
            return ours, theirs
        rows, ours_cost, theirs_cost = await self._rollouts.spent(self.model, self.targets, self._work)
        if not rows:
            return ours, theirs
        return replace(ours, cost=ours_cost, num_costed=rows), replace(theirs, cost=theirs_cost, num_costed=rows)

    def _made_judge(self, metric: str) -> Judge:
        """Which has no metric where nothing is to be compared."""
        margins = Margins()
        if self.settings.max_loss is not None and metric:
            margins = replace(margins, loss={metric: self.settings.max_loss})
        if self.settings.max_cost_ratio is not None:
            margins = replace(margins, cost_ratio=self.settings.max_cost_ratio)
        return Judge(margins, (metric,) if metric else (), measures_cost=self.settings.step == "canary")

    async def told(self) -> dict[str, Any]:
        judgement = None if self.is_running else self.judgement
        if judgement is None and self._shared.judge.num_blocks:
            async with self._lock:
                judgement = await asyncio.to_thread(self._shared.judge.judgement)
            if judgement.outcome == "promoted" and self._is_blind:
                judgement = replace(judgement, outcome="held", because=("answers",))
        return {
            "model": self.model,
            "step": self.settings.step,
            "candidate": self.names[0],
            "pinned": self.names[1],
            "since": self.since.isoformat(timespec="seconds"),
            "compared": self.num_compared,
            "skipped": self.num_skipped,
            "copies_device_s": sum(self.copies_s.values()),
            "copies_dollars": self._rollouts.dollars(self.copies_s),
            "gateways": self._shared.num_gateways,
            "problem": self._shared.problem or None,
            "judgement": None if judgement is None else _told(judgement),
        }


def _outputs(answer: Answer, has_rows: bool) -> list[NDArray[Any]]:
    """[rows, …] each, by their names. Raises Internal."""
    found = all_outputs(answer.body, answer.header_length)
    return [found[name] if has_rows else found[name][None] for name in sorted(found)]


async def _work(server: Server) -> Work | None:
    try:
        return await server.ask_work()
    except Lost as lost:
        errors.without_frames(lost)
        return None


def _told(judgement: Judgement) -> dict[str, Any]:
    """As JSON says it: null for what is not known or has no end."""
    told = asdict(judgement)
    for evidence in told["evidence"]:
        evidence |= {key: None for key, it in evidence.items() if isinstance(it, float) and not isfinite(it)}
    return told


class Rollouts:
    """Those of the document in force. `store`: of the document, where gateways tell each other what they saw.

    `bill`: hears which model's copy took how many seconds of a server of a pool.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        candidates: Candidates,
        routes: Routes,
        prices_per_hour: Mapping[str, float],
        store: Store | None = None,
        bill: Callable[[str, str, float], None] = lambda *_: None,
    ) -> None:
        self.bill = bill
        self._prices_per_hour = prices_per_hour
        self._catalogue = catalogue
        self._candidates = candidates
        self._routes = routes
        self._store = store
        self.by_model: dict[str, Rollout] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._judging: asyncio.Task[None] | None = None
        self._over: list[tuple[str, Revision, Rollout | None, Rollout | None]] = []

    def follow(
        self,
        control: Control,
        change: Callable[[str, str, str], None],
        revision: Revision = NOTHING,
        decided_here: Container[str] = (),
    ) -> None:
        """Those that go on keep their evidence. One that ended keeps its judgement while its block is in the document.

        `decided_here`: models whose step is not in the document yet, so that other gateways still compare.
        """
        before, self.by_model = self.by_model, {}
        for model, of in control.models.items():
            if of.rollout is None or of.pin is None:
                continue
            old = before.get(model)
            if old is not None and old.of.answering == of.answering and old.origin == revision.origin:
                self.by_model[model] = old
                continue
            made = Rollout(model, of, of.rollout, of.pin, self, partial(change, model), revision, self._store)
            if old is not None and old.names == made.names and of.rollout.step in ("promote", "rollback"):
                made.follows(old)
            self.by_model[model] = made
        for model in before.keys() | self.by_model.keys():
            now = self.by_model.get(model)
            if model not in decided_here and (now is None or (not now.is_running and not now.is_over)):
                self._over.append((model, revision, now, before.get(model)))

    async def _end(self, model: str, revision: Revision, now: Rollout | None, before: Rollout | None) -> None:
        """Of a rollout that the document says is over: another one of the same is to begin with no evidence."""
        for it in (now, before):
            if it is not None:
                it.is_over = True
                await it.end()
        if self._store is not None:
            await asyncio.sleep(ENDED_S)
            with suppress(TandemError):  # it is forgotten in time
                await asyncio.to_thread(self._store.exchange, comparison_of(model, None, revision), "", 0, ())

    def side(self, model: str, arm: str) -> Side | None:
        """None: nobody compares anything."""
        rollout = self.by_model.get(model)
        if rollout is None or not rollout.is_running:
            return None
        return Side(rollout, is_candidate=arm == HEADS[0])

    def start(self, tell: Callable[[Mapping[str, str]], None]) -> None:
        """`tell`: hears every second what `lacks` says."""
        self._judging = asyncio.create_task(forever("judging rollouts", partial(self._judge, tell)))

    async def stop(self) -> None:
        tasks = [*self._tasks, *([] if self._judging is None else [self._judging])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self, tell: Callable[[Mapping[str, str]], None]) -> None:
        while True:
            tell(self.lacks())
            await asyncio.sleep(BLOCK_S)
            while self._over:
                self.spawn(self._end(*self._over.pop()))
            await asyncio.gather(*(rollout.judge() for rollout in self.by_model.values()))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def place(self, model: str, target: Target, pool: str) -> Destination | None:
        """Where this target answers in a pool; None: nowhere now."""
        route = self._routes.to(model, target)
        return None if route is None else next((it for it in route.destinations if it.pool == pool), None)

    async def spent(
        self, model: str, targets: tuple[Target, Target], seen: WeakKeyDictionary[Server, Work]
    ) -> tuple[float, float, float]:
        """Rows, and what they cost by the candidate and by what is pinned, where both had like executions since they were `seen`.

        In dollars where every pool has a price, else in seconds of servers.
        """
        found = np.zeros(3)
        has_prices = self._has_prices
        for pool, servers in self._catalogue.pools.items():
            pinned, candidate = (self.place(model, target, pool) for target in targets)
            if pinned is None or candidate is None:
                continue
            price = self._prices_per_hour[pool] / 3600 if has_prices else 1.0
            each = [price / it.candidate.service.num_instances for it in (candidate, pinned)]
            names = [(it.name, it.decision.variant.version) for it in (candidate, pinned)]
            alive = [server for server in servers if server.alive]
            for server, work in zip(alive, await asyncio.gather(*map(_work, alive)), strict=True):
                before = seen.get(server)
                if work is None:
                    continue
                rows, ours_s, theirs_s = (0.0, 0.0, 0.0) if before is None else work.beside(before, *names)
                if rows or before is None or work.num_requests < before.num_requests:
                    seen[server] = work
                found += (rows, ours_s * each[0], theirs_s * each[1])
        return float(found[0]), float(found[1]), float(found[2])

    @property
    def _has_prices(self) -> bool:
        return all(self._prices_per_hour.get(pool) for pool in self._catalogue.pools)

    def dollars(self, device_s: Mapping[str, float]) -> float | None:
        """Of seconds of servers by pool; None where not all pools have a price."""
        if not self._has_prices:
            return None
        return sum(self._prices_per_hour[pool] / 3600 * took_s for pool, took_s in device_s.items())

    def lacks(self) -> dict[str, str]:
        """Model -> where its candidate is on fewer servers than what is pinned, so that it could not take over."""
        found = {}
        for model, rollout in self.by_model.items():
            if rollout.settings.step not in COMPARING:
                continue
            for pool in self._catalogue.pools:
                pinned, candidate = (self._num_servers(model, target, pool) for target in rollout.targets)
                if candidate < pinned:
                    found[model] = (
                        f"{rollout.names[0]} of '{model}' is on {candidate} of {pinned} servers of pool {pool}"
                    )
        return found

    def _num_servers(self, model: str, target: Target, pool: str) -> int:
        place = self.place(model, target, pool)
        if place is None:
            return 0
        version = None if target.version is None else str(target.version)
        served = (server.variants.get(place.name) for server in self._catalogue.pools[pool] if server.alive)
        return sum(it is not None and (version is None or it.has(version)) for it in served)

    def has_rows(self, place: Destination) -> bool:
        """Whether answers there have an axis for the rows of a batch."""
        facts = (server.snapshot.facts.get(place.name) for server in self._catalogue.pools[place.pool])
        return all(it is None or it.max_batch > 0 for it in facts)

    async def idle(self, place: Destination) -> Server | None:
        """A server of the place's pool that serves it and has nothing to do, while nobody waits for that pool; None: there is none soon."""
        until = perf_counter() + IDLE_S
        while True:
            server = self._catalogue.pick(place.pool, place.name)
            if server is not None and not server.target.busy and not self._candidates.queues[place.pool].num_waiting:
                return server
            if perf_counter() > until:
                return None
            await asyncio.sleep(LOOK_S)
