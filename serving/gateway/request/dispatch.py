"""From the moment a request is read until a server is told to work on it, and what is learnt when that server is done.

The deciding is `serving/scheduling/`'s; here is its clock and its waiting. In the common case a request is let in and sent in one go,
without a future or a task. Rule: what was booked on a server is always ended, by `answered`, `lost` or `unsent`, or its room is gone
for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import perf_counter
from typing import NamedTuple

from serving import errors
from serving.gateway.background import forever
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.metrics import Series
from serving.gateway.request.client import Client
from serving.gateway.request.route import Choice, Route
from serving.protocol import v2
from serving.scheduling.admission import PoolQueue
from serving.scheduling.choice import Candidate, able, choose, retry_after_s, that_take, turn_of
from serving.scheduling.line import Ticket

RETRY_AFTER_S = 1.0  # an embedded Triton or a dead stub is back in about a second (`make prove`)
SWEEP_S = 0.25  # how late a server that was left out is tried again


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


class WaitEnd(Enum):
    """How waiting in a queue ended: by being taken, by its deadline, by its client's leaving."""

    TAKEN = "taken"
    OVER = "over"
    GONE = "gone"


@dataclass(slots=True)
class InferRequest:
    """A request as Triton will get it: its JSON part, all its bytes, where binary tensors begin, and until when (perf_counter) it waits.

    `give_up_at` is the gateway's own end of patience, `deadline` the earliest of that and of what client and objective say.
    """

    route: Route
    head: bytes
    chunks: Sequence[bytes | memoryview]
    size: int
    header_length: int | None
    rows: float  # of the usual length, where rows may have any
    priority: int
    give_up_at: float
    deadline: float
    arrived: float
    series: Series  # where it is counted: of its first choice, then of the one that worked on it
    tried: list[Server] = field(default_factory=list)  # that lost it
    waiting: asyncio.Future[WaitEnd] | None = None  # while it waits in a queue
    is_moved: bool = False  # its pool has no server left, and it is to look for another


class Lease(NamedTuple):
    """Booked on a server, to be sent now."""

    choice: Choice
    ticket: Ticket
    server: Server
    reason: str


