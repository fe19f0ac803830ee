"""Takes requests into a pool's queue, sends them to servers, and says when a refused one could come back (its Retry-After).

A queue per pool. It keeps what waits out of Triton, serves the earliest deadline of the highest priority first, and lets in only what
will be in time and leaves all of its priority in time; lower priorities are not protected from higher ones. Time is an argument. Rules:
what `finish` decides, `opens_at` promises, so change both or neither; and a pool that does nothing judges by its bare curve, so that no
correction can close it for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from serving.scheduling.line import ROUNDING_S, Line
from serving.scheduling.margin import Early
from serving.scheduling.outliers import (
    MIN_TIMED,
    NUM_TRIALS,
    WELL,
    ejected,
    failed,
    may_eject,
    slow,
    stalled,
    succeeded,
)
from serving.scheduling.prediction import Full, Service
from serving.scheduling.replica import Replica, Ticket

HIGHEST, LOWEST, DEFAULT = 1, 5, 3  # priorities


class PoolQueue:
    """One pool, as one gateway sees it."""

    def __init__(self, name: str, replicas: Sequence[Replica] = ()) -> None:
        self.name = name
        self.replicas: list[Replica] = []
        self._lines: dict[Full, list[Line]] = {}  # of each variant for which somebody waits, a line per priority
        self._empty = _lines(1.0)  # of all others
        self._usable: list[Replica] = []
        self._usable_until = -inf
        self._part = 1.0  # of a cost, that the line takes: one over the number of usable servers
        self._early = Early(LOWEST)
        self._has_other_servers = False  # since `take` found nothing to do
        self._version = 0
        self.serve_with(replicas)

    def serve_with(self, replicas: Sequence[Replica]) -> None:
        """These are the pool's servers now, the living and the dead; to be told whenever `is_up` of one changes, too."""
        self._version = self.version + 1
        self.replicas = list(replicas)
        self._usable_until = -inf

    @property
    def version(self) -> int:
        """Another one after all that happens here, but for time that passes."""
        return self._version + sum(replica.version for replica in self.replicas)

    @property
    def num_waiting(self) -> int:
        return sum(line.num_waiting for lines in self._lines.values() for line in lines)

    @property
    def waiting_s(self) -> float:
        """Costs of all who wait, in seconds of one server."""
        return sum(line.total_s for lines in self._lines.values() for line in lines)

    @property
    def in_flight(self) -> float:
        return sum(replica.in_flight for replica in self.replicas)

    # -- on arrival ---------------------------------------------------------------------------------------------------

    def finish(
        self, now: float, service: Service, rows: float, deadline: float, priority: int = DEFAULT
    ) -> float | None:
        """When it would be done if it were let in now; None if it cannot be let in."""
        if not self._servers(now):
            return None
        lines = self._lines_of(service)
        line, above_s = lines[priority - 1], self._above_s(service, priority)
        if above_s + line.total_s == 0.0 and (first := self._soonest(now, service, rows)) is not None:
            finish = self._done(now, service, rows, first)
            return finish if finish <= deadline + ROUNDING_S else None
        start = self._start(now, service, above_s)
        cost_s = service.cost_s(rows)
        tail_s = self._tail_s(service, rows, cost_s, priority)
        if not line.fits(start, deadline - tail_s, cost_s):
            return None
        return min(deadline, start + (line.total_s + cost_s) * self._part + tail_s)

    def may_admit(
        self, now: float, service: Service, rows: float, most_rows: float, deadline: float, priority: int = DEFAULT
    ) -> bool:
        """Whether one could be let in now that has so many rows or more, `most_rows` at most, and this deadline or an earlier one.

        Where it is False `finish` is None for all of them, although that may be earlier for more rows: fewer join an execution that
        waits, and more begin one, or stand in line behind somebody before whom fewer would stand. And it stays False until
        `gets_better_at`, as long as `version` is the same: all that time does by itself is to make everything later.
        """
        if not self._servers(now):
            return False
        if self._ahead_s(service, priority) == 0.0:
            least_done, are_sent = self._least_done(now, service, rows, most_rows)
            if least_done <= deadline + 2 * ROUNDING_S:
                return True
            if are_sent:
                return False
        full_s = service.careful_full_s(rows) + self._early.seconds[priority - 1]
        begin_by, start = deadline - full_s, self._start(now, service, self._above_s(service, priority))
        due_by = begin_by + service.cost_s(most_rows) * self._part
        return self._lines_of(service)[priority - 1].has_place(start, begin_by, due_by, service.cost_s(rows))

    def gets_better_at(self, now: float) -> float:
        """When time by itself gives it more servers: one that is left out is tried again."""
        self._servers(now)
        return self._usable_until

    def opens_at(
        self, now: float, service: Service, rows: float, deadline_in_s: float, priority: int = DEFAULT
    ) -> float:
        """When an identical request would be let in if nothing more arrived, its Retry-After; infinite if never."""
        if not self._servers(now):
            return inf
        opens = inf
        first = self._soonest(now, service, rows) if self._ahead_s(service, priority) == 0.0 else None
        start = self._start(now, service, self._above_s(service, priority))
        if first is None:
            cost_s = service.cost_s(rows)
            due_in_s = deadline_in_s - self._tail_s(service, rows, cost_s, priority)
            flight_s = service.bound / service.rate_rows_per_s
            line, *lower = self._lines_of(service)[priority - 1 :]
            opens = line.opens_at(now, start, due_in_s, cost_s, flight_s=flight_s, then=lower)
        elif service.careful_full_s(rows) <= deadline_in_s:
            opens = max(now, self._done(now, service, rows, first) - deadline_in_s)
        if self._alone_s(service, rows) <= deadline_in_s:  # at the latest when a server has nothing to do
            opens = min(
                opens, start + sum(line.total_s for line in self._lines_of(service)[priority - 1 :]) * self._part
            )
        return opens

    def admit(self, request: object, service: Service, rows: float, deadline: float, priority: int = DEFAULT) -> Ticket:
        """Into the queue. Ask `finish` first; then `take` until it gives nothing more."""
        self._version += 1
        cost_s = service.cost_s(rows)
        due = deadline - self._tail_s(service, rows, cost_s, priority)
        ticket = Ticket(request, service, rows, deadline, due, cost_s, priority)
        lines = self._lines.get(service.full)
        if lines is None:
            lines = self._lines[service.full] = _lines(self._part)
        lines[priority - 1].add(ticket)
        return ticket

    def enter(
        self, now: float, request: object, service: Service, rows: float, deadline: float, priority: int = DEFAULT
    ) -> Ticket:
        """`admit`, and `take` where nobody waits and a server has room: the ticket is `in_line` only if it has to wait."""
        if self._ahead_s(service, LOWEST) == 0.0 and (replica := self._best(now, service, rows)) is not None:
            ticket = Ticket(request, service, rows, deadline, deadline, service.cost_s(rows), priority)
            self._send(now, ticket, replica)
            return ticket
        return self.admit(request, service, rows, deadline, priority)

    # -- in the queue -------------------------------------------------------------------------------------------------

    def may_send(self, ticket: Ticket) -> bool:
        """Whether `take` may have something to do now that this one waits; nothing was left to do before."""
        return self._has_other_servers or _first(self._lines_of(ticket.service)) is ticket

    def take(self, now: float) -> Ticket | None:
        """The next to be sent, to its `replica`; without one its time is over, and it must not be sent. None: nothing to do."""
        for first in self._firsts():
            if first.deadline <= now:
                self.leave(first)
                return first
            replica = self._best(now, first.service, first.rows)
            if replica is None:
                continue
            self.leave(first)
            self._send(now, first, replica)
            self._learn_early(now, first, inf if first.replica is None else now + first.predicted_s)
            return first
        self._has_other_servers = False
        return None

    def leave(self, ticket: Ticket) -> None:
        """Its client is gone. What was sent goes on."""
        if ticket.in_line:
            self._version += 1
            lines = self._lines[ticket.service.full]
            lines[ticket.priority - 1].remove(ticket)
            if _first(lines) is None:
                del self._lines[ticket.service.full]

    def expired(self, now: float) -> list[Ticket]:
        """Those whose deadline has passed while they waited; they no longer wait."""
        lines = [line for lines in self._lines.values() for line in lines]
        over = [ticket for line in lines for ticket in line if ticket.deadline <= now]
        for ticket in over:
            self.leave(ticket)
        return over

    @property
    def next_deadline(self) -> float:
        """Of all who wait; infinite where nobody does."""
        lines = [line for lines in self._lines.values() for line in lines]
        return min((ticket.deadline for line in lines for ticket in line), default=inf)

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def answered(self, now: float, ticket: Ticket, *, is_good: bool = True, is_failure: bool = False) -> float:
        """Returns how long it took at its server, to learn from beside `ticket.predicted_s`.

        `is_good`: it did the work; otherwise it refused the request (its time says nothing), or, `is_failure`, failed by itself.
        """
        self._version += 1
        replica, actual_s = _server(ticket), now - ticket.sent
        if is_good:
            replica.learn(ticket.service, ticket.rows, actual_s)
        ticket.end(now)
        if now > ticket.deadline:
            self._learn_early(now, ticket, now)
        if now >= self._early.fades_at:
            self._early.fade(now)
        if ticket.sent < replica.health.ejected_until:  # what was sent before tells of the past
            return actual_s
        if is_good:
            replica.time(ticket.service, ticket.predicted_s, actual_s)
            if replica.is_on_trial and replica.name in slow(self._late_ratios(now)) and self._may_eject(now):
                self._eject(now, replica)
            elif replica.health is not WELL:
                replica.health = succeeded(replica.health)
        elif is_failure:
            replica.time_failure()
            self._failed(now, replica)
        else:
            replica.time_refusal()
            if not replica.is_on_trial:  # which takes more than to refuse
                replica.health = succeeded(replica.health)
        return actual_s

    def lost(self, now: float, ticket: Ticket) -> None:
        """Its server gave no answer."""
        self._version += 1
        replica = _server(ticket)
        ticket.end(now)
        if ticket.sent >= replica.health.ejected_until:
            self._failed(now, replica)

    def leave_out_slow(self, now: float) -> list[str]:
        """Ejects servers that are much slower than the others or stand still; to be asked a few times a second."""
        up = [replica for replica in self.replicas if replica.is_up and replica.health.ejected_until <= now]
        overdue_s = {r.name: now - r.free_at if r.num_in_flight else 0.0 for r in up}
        ill = {*slow(self._late_ratios(now)), *stalled(overdue_s, {r.name: r.in_flight_s for r in up})}
        out = []
        for replica in up:
            if replica.name in ill and self._may_eject(now):
                self._eject(now, replica)
                out.append(replica.name)
        return out

    # -- inside -------------------------------------------------------------------------------------------------------

    def _servers(self, now: float) -> list[Replica]:
        """Those that are up and not left out."""
        if now < self._usable_until:
            return self._usable
        up = [replica for replica in self.replicas if replica.is_up]
        usable = [replica for replica in up if replica.health.ejected_until <= now]
        self._usable = usable or up  # better an ill one than none
        self._has_other_servers = True
        self._usable_until = min((r.health.ejected_until for r in up if r.health.ejected_until > now), default=inf)
        part = 1.0 / max(1, len(self._usable))
        if part != self._part:
            self._part = part
            for lines in (*self._lines.values(), self._empty):
                for line in lines:
                    line.reshare(part)
        return self._usable

    def _serving(self, now: float, service: Service) -> list[Replica]:
        """Of these the ones that serve it, better an ill one than none; all where none does, so that whoever sends it hears of that."""
        if not service.without:
            return self._servers(now)
        up = [replica for replica in self.replicas if replica.is_up and replica.name not in service.without]
        return [replica for replica in up if replica.health.ejected_until <= now] or up or self._servers(now)

    def _lines_of(self, service: Service) -> list[Line]:
        """One per priority, to look at."""
        return self._lines.get(service.full, self._empty)

    def _firsts(self) -> list[Ticket]:
        """The next of each variant, the most urgent first: instances are a variant's own, so that nobody waits for those of another."""
        firsts = [first for lines in self._lines.values() if (first := _first(lines)) is not None]
        if len(firsts) > 1:
            firsts.sort(key=lambda ticket: (ticket.priority, ticket.due))
        return firsts

    def _ahead_s(self, service: Service, priority: int) -> float:
        """Costs of all who wait in the line of this priority and above."""
        ahead_s = 0.0
        for line in self._lines.get(service.full, ())[:priority]:
            ahead_s += line.total_s
        return ahead_s

    def _above_s(self, service: Service, priority: int) -> float:
        """The same, of the lines above it."""
        return self._ahead_s(service, priority - 1) if priority > HIGHEST and self._lines else 0.0

    def _start(self, now: float, service: Service, above_s: float) -> float:
        """When a line begins to be done: after all of its variant that is in flight, and the lines above, whose costs are `above_s`."""
        left_s, full, servers = 0.0, service.full, self._serving(now, service)
        for replica in servers:
            flights = replica.flights  # no call: asked of every server
            if full in flights:
                free_at = flights[full].free_at
                if free_at > now:
                    left_s += free_at - now
        return now + above_s * self._part + left_s / (len(servers) or 1)

    def _tail_s(self, service: Service, rows: float, cost_s: float, priority: int) -> float:
        """What its execution takes beyond its share of the pool's work, and what all are to be early; in a queue executions are full."""
        return service.careful_full_s(rows) - cost_s * self._part + self._early.seconds[priority - 1]

    def _learn_early(self, now: float, ticket: Ticket, ready: float) -> None:
        """By what is seen when they are sent and when they are answered."""
        full_s = ticket.service.seconds(ticket.service.batch)
        self._early.saw(now, ticket.priority - 1, full_s, is_late=ready > ticket.deadline)

    def _alone_s(self, service: Service, rows: float) -> float:
        """From its start to its end on a server that rests, where a wrong correction does not count."""
        return min(service.careful_seconds(rows), service.curve.seconds(rows))

    def _done(self, now: float, service: Service, rows: float, replica: Replica) -> float:
        """When it would be done there if it were sent now."""
        if replica.num_in_flight == 0:
            return now + self._alone_s(service, rows)
        return replica.done(now, service, rows)

    def _least_done(self, now: float, service: Service, rows: float, most_rows: float) -> tuple[float, bool]:
        """When so many rows or more, `most_rows` at most, would be done at the earliest on any server that has room, infinite where none
        has; and whether all are sent, however many.
        """
        serving = self._serving(now, service)
        if any(replica.num_in_flight == 0 for replica in serving):
            return now + self._alone_s(service, rows), True
        is_proven = all(replica.is_on_trial for replica in serving)
        least_done, are_sent = inf, False
        for replica in serving:
            if replica.has_room(service, rows, is_proven=is_proven):
                least_done = min(least_done, replica.least_done(now, service, rows))
                are_sent = are_sent or replica.has_room(service, most_rows, is_proven=is_proven)
        return least_done, are_sent

    def _soonest(self, now: float, service: Service, rows: float) -> Replica | None:
        """A server that rests, or else of those with room the one that is free first."""
        least, first = inf, None
        for replica in self._serving(now, service):
            if replica.num_in_flight == 0:
                return replica
            free_at = replica.free_at
            if free_at < now:  # `free_again`, without a call for every server
                free_at = now + (now - free_at)
            if free_at < least and replica.has_room(service, rows):
                least, first = free_at, replica
        return first or self._on_trial(now, service, rows)

    def _send(self, now: float, ticket: Ticket, replica: Replica) -> None:
        """Books it there, unless its time would be over even if all goes as fast as can be believed."""
        service, rows = ticket.service, ticket.rows
        starts = replica.free_of(service, now)
        if starts + min(service.seconds(rows), service.curve.seconds(rows)) > ticket.deadline + ROUNDING_S:
            return
        ticket.sent = now
        ticket.book(now, replica)

    def _best(self, now: float, service: Service, rows: float) -> Replica | None:
        """Of the servers with room the one that will be done first; of idle ones the fastest."""
        best, least = None, inf
        for replica in self._serving(now, service):
            if replica.num_in_flight == 0:
                if best is None or best.num_in_flight or replica.late_ratio < best.late_ratio:
                    best, least = replica, -inf
                continue
            free_at = replica.free_again(now)
            if free_at < least and replica.has_room(service, rows):
                best, least = replica, free_at
        return best or self._on_trial(now, service, rows)

    def _on_trial(self, now: float, service: Service, rows: float) -> Replica | None:
        """Where all that serve it are on trial: one request each is no pool, and what is stuck there would keep all others waiting."""
        servers = self._serving(now, service)
        for replica in servers:
            if replica.health.num_trials_left == 0:
                return None
        roomy = [replica for replica in servers if replica.has_room(service, rows, is_proven=True)]
        return min(roomy, key=lambda replica: replica.free_again(now), default=None)

    def _late_ratios(self, now: float) -> dict[str, float]:
        """Of the servers that have answered enough to be compared."""
        return {
            r.name: r.late_ratio
            for r in self.replicas
            if r.is_up and r.health.ejected_until <= now and r.num_timed >= (NUM_TRIALS if r.is_on_trial else MIN_TIMED)
        }

    def _eject(self, now: float, replica: Replica) -> None:
        replica.health = ejected(replica.health, now)
        replica.give_up(now)
        self._usable_until = -inf

    def _failed(self, now: float, replica: Replica) -> None:
        replica.health = failed(replica.health, now, may_eject=self._may_eject(now))
        if replica.health.ejected_until > now:
            replica.give_up(now)
        self._usable_until = -inf

    def _may_eject(self, now: float) -> bool:
        up = [replica for replica in self.replicas if replica.is_up]
        return may_eject(sum(replica.health.ejected_until > now for replica in up), len(up))


def _lines(share: float) -> list[Line]:
    return [Line(share) for _ in range(HIGHEST, LOWEST + 1)]


def _first(lines: Sequence[Line]) -> Ticket | None:
    """Of the highest priority."""
    for line in lines:
        if line.num_waiting:
            return line.first
    return None


def _server(ticket: Ticket) -> Replica:
    assert ticket.replica is not None, "it was never sent"
    return ticket.replica
