"""What becomes of one request: decided, queued, sent, executed, answered?

Deciding is not here: requests go through `choose` and `PoolQueue`, as in the gateway. Time is that of requests: it stands still where
nothing is looked at, and is `skipped_s` behind the clock on the wall by which servers come and are paid for. Rule: nothing here may know
what a gateway could not.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from math import inf

from serving.decisions.simulate.outcome import Tally
from serving.decisions.simulate.pool import Server, SimulatedPool
from serving.scheduling.admission import DEFAULT
from serving.scheduling.choice import choose, that_take, turn_of
from serving.scheduling.replica import Ticket

LEARN_EVERY = 8  # answers: with the same belief most of them say the same
LOOK_S = 0.5  # as often as gateways ask a server what it did, where there are several
Stretch = Callable[
    [float], float
]  # a coefficient of variation -> how many times as long as its curve says an execution takes


class Request:
    """`finish`: as predicted when it was let in, by this of the gateways to this of the pools."""

    __slots__ = ("came", "finish", "fleet", "gateway", "tally", "weight")

    def __init__(
        self, came: float, weight: int, finish: float, tally: Tally, fleet: SimulatedPool, gateway: int = 0
    ) -> None:
        self.came, self.weight, self.finish, self.tally, self.gateway = came, weight, finish, tally, gateway
        self.fleet = fleet


class Backlog:
    """Requests that wait for however long, for a pool that is cold or behind: they would be late anyway.

    They wait in the order of arrival and are let go once a second, as many rows as the servers could do in full executions; so how late
    they are is known to a second.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, float, int]] = deque()
        self._able = 0.0  # rows that could be done and were not enough for the next
        self.rows = 0.0

    def add(self, came: float, rows: float, weight: int) -> None:
        self._waiting.append((came, rows, weight))
        self.rows += rows * weight

    def drain(self, able_rows: float) -> Iterator[tuple[float, int]]:
        """When they came, and how many."""
        self._able += able_rows
        while self._waiting and self._able > 0:
            came, rows, weight = self._waiting.popleft()
            number = min(weight, max(1, int(self._able / rows)))
            if number < weight:
                self._waiting.appendleft((came, rows, weight - number))
            self._able -= number * rows
            self.rows -= number * rows
            yield came, number
        if not self._waiting:
            self._able, self.rows = 0.0, 0.0