class Dispatch:
    def __init__(self, catalogue: Catalogue, candidates: Candidates) -> None:
        self._catalogue = catalogue
        self._candidates = candidates
        self._num_chosen = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(forever("the look at queues and pools", self._sweep))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def num_waiting(self, pool: str) -> int:
        return self._candidates.queues[pool].num_waiting

    def note(self, asked: InferRequest) -> None:
        """A request came: demand for the pools that are able to answer it in time, whatever becomes of it."""
        now, demands, rows = perf_counter(), self._candidates.demands, asked.rows
        candidates = _that_take(asked)
        if asked.deadline < asked.give_up_at:
            candidates = able(candidates, rows, asked.deadline - now)
        for candidate in candidates:
            demands[candidate.name].note(now, candidate.service.cost_s(rows))
        if asked.route.unseen:
            # What it takes there nobody knows: no longer than where it is quickest of those that are known, or it is of no use.
            least_s = min(candidate.service.cost_s(rows) for candidate in asked.route.candidates)
            for pool in asked.route.unseen:
                demands[pool].note(now, least_s)
                self._candidates.unseen_demands[pool].note(now, least_s)
        elif len(candidates) == 1 and len(demands) > 1:
            candidate = candidates[0]
            self._candidates.only_demands[candidate.name].note(now, candidate.service.cost_s(rows))

    async def place(self, asked: InferRequest, client: Client) -> Lease:
        """A server for this request, when it is its turn there.

        Raises DeadlineExpired, Overloaded and NotReady, and ClientLeft for one whose client left the queue.
        """
        while True:
            now = perf_counter()
            choice, reason = self._choose(now, asked)
            candidate = choice.candidate
            queue = candidate.queue
            ticket = queue.enter(now, asked, candidate.service, asked.rows, asked.deadline, asked.priority)
            if ticket.in_line:
                self.pump(queue, now)
            if ticket.in_line:
                await self._wait(asked, ticket, queue, client)
            if asked.is_moved:
                asked.is_moved = False
                continue
            if ticket.replica is None:
                raise errors.DeadlineExpired("the deadline passes before the request can be worked on")
            server = self._server(choice, ticket, asked.tried)
            if server is not None:
                return Lease(choice, ticket, server, reason)
            self.unsent(ticket, queue)
            raise errors.NotReady(f"'{asked.route.name}' is not ready; try again", retry_after_s=RETRY_AFTER_S)

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def answered(self, now: float, sent: Lease, *, is_good: bool, is_failure: bool = False) -> None:
        """By a living server; only what it really computed says how long that takes. `is_failure`: an error that is the server's own."""
        ticket, candidate = sent.ticket, sent.choice.candidate
        queue = candidate.queue
        actual_s = queue.answered(now, ticket, is_good=is_good, is_failure=is_failure)
        if is_good and ticket.service.curve is candidate.service.curve:
            candidate.learn(ticket, actual_s)
        self.pump(queue, now)

    def lost(self, now: float, sent: Lease) -> None:
        queue = sent.choice.candidate.queue
        queue.lost(now, sent.ticket)
        self.pump(queue, now)

    def unsent(self, ticket: Ticket, queue: PoolQueue) -> None:
        """It was booked, and nothing went out."""
        now = perf_counter()
        ticket.end(now)
        self.pump(queue, now)

    def fleet_changed(self) -> None:
        """What waits for a pool that has no server any more looks for another; what waits for one that is back is sent."""
        now = perf_counter()
        for queue in self._candidates.queues.values():
            if any(replica.is_up for replica in queue.replicas):
                self.pump(queue, now)
                continue
            for ticket in queue.expired(float("inf")):
                ticket.request.is_moved = True
                _wake(ticket.request)

    def pump(self, queue: PoolQueue, now: float) -> None:
        """Everybody whose turn it is."""
        while (ticket := queue.take(now)) is not None:
            _wake(ticket.request)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _choose(self, now: float, asked: InferRequest) -> tuple[Choice, str]:
        route = asked.route
        candidates = _that_take(asked)
        if now < self._catalogue.suspended_until:
            candidates = [c for c in candidates if self._catalogue.pick(c.name, c.variant) is not None]
        self._num_chosen += 1
        turn = turn_of(self._num_chosen) if route.is_steady else -1.0
        chosen = None
        if asked.tried:
            others = [c for c in candidates if self._has_untried(c, asked.tried)]
            chosen = choose(now, others, asked.rows, asked.deadline, asked.priority, is_pinned=route.is_pinned)
        if chosen is None:
            chosen = choose(
                now,
                candidates,
                asked.rows,
                asked.deadline,
                asked.priority,
                turn=turn,
                is_pinned=route.is_pinned,
                is_bridged=bool(route.unseen),
            )
        if chosen is None:
            raise self._refusal(now, asked, candidates, turn)
        return route.by_candidate[chosen.candidate], chosen.reason

    def _has_untried(self, candidate: Candidate, tried: list[Server]) -> bool:
        servers = self._candidates.servers
        return any(replica.is_up and servers[replica] not in tried for replica in candidate.queue.replicas)

    def _refusal(
        self, now: float, asked: InferRequest, candidates: Sequence[Candidate], turn: float
    ) -> errors.RequestError:
        """Why none of these may be sent this request."""
        if now >= asked.deadline:
            return errors.DeadlineExpired("the deadline passed before the request was worked on")
        if not any(replica.is_up for candidate in candidates for replica in candidate.queue.replicas):
            return errors.NotReady(f"'{asked.route.name}' is not ready; try again", retry_after_s=RETRY_AFTER_S)
        again = now + asked.deadline - asked.arrived  # one that comes anew has all of its time
        wait_s = retry_after_s(now, candidates, asked.rows, again, asked.priority, turn=turn)
        left_ms = (asked.deadline - now) * 1000
        if wait_s is None:
            return errors.NeverInTime(
                f"'{asked.route.name}' cannot answer this within {left_ms:.0f} ms, however little there is to do"
            )
        text = f"'{asked.route.name}' has too much to do to answer within {left_ms:.0f} ms"
        return errors.Overloaded(text, retry_after_s=wait_s)

    async def _wait(self, asked: InferRequest, ticket: Ticket, queue: PoolQueue, client: Client) -> None:
        """Until it is taken out of the queue; at its deadline it leaves by itself."""
        loop = asyncio.get_running_loop()
        waiting = asked.waiting = loop.create_future()
        timer = loop.call_later(asked.deadline - perf_counter(), _end, waiting, WaitEnd.OVER)
        client.listen(partial(_end, waiting, WaitEnd.GONE))
        try:
            waited = await waiting
        except asyncio.CancelledError:
            self._leave(ticket, queue)
            raise
        finally:
            asked.waiting = None
            timer.cancel()
            client.ignore()
        if waited is WaitEnd.GONE:
            self._leave(ticket, queue)
            raise ClientLeft
        if ticket.in_line:
            queue.leave(ticket)

    def _leave(self, ticket: Ticket, queue: PoolQueue) -> None:
        if ticket.in_line:
            queue.leave(ticket)
        elif ticket.replica is not None:
            self.unsent(ticket, queue)

    def _server(self, choice: Choice, ticket: Ticket, tried: list[Server]) -> Server | None:
        """Where it was booked, or another of the pool where that one lost it or has just lost the model's process."""
        assert ticket.replica is not None
        server = self._candidates.servers[ticket.replica]
        if not server.suspended and not tried and choice.name in server.variants:
            return server
        if server.serves(choice.name, perf_counter()) and server not in tried:
            return server
        other = self._catalogue.pick(choice.pool, choice.name, tried)
        if other is not None and other is not server:
            now = perf_counter()
            ticket.end(now)
            ticket.book(now, other.replica)
        return other

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = perf_counter()
            self._candidates.look(now)
            for queue in self._candidates.queues.values():
                queue.leave_out_slow(now)
                self.pump(queue, now)


def _that_take(asked: InferRequest) -> Sequence[Candidate]:
    """Where so many rows are taken at once: of texts, whatever their length."""
    route = asked.route
    if asked.rows <= 1 or len(route.candidates) < 2:
        return route.candidates
    return that_take(route.candidates, v2.num_rows(asked.head) if route.usual_length else asked.rows)


def _wake(asked: InferRequest) -> None:
    if asked.waiting is not None:
        _end(asked.waiting, WaitEnd.TAKEN)


def _end(waiting: asyncio.Future[WaitEnd], how: WaitEnd) -> None:
    if not waiting.done():
        waiting.set_result(how)
