"""Which server works on a request, when is it its turn there, and who gives the room back afterwards?

The deciding is `serving/scheduling/`'s; here are its clock and its waiting. In the common case a request is let in and sent in one go,
without a future or a task. Rule: `place` takes a lease whose `with` block has begun, so that room is given back whatever
happens, while it waits, while a server works and after the client's deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import inf
from time import perf_counter
from typing import Protocol

from serving import errors
from serving.gateway.background import forever
from serving.gateway.eager import Pending
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.server import Server
from serving.gateway.fleet.upstream import Answer
from serving.gateway.metrics import Series
from serving.gateway.request.route import Congestion, Destination, Route
from serving.protocol import v2
from serving.scheduling.admission import PoolQueue
from serving.scheduling.bridge import Demand
from serving.scheduling.choice import (
    Candidate,
    Chosen,
    Closed,
    Forecast,
    able,
    choose,
    forecasts,
    hopeless,
    may_admit,
    retry_after_s,
    that_take,
    turn_of,
)
from serving.scheduling.replica import Ticket

RETRY_AFTER_S = 1.0  # an embedded Triton or a dead stub is back in about a second (`make prove`)
SWEEP_S = 0.25  # how late a server that was left out is tried again
KEPT_RATIO = 0.05  # of a request's time, that a refusal is kept where nothing changes; a guess, not measured
SAME_RATIO = 0.05  # of the wait that somebody was told, for which the next ones hear of the same moment: Retry-After is off by as much
MUCH_LEFT_RATIO = (
    0.9  # of a request's time: whoever is refused with less hears how much was left; a guess, not measured
)
FORECAST_EVERY_S = (
    0.005  # that all candidates of a request are asked, for whoever wants to know; a guess: 2 µs, 200 times a second
)
CLOCK_S = 0.001  # by which timers of the event loop may be early or late: its own clock has no more digits
MAX_REFUSALS = 256  # that are kept: of so many kinds of requests; a guess, not measured


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


class Client(Protocol):
    """Who waits for an answer, as the queue sees it: somebody who may leave."""

    def listen(self, tell: Callable[[], None]) -> None:
        """From now on `tell` is called, on the event loop, once the client has gone; at once where it has gone already."""

    def ignore(self, tell: Callable[[], None]) -> None:
        """`tell` is called no more."""


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
    header_length: int | None
    framing: bytes  # the head's last lines
    rows: float  # of the usual length, where rows may have any
    priority: int
    give_up_at: float
    deadline: float
    arrived: float
    series: Series  # where it is counted: of its first choice, then of the one that worked on it
    tenant: str = ""  # whose it is
    candidates: Sequence[Candidate] = ()  # that take so many rows; set when it asks for its first lease
    tried: list[Server] = field(default_factory=list)  # that lost it
    waiting: Pending[WaitEnd] | None = None  # while it waits in a queue
    only_pool: str | None = None  # that left it unanswered: others are not to be stuck with it, too
    digest: bytes | None = None  # of its model and body, once that was asked for
    hashing: asyncio.Future[bytes] | None = None  # the same, of a body that takes long
    is_moved: bool = False  # its pool has no server left, and it is to look for another
    is_traced: bool = False  # whoever sent it will ask why it went where it goes
    decided: float = 0.0  # perf_counter; when, at which turn and for what it was decided on last
    turn: float = 0.0
    chosen: Chosen | None = None
    forecasts: Sequence[Forecast] = ()


@dataclass(slots=True)
class Refusal:
    """Of a request whose body was not read. Others of whom no more is known are refused alike as long as `closed` says so (None: not at
    all), and hear to come again at `opens` (perf_counter), found out at `found`. Each is demand for the same, in seconds of a server, and
    counts at those that it is `hopeless` at.
    """

    error: errors.Overloaded
    closed: Closed | None
    longest_s: float  # from its arrival to its deadline
    found: float
    opens: float
    demands: Sequence[tuple[Demand, float]]
    hopeless: Sequence[Candidate]

    def holds(self, arrived: float) -> bool:
        """For one that came just now."""
        is_closed = self.closed is not None and self.closed.holds(arrived, arrived + self.longest_s)
        return is_closed and arrived < self.opens

    def is_new(self, now: float) -> bool:
        """Whether somebody who is refused by what is the case now may hear to come again at the same moment."""
        return now - self.found < SAME_RATIO * (self.opens - self.found)

    def note(self, now: float) -> None:
        for demand, cost_s in self.demands:
            demand.note(now, cost_s)
        for candidate in self.hopeless:
            candidate.num_hopeless += 1

    def error_at(self, now: float) -> errors.Overloaded:
        return self.error if self.closed is None else errors.Overloaded(str(self.error), retry_after_s=self.opens - now)


class Lease:
    """What one request holds: a place in a pool's queue, then room on `server`. The end of its block gives it back, if nothing did before.

    Once a living server has answered, `answered_at` (perf_counter) and `wrong` say what is learnt then.
    """

    __slots__ = ("_outlives", "answered_at", "destination", "is_open", "reason", "server", "ticket", "wrong")

    destination: Destination
    ticket: Ticket
    reason: str
    server: Server

    def __init__(self) -> None:
        self.answered_at = 0.0
        self.wrong: errors.RequestError | None = None
        self.is_open = self._outlives = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_open or self._outlives:
            return
        if not self.answered_at:
            self.release()
            return
        self.is_open = False
        now, ticket, candidate, wrong = self.answered_at, self.ticket, self.destination.candidate, self.wrong
        queue, is_good = candidate.queue, wrong is None
        # Only what it really computed says how long that takes, and only an error of its own counts against it.
        actual_s = queue.answered(now, ticket, is_good=is_good, is_failure=isinstance(wrong, errors.Internal))
        if is_good and ticket.service.curve is candidate.service.curve:
            candidate.learn(ticket, actual_s)
        while (taken := queue.take(now)) is not None:
            _wake(taken.request)

    def lost(self) -> None:
        """The server gave no answer."""
        self.is_open = False
        now, queue = perf_counter(), self.destination.candidate.queue
        queue.lost(now, self.ticket)
        _send_next(queue, now)

    def release(self) -> None:
        """Nothing went out, or nothing was learnt."""
        self.is_open = False
        now, queue, ticket = perf_counter(), self.destination.candidate.queue, self.ticket
        queue.leave(ticket)
        if ticket.replica is not None:
            ticket.end(now)
        _send_next(queue, now)

    def outlive(self, answer: asyncio.Future[Answer], learn: Callable[[Lease, asyncio.Future[Answer]], None]) -> None:
        """Holds the room past the block until `answer` is done, because the server is busy with it; `learn` says how that ended."""
        self._outlives = True
        answer.add_done_callback(partial(self._end_late, learn))

    def _end_late(self, learn: Callable[[Lease, asyncio.Future[Answer]], None], answer: asyncio.Future[Answer]) -> None:
        self._outlives = False
        with self:
            learn(self, answer)


class Dispatcher:
    def __init__(self, catalogue: Catalogue, candidates: Candidates) -> None:
        self._catalogue = catalogue
        self._candidates = candidates
        self._num_chosen = 0
        self._forecast_at = 0.0  # perf_counter
        self._refusals: dict[tuple[Congestion, float, float, int, str, float], Refusal] = {}  # that may hold yet
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = inf  # perf_counter; never later than the first deadline of all who wait

    def start(self) -> None:
        self._task = asyncio.create_task(forever("the look at queues and pools", self._sweep))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def num_waiting(self, pool: str) -> int:
        return self._candidates.queues[pool].num_waiting

    async def place(self, request: InferRequest, lease: Lease, client: Client) -> None:
        """Returns when it is the request's turn on `lease.server`.

        Raises DeadlineExpired, Overloaded and NotReady, and ClientLeft for one whose client left the queue.
        """
        if not request.candidates:
            now = perf_counter()
            for demand, cost_s in self._demands(request, now):
                demand.note(now, cost_s)
        while True:
            now = perf_counter()
            route, candidates = request.route, request.candidates
            if request.only_pool is not None:
                candidates = [c for c in candidates if c.name == request.only_pool]
            if now < self._catalogue.suspended_until:
                candidates = [c for c in candidates if self._catalogue.pick(c.name, c.variant) is not None]
            self._num_chosen += 1
            turn = turn_of(self._num_chosen) if route.is_steady else -1.0
            chosen = self._choose_untried(now, request, candidates) if request.tried else None
            if chosen is None:
                chosen = choose(
                    now,
                    candidates,
                    request.rows,
                    request.deadline,
                    request.priority,
                    tenant=request.tenant,
                    turn=turn,
                    is_pinned=route.is_pinned,
                    is_bridged=bool(route.unseen),
                )
            request.decided, request.turn, request.chosen = now, turn, chosen
            if now >= self._forecast_at or request.is_traced:
                self._forecast_at = now + FORECAST_EVERY_S
                request.forecasts = forecasts(
                    now,
                    candidates,
                    request.rows,
                    request.deadline,
                    request.priority,
                    tenant=request.tenant,
                    chosen=chosen,
                )
            elif request.forecasts:  # of a choice that led nowhere
                request.forecasts = ()
            if chosen is None:
                raise self._refusal(now, request, candidates, turn, left_s=request.deadline - now)
            candidate = chosen.candidate
            ticket = candidate.queue.enter(
                now, request, candidate.service, request.rows, request.deadline, request.priority, request.tenant
            )
            lease.destination, lease.ticket, lease.reason = route.by_candidate[candidate], ticket, chosen.reason
            lease.is_open = True
            if ticket.in_line:
                await self._wait(request, ticket, candidate.queue, client)
            if request.is_moved:
                request.is_moved = False
                lease.release()
                continue
            if ticket.replica is None:
                raise errors.DeadlineExpired("the deadline passes before the request can be worked on")
            server = self._candidates.servers[ticket.replica]
            if server.suspended or request.tried or lease.destination.name not in server.variants:
                other = self._other_server(lease, server, request.tried)
                if other is None:
                    if perf_counter() >= self._catalogue.suspended_until:
                        raise _not_ready(request)
                    lease.release()
                    continue  # without this pool
                server = other
            lease.server = server
            return

    def refusal(self, request: InferRequest, usual_rows: float, *, keep: bool) -> Refusal | None:
        """Why it would be refused for load, of which no more is known than that it has so many rows at least, and this time at most.

        None: it has to be looked at. Whoever is refused is demand as all others are, and hears when to come again, as if it had
        `usual_rows`, a guess by those before it. `keep`: others of whom no more is known either will have as much time.
        """
        now, route, longest_s = perf_counter(), request.route, request.deadline - request.arrived
        if now < self._catalogue.suspended_until:
            return None
        usual_rows = round(usual_rows)
        alike = route.congestion, request.rows, usual_rows, request.priority, request.tenant, round(longest_s, 6)
        kept = self._refusals.get(alike) if keep else None
        if kept is not None and kept.holds(request.arrived):
            kept.note(now)
            return kept
        turn = 0.0 if route.is_steady else -1.0
        candidates = _that_take(route, request.rows)
        may = partial(
            may_admit,
            now,
            candidates,
            request.rows,
            priority=request.priority,
            tenant=request.tenant,
            turn=turn,
            is_length_free=route.usual_length > 0,
        )
        closed: Closed | None = None
        if keep and not may(deadline=(due_by := request.deadline + KEPT_RATIO * longest_s)):
            closed = Closed(now, route.candidates, due_by)
            if kept is not None and kept.is_new(now):
                kept.closed = closed
                kept.note(now)
                return kept
        elif may(deadline=request.deadline):
            return None
        out_of_reach = hopeless(candidates, request.rows, request.deadline - now, turn)
        least_rows, request.rows = request.rows, max(request.rows, usual_rows)
        error = self._refusal(now, request, _that_take(route, request.rows), turn, left_s=longest_s)
        if isinstance(error, errors.NeverInTime) and request.rows > least_rows:  # which is no guess
            guessed, request.rows = request.rows, least_rows
            error = self._refusal(now, request, candidates, turn, left_s=longest_s)
            request.rows = guessed
        if not isinstance(error, errors.Overloaded):
            return None
        if error.retry_after_s is None:
            closed = None
        opens = now + (error.retry_after_s or 0.0)
        refusal = Refusal(error, closed, longest_s, now, opens, self._demands(request, now), out_of_reach)
        refusal.note(now)
        if closed is not None:
            if len(self._refusals) >= MAX_REFUSALS:
                self._refusals.clear()
            self._refusals[alike] = refusal
        return refusal

    def is_refused_again(self, refusal: Refusal, arrived: float) -> bool:
        """Whether one that came just now, of whom nothing else is known than of who was refused before, is refused alike."""
        if arrived < self._catalogue.suspended_until or not refusal.holds(arrived):
            return False
        refusal.note(arrived)
        return True

    def fleet_changed(self) -> None:
        """What waits for a pool that has no server any more looks for another; what waits for one that is back is sent."""
        now = perf_counter()
        for queue in self._candidates.queues.values():
            if any(replica.is_up for replica in queue.replicas):
                _send_next(queue, now)
                continue
            for ticket in queue.expired(float("inf")):
                ticket.request.is_moved = True
                _wake(ticket.request)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _demands(self, request: InferRequest, now: float) -> list[tuple[Demand, float]]:
        """What it is demand for, whatever becomes of it: the pools that are able to answer it in time, and its cost there in seconds of a
        server. From here on it knows its candidates.
        """
        demands, rows, route = self._candidates.demands, request.rows, request.route
        candidates: Sequence[Candidate] = route.candidates
        if rows > 1 and len(candidates) > 1:  # of texts so many rows, whatever their length
            candidates = that_take(candidates, v2.num_rows(request.head) if route.usual_length else rows)
        request.candidates = candidates
        if request.deadline < request.give_up_at:
            candidates = able(candidates, rows, request.deadline - now)
        noted = [(demands[candidate.name], candidate.service.work_s(rows)) for candidate in candidates]
        least_s = 0.0
        if route.unseen:
            # What it takes there nobody knows: no longer than where it is quickest of those that are known, or it is of no use.
            least_s = min(candidate.service.work_s(rows) for candidate in route.candidates)
            for pool in route.unseen:
                noted += [(demands[pool], least_s), (self._candidates.unseen_demands[pool], least_s)]
        elif len(candidates) == 1 and len(demands) > 1:
            candidate = candidates[0]
            noted.append((self._candidates.only_demands[candidate.name], candidate.service.work_s(rows)))
        if 1 < len(candidates) + len(route.unseen) < len(demands):
            shared = self._candidates.shared_among([*(candidate.name for candidate in candidates), *route.unseen])
            noted += [(shared[candidate.name], candidate.service.work_s(rows)) for candidate in candidates]
            noted += [(shared[pool], least_s) for pool in route.unseen]
        return noted

    def _choose_untried(self, now: float, request: InferRequest, candidates: Sequence[Candidate]) -> Chosen | None:
        servers, tried = self._candidates.servers, request.tried
        others = [c for c in candidates if any(r.is_up and servers[r] not in tried for r in c.queue.replicas)]
        return choose(
            now,
            others,
            request.rows,
            request.deadline,
            request.priority,
            tenant=request.tenant,
            is_pinned=request.route.is_pinned,
        )

    def _refusal(
        self, now: float, request: InferRequest, candidates: Sequence[Candidate], turn: float, *, left_s: float
    ) -> errors.RequestError:
        """Why none of these may be sent this request, which has `left_s` of its time; told to others, too, all of it."""
        if now >= request.deadline:
            return errors.DeadlineExpired("the deadline passed before the request was worked on")
        if not any(replica.is_up for candidate in candidates for replica in candidate.queue.replicas):
            return _not_ready(request)
        longest_s = request.deadline - request.arrived
        again = now + longest_s  # one that comes anew has all of its time
        wait_s = retry_after_s(now, candidates, request.rows, again, request.priority, tenant=request.tenant, turn=turn)
        within = f"{longest_s * 1000:.0f} ms"  # as its client said
        if left_s < MUCH_LEFT_RATIO * longest_s:
            within += f", of which {left_s * 1000:.0f} ms are left"
        if wait_s is None:
            text = f"'{request.route.name}' cannot answer this within {within}, however little there is to do"
            return errors.NeverInTime(text)
        text = f"'{request.route.name}' has too much to do to answer within {within}"
        return errors.Overloaded(text, retry_after_s=wait_s)

    async def _wait(self, request: InferRequest, ticket: Ticket, queue: PoolQueue, client: Client) -> None:
        """Until it is taken out of the queue, or its deadline has passed. Raises ClientLeft."""
        if queue.may_send(ticket):
            _send_next(queue, perf_counter())
            if not ticket.in_line:
                return
        waiting: Pending[WaitEnd] = Pending()
        request.waiting = waiting
        if request.deadline < self._rings_at:
            self._ring_at(request.deadline)
        leave = partial(_end, waiting, WaitEnd.GONE)
        client.listen(leave)
        try:
            if await waiting is WaitEnd.GONE:
                raise ClientLeft
        finally:
            request.waiting = None
            client.ignore(leave)

    def _ring_at(self, deadline: float) -> None:
        """The only timer for all who wait: it costs as much as a twentieth of a request, and nearly none of theirs would go off."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._rings_at = deadline
        in_s = max(deadline - perf_counter(), CLOCK_S)
        self._alarm = asyncio.get_running_loop().call_later(in_s, self._ring)

    def _ring(self) -> None:
        """The earliest deadline of some who waited: it ends all whose time is over, if they are still there."""
        self._alarm, self._rings_at = None, inf
        queues, now = self._candidates.queues.values(), perf_counter() + CLOCK_S
        for queue in queues:
            for ticket in queue.expired(now):
                _wake(ticket.request, WaitEnd.OVER)
        if (deadline := min(queue.next_deadline for queue in queues)) < inf:
            self._ring_at(deadline)

    def _other_server(self, lease: Lease, server: Server, tried: list[Server]) -> Server | None:
        """Where it is booked if that serves it, or else another of the pool, to which the booking goes; None: none serves it now."""
        destination, ticket = lease.destination, lease.ticket
        if server.serves(destination.name, perf_counter()) and server not in tried:
            return server
        other = self._catalogue.pick(destination.pool, destination.name, tried)
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
                _send_next(queue, now)


def _that_take(route: Route, rows: float) -> Sequence[Candidate]:
    """Of a request of which no more is known: a text may cost what several rows do, and is one for all that."""
    return route.candidates if route.usual_length else that_take(route.candidates, rows)


def _send_next(queue: PoolQueue, now: float) -> None:
    """Everybody whose turn it is."""
    while (ticket := queue.take(now)) is not None:
        _wake(ticket.request)


def _wake(request: InferRequest, how: WaitEnd = WaitEnd.TAKEN) -> None:
    if request.waiting is not None:
        _end(request.waiting, how)


def _end(waiting: Pending[WaitEnd], how: WaitEnd) -> None:
    if not waiting.done():
        waiting.set_soon(how)


def stopping() -> errors.NotReady:
    """What is left hears it when the time to stop is over."""
    return errors.NotReady("the gateway is stopping; try again", retry_after_s=RETRY_AFTER_S)


def _not_ready(request: InferRequest) -> errors.NotReady:
    return errors.NotReady(f"'{request.route.name}' is not ready; try again", retry_after_s=RETRY_AFTER_S)