class RequestFlow:
    def __init__(
        self, fleets: Sequence[SimulatedPool], objective_s: float, tally: Tally, stretch: Stretch | None
    ) -> None:
        if stretch is None and any(fleet.setting.noise_ratio for fleet in fleets):
            raise ValueError("a pool with noise needs a `stretch` that draws it")
        self._fleets = list(fleets)
        self._fleet_of = {candidate: fleet for fleet in fleets for candidate in fleet.candidates}
        self._offered = list(zip(*(fleet.candidates for fleet in fleets), strict=True))  # by each gateway
        self._look_at = LOOK_S if len(self._offered) > 1 else inf
        self._objective_s, self._tally, self._stretch = objective_s, tally, stretch
        self._executions: list[tuple[float, int, SimulatedPool, Server, list[Ticket]]] = []
        self._number = count()
        self._open: set[Request] = set()  # let in and neither answered nor over
        self._backlog = Backlog()
        self._num_decided = self._num_answered = 0
        self.now = 0.0
        self.skipped_s = 0.0

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(
        self,
        now: float,
        rows: float,
        weight: int,
        gateway: int = 0,
        *,
        tenant: str = "",
        tally: Tally | None = None,
        only: int | None = None,
        objective_s: float | None = None,
    ) -> None:
        """A request that stands for so many comes to this gateway. `tally`: where it counts, if it is another one. `only`: the one of the
        pools that may answer it, and within which time.
        """
        tally = tally or self._tally
        tally.came(weight)
        self._num_decided += 1
        deadline = now + (objective_s or self._objective_s)
        every = self._offered[gateway]
        offered = that_take(every if only is None else every[only : only + 1], rows)
        chosen = choose(now, offered, rows, deadline, tenant=tenant, turn=turn_of(self._num_decided))
        if chosen is None:
            tally.refused(now + self.skipped_s, weight)
            return
        candidate, reason, finish = chosen
        tally.reasons[reason] = tally.reasons.get(reason, 0) + weight
        request = Request(now, weight, finish, tally, self._fleet_of[candidate], gateway)
        self._let_in(now, rows, deadline, request, tenant)

    def hold(self, now: float, rows: float, weight: int) -> None:
        """The same where a request waits for however long, in the order in which they came."""
        fleet = self._fleets[0]
        self._tally.came(weight)
        self._tally.reasons["only_pool"] = self._tally.reasons.get("only_pool", 0) + weight
        finish = fleet.queue.finish(now, fleet.candidate.service, rows, now + self._objective_s)
        if self._backlog.rows or finish is None:
            self._backlog.add(now + self.skipped_s, rows, weight)
        else:
            self._let_in(now, rows, inf, Request(now, weight, finish, self._tally, fleet))

    def drain(self, now: float, lasting_s: float) -> None:
        """Those who wait for however long, by what the servers could do in the last seconds beside the rest."""
        if not self._backlog.rows:
            return
        fleet = self._fleets[0]
        service = fleet.candidate.service
        busy_s = fleet.queue.waiting_s + sum(server.replica.in_flight_s for server in fleet.ready)
        able_s = max(0.0, lasting_s * len(fleet.ready) - busy_s)
        execution_s = service.seconds(service.batch)
        wall = now + self.skipped_s
        for came, weight in self._backlog.drain(able_s * service.rate_rows_per_s):
            self._tally.answered(wall, wall - came + execution_s, weight)

    def forget(self) -> None:
        """A change: from now on whoever was let in stands for itself; the rest of its like was answered when predicted."""
        for request in self._open:
            if request.weight > 1:
                request.tally.answered(request.came + self.skipped_s, request.finish - request.came, request.weight - 1)
                request.weight = 1

    def _let_in(self, now: float, rows: float, deadline: float, request: Request, tenant: str = "") -> None:
        self._open.add(request)
        fleet = request.fleet
        candidate = fleet.candidates[request.gateway]
        candidate.queue.admit(request, candidate.service, rows, deadline, DEFAULT, tenant)
        self.send(now, fleet)

    # -- executions ---------------------------------------------------------------------------------------------------

    def until(self, now: float) -> None:
        """Ends what is done by now."""
        while self._look_at <= now:
            self._end(self._look_at)
            for fleet in self._fleets:
                fleet.look(LOOK_S)
            self._look_at += LOOK_S
        self._end(now)
        self.now = max(self.now, now)

    def _end(self, now: float) -> None:
        executions = self._executions
        while executions and executions[0][0] <= now:
            at, _, fleet, server, batch = heapq.heappop(executions)
            self._done(at, fleet, server, batch)

    def finish_all(self) -> float:
        """Until nobody waits or runs; returns when the last was done."""
        last = 0.0
        while self._executions:
            last = self._executions[0][0]
            self.until(last)
        return last

    def send(self, now: float, fleet: SimulatedPool) -> None:
        """What may be sent now is."""
        for candidate in fleet.candidates:
            take, sent = candidate.queue.take, list[tuple[SimulatedPool, Server]]()
            while (ticket := take(now)) is not None:
                if ticket.replica is None:
                    self._over(now, ticket)
                    continue
                of: SimulatedPool = ticket.request.fleet  # or another model's
                server = of.by_name[ticket.replica.name]
                server.waiting.append(ticket)
                if not server.service.full.gathers:
                    self._execute(now, of, server)
                elif (of, server) not in sent:
                    sent.append((of, server))
            for of, server in sent:  # it waits for what comes at once
                self._execute(now, of, server)

    def drop_expired(self, now: float, fleet: SimulatedPool) -> None:
        for candidate in fleet.candidates:
            for ticket in candidate.queue.expired(now):
                self._over(now, ticket)

    def _execute(self, now: float, fleet: SimulatedPool, server: Server) -> None:
        noise = fleet.setting.noise_ratio
        while (begun := server.begin()) is not None:
            seconds, batch = begun
            if noise and self._stretch:
                seconds *= self._stretch(noise)
            end = now + seconds if server.device is None else server.device.end(now, seconds)
            server.took_s += end - now
            server.queued_s += sum(ticket.rows * (now - ticket.sent) for ticket in batch)
            heapq.heappush(self._executions, (end, next(self._number), fleet, server, batch))

    def _done(self, now: float, fleet: SimulatedPool, server: Server, batch: list[Ticket]) -> None:
        server.end(len(batch))
        wall = now + self.skipped_s
        for ticket in batch:
            request = ticket.request
            candidate = fleet.candidates[request.gateway]
            actual_s = candidate.queue.answered(now, ticket)
            self._num_answered += 1
            if self._num_answered % LEARN_EVERY == 0:
                candidate.learn(ticket, actual_s)
            self._open.discard(request)
            request.tally.answered(wall, now - request.came, request.weight)
        self._execute(now, fleet, server)
        fleet.went_idle(wall, server)
        self.send(now, fleet)

    def _over(self, now: float, ticket: Ticket) -> None:
        self._open.discard(ticket.request)
        ticket.request.tally.expired(now + self.skipped_s, ticket.request.weight)
