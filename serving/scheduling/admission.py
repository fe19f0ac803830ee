"""Takes requests into a pool's queue, sends them to servers, and says when a refused one could come back (its Retry-After).

A queue per pool. It keeps what waits out of Triton, serves the earliest deadline of the highest priority first, and lets in only what
will be in time and leaves all of its priority in time; lower priorities are not protected from higher ones. Where several tenants ask,
those that have had less than their share (`shares.py`) go before all others, whatever the priorities of these; of several models one that
is ahead of its share waits (`turns.py`). Time is an argument. Rules:
what `finish` decides, `opens_at` promises, so change both or neither; and a pool that does nothing judges by its bare curve, so that no
correction can close it for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from serving.scheduling.shares import Shares, Terms
from serving.scheduling.turns import BREAKS, Turns, Use

HIGHEST, LOWEST, DEFAULT = 1, 5, 3  # priorities
# Ranks: the priorities of each group of tenants, one group after the other (`Shares.group`).
LAST = 3 * LOWEST
# Of the bound, that may be in flight for a tenant that has none of its work left in the imagined server, or little; guesses, simulated.
FLY_NONE, FLY_LITTLE = 2.0, 1.5
NOBODY = "\0"  # no tenant and no model has this name
SAME_RATIO = 0.05  # of the time that lines take, by which they may be off; a guess, not measured


class PoolQueue:
    """One pool, as one gateway sees it."""

    def __init__(self, name: str, replicas: Sequence[Replica] = ()) -> None:
        self.name = name
        self.replicas: list[Replica] = []
        self._lines: dict[Full, list[Line]] = {}  # of each variant for which somebody waits, a line per rank
        self._empty = _lines(1.0)  # of all others
        self._usable: list[Replica] = []
        self._usable_until = -inf
        self._part = 1.0  # of a cost, that the line takes: one over the number of usable servers
        self._early = Early(LAST)
        self._terms = Terms()
        self._sole = ""  # the only tenant that has work here
        self._shares: Shares | None = None  # where there are several
        self._model_terms = Terms()
        self._model = ""  # the only one that has work here
        self._turns: Turns | None = None  # from when there were several
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

    def share_by(self, tenants: Terms, models: Terms) -> None:
        """From now on, also among those who wait."""
        self._terms, self._model_terms = tenants, models
        self._version += 1
        if self._shares is not None:
            self._shares.use(tenants)
        if self._turns is not None:
            self._turns.use(models)

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

    @property
    def time_ratio(self) -> float | None:
        """What work took lately, as a multiple of what its curve says, the mean of servers; None where nothing was timed."""
        timed = [replica.late_ratio for replica in self.replicas if replica.is_up and replica.num_timed]
        return sum(timed) / len(timed) if timed else None

    # -- on arrival ---------------------------------------------------------------------------------------------------

    def finish(
        self,
        now: float,
        service: Service,
        rows: float,
        deadline: float,
        priority: int = DEFAULT,
        tenant: str = "",
    ) -> float | None:
        """When it would be done if it were let in now; None if it cannot be let in."""
        if not self._servers(now):
            return None
        rank = priority if tenant == self._sole else self._rank(tenant, priority)
        lines = self._lines_of(service)
        line, above_s = lines[rank - 1], self._above_s(service, rank)
        if (
            above_s + line.total_s == 0.0
            and not self._is_held(service)
            and (first := self._soonest(now, service, rows, self._may_fly(rank))) is not None
        ):
            finish = self._done(now, service, rows, first, is_bold=self._is_owed(rank))
            return finish if finish <= deadline + ROUNDING_S else None
        start = self._start(now, service, above_s)
        cost_s = service.cost_s(rows)
        tail_s = self._tail_s(service, rows, cost_s, rank)
        if not line.fits(start, deadline - tail_s, cost_s):
            return None
        return min(deadline, start + (line.total_s + cost_s) * line.share + tail_s)

    def may_admit(
        self,
        now: float,
        service: Service,
        rows: float,
        most_rows: float,
        deadline: float,
        priority: int = DEFAULT,
        tenant: str = "",
    ) -> bool:
        """Whether one could be let in now that has so many rows or more, `most_rows` at most, and this deadline or an earlier one.

        Where it is False `finish` is None for all of them, although that may be earlier for more rows: fewer join an execution that
        waits, and more begin one, or stand in line behind somebody before whom fewer would stand. And it stays False until
        `gets_better_at`, as long as `version` is the same: all that time does by itself is to make everything later.
        """
        if not self._servers(now):
            return False
        rank = priority if tenant == self._sole else self._rank(tenant, priority)
        if self._is_owed(rank):
            return True
        line = self._lines_of(service)[rank - 1]
        if self._ahead_s(service, rank) == 0.0:
            least_done, are_sent = self._least_done(now, service, rows, most_rows)
            if least_done <= deadline + 2 * ROUNDING_S:
                return True
            if are_sent:
                return False
        full_s = service.careful_full_s(rows) + self._early.seconds[rank - 1]
        begin_by, start = deadline - full_s, self._start(now, service, self._above_s(service, rank))
        due_by = begin_by + service.cost_s(most_rows) * line.share
        return line.has_place(start, begin_by, due_by, service.cost_s(rows))

    def gets_better_at(self, now: float) -> float:
        """When time by itself gives it more servers: one that is left out is tried again."""
        self._servers(now)
        return self._usable_until

    def opens_at(
        self,
        now: float,
        service: Service,
        rows: float,
        deadline_in_s: float,
        priority: int = DEFAULT,
        tenant: str = "",
    ) -> float:
        """When an identical request would be let in if nothing more arrived, its Retry-After; infinite if never."""
        if not self._servers(now):
            return inf
        rank = priority if tenant == self._sole else self._rank(tenant, priority)
        opens = inf
        is_next = self._ahead_s(service, rank) == 0.0 and not self._is_held(service)
        first = self._soonest(now, service, rows, self._may_fly(rank)) if is_next else None
        start = self._start(now, service, self._above_s(service, rank))
        if first is None:
            cost_s = service.cost_s(rows)
            due_in_s = deadline_in_s - self._tail_s(service, rows, cost_s, rank)
            flight_s = service.bound / service.rate_rows_per_s
            line, *lower = self._lines_of(service)[rank - 1 :]
            opens = line.opens_at(now, start, due_in_s, cost_s, flight_s=flight_s, then=lower)
        elif service.careful_full_s(rows) <= deadline_in_s:
            opens = max(now, self._done(now, service, rows, first) - deadline_in_s)
        if self._alone_s(service, rows) <= deadline_in_s:  # at the latest when a server has nothing to do
            behind_s = sum(line.total_s for line in self._lines_of(service)[rank - 1 :])
            opens = min(opens, start + behind_s * self._part_of(service))
        return opens

    def admit(
        self,
        request: object,
        service: Service,
        rows: float,
        deadline: float,
        priority: int = DEFAULT,
        tenant: str = "",
    ) -> Ticket:
        """Into the queue. Ask `finish` first; then `take` until it gives nothing more."""
        self._version += 1
        rank = priority if tenant == self._sole else self._rank(tenant, priority)
        cost_s = service.cost_s(rows)
        due = deadline - self._tail_s(service, rows, cost_s, rank)
        ticket = Ticket(request, service, rows, deadline, due, cost_s, rank, tenant)
        if self._shares is not None:
            self._shares.charge(tenant, cost_s)
        lines = self._lines.get(service.full)
        if lines is None:
            lines = self._lines[service.full] = _lines(self._part, len(self._empty))
        lines[rank - 1].add(ticket)
        return ticket

    def enter(
        self,
        now: float,
        request: object,
        service: Service,
        rows: float,
        deadline: float,
        priority: int = DEFAULT,
        tenant: str = "",
    ) -> Ticket:
        """`admit`, and `take` where nobody waits and a server has room: the ticket is `in_line` only if it has to wait."""
        if (
            self._ahead_s(service, LAST) == 0.0
            and not self._is_held(service)
            and (replica := self._best(now, service, rows)) is not None
        ):
            rank = priority if tenant == self._sole else self._rank(tenant, priority)
            ticket = Ticket(request, service, rows, deadline, deadline, service.cost_s(rows), rank, tenant)
            if self._shares is not None:
                self._shares.charge(tenant, ticket.cost_s)
            self._send(now, ticket, replica, is_new=True)
            return ticket
        return self.admit(request, service, rows, deadline, priority, tenant)

    # -- in the queue -------------------------------------------------------------------------------------------------

    def may_send(self, ticket: Ticket) -> bool:
        """Whether `take` may have something to do now that this one waits; nothing was left to do before."""
        return self._has_other_servers or _first(self._lines_of(ticket.service)) is ticket

    def take(self, now: float) -> Ticket | None:
        """The next to be sent, to its `replica`; without one its time is over, and it must not be sent. None: nothing to do."""
        firsts, turns = self._firsts(), self._turns
        if turns is not None and (firsts or turns.holds):
            self._look(now, turns, firsts)
        for first in firsts:
            if first.deadline <= now:
                self.leave(first)
                return first
            if self._is_held(first.service):
                replica = self._gathering(now, first.service, first.rows)
            else:
                replica = self._best(now, first.service, first.rows, self._may_fly(first.rank))
            if replica is None:
                continue
            self._take_out(first)
            self._send(now, first, replica)
            is_late = first.replica is None
            if is_late:
                self._settle(first, is_done=False)
            self._learn_early(now, first, inf if is_late else now + first.predicted_s)
            return first
        self._has_other_servers = False
        return None

    def leave(self, ticket: Ticket) -> None:
        """Its client is gone, or its time is over. What was sent goes on."""
        self._take_out(ticket)
        self._settle(ticket, is_done=False)
        if ticket.replica is not None:
            _answer(ticket, ticket.replica)

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
        self._settle(ticket, is_done=True)
        replica, actual_s = _server(ticket), now - ticket.sent
        if is_good:
            replica.learn(ticket.service, ticket.rows, actual_s)
            if self._turns is not None:
                _time(now, self._turns, ticket, replica)
        _answer(ticket, replica)
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
        self._settle(ticket, is_done=True)
        replica = _server(ticket)
        _answer(ticket, replica)
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

    def did(self, replica: Replica, uses: Mapping[str, Use], lasting_s: float) -> None:
        """What this server did since that was told last, by model, for all gateways."""
        charged_s, replica.charged_s = replica.charged_s, {}
        turns = self._turns
        if turns is not None and (replica.is_shared or turns.is_shared):
            turns.did(uses, charged_s, 1.0 - replica.others_ratio, lasting_s)
            turns.meet(any(it.is_shared for it in self.replicas), lasting_s / max(1, len(self.replicas)))

    # -- between tenants ----------------------------------------------------------------------------------------------

    def _rank(self, tenant: str, priority: int) -> int:
        """Of a tenant other than the one that was alone."""
        shares = self._shares
        if shares is None:
            if not self._lines and not any(replica.num_in_flight for replica in self.replicas):
                self._sole = tenant
                return priority
            shares = self._share_out()
        return priority + LOWEST * shares.group(tenant)

    def _share_out(self) -> Shares:
        """A second tenant comes: who waits is no longer alone, and has let nobody else have a share."""
        self._version += 1
        shares = self._shares = Shares(self._terms)
        shares.charge(self._sole, sum(replica.in_flight_s for replica in self.replicas))
        if len(self._empty) < LAST:
            self._empty += _lines(self._part, LAST - LOWEST)
        for lines in self._lines.values():
            lines[:0] = _lines(self._part, LAST - LOWEST)
            for line in lines:
                for ticket in line:
                    ticket.rank += LAST - LOWEST
                    shares.charge(ticket.tenant, ticket.cost_s)
        self._sole = NOBODY
        return shares

    def _is_owed(self, rank: int) -> bool:
        """Whether that is of a tenant that has had less than its share, while others have work here."""
        return self._shares is not None and rank <= LAST - LOWEST

    def _may_fly(self, rank: int) -> float:
        """Of the bound, that may be in flight."""
        if not self._is_owed(rank):
            return 1.0
        return FLY_NONE if rank <= LOWEST else FLY_LITTLE

    def _settle(self, ticket: Ticket, *, is_done: bool) -> None:
        """It is no longer here."""
        shares = self._shares
        if shares is not None and ticket.is_open:
            if is_done:
                shares.did(ticket.cost_s)
            else:
                shares.give_back(ticket.tenant, ticket.cost_s)
            if not self._lines and shares.num_active <= 1:
                self._shares, self._sole = None, shares.sole() if shares.num_active else ticket.tenant
                self._empty = _lines(self._part)
        ticket.is_open = False

    # -- between models -----------------------------------------------------------------------------------------------

    def _is_held(self, service: Service) -> bool:
        turns = self._turns
        return turns is not None and turns.is_held(service.full.model)

    def _gathering(self, now: float, service: Service, rows: float) -> Replica | None:
        """Where an execution of it was sent that has room for so many rows more: held or not, it is sent whole."""
        if not service.full.gathers:
            return None
        return next((it for it in self._serving(now, service) if it.gathers(now, service, rows)), None)

    def _look(self, now: float, turns: Turns, firsts: Sequence[Ticket]) -> None:
        """Who is held now, and how fast lines move."""
        # Where it is served by some of the servers, all of these need not wait for it.
        waiting = {first.service.full.model for first in firsts if not first.service.without}
        if turns.is_shared:
            waiting |= self._queued()
        turns.look(now, waiting)
        for first in firsts:
            service, lines = first.service, self._lines[first.service.full]
            part = self._part * turns.time_ratio(now, service.full.model, service.correction.factor)
            if abs(part - lines[0].share) > SAME_RATIO * part:
                for line in lines:
                    line.reshare(part)

    def _queued(self) -> set[str]:
        """Models that have work from here on every server, and waited there lately: with that of others, whose lines nobody sees here."""
        up = [replica for replica in self.replicas if replica.is_up]
        each = [{full.model for full in replica.flights if full.model in replica.queued} for replica in up]
        return set.intersection(*each) if each else set()

    def _meet(self, model: str) -> None:
        """Something of it was sent, and not of the one that had work here."""
        others = [full for replica in self.replicas for full in replica.flights if full.model != model]
        if others:
            self._turns, self._model = Turns(self._model_terms), NOBODY
        else:
            self._model = model

    def _part_of(self, service: Service) -> float:
        """Of a cost, that its lines take."""
        return self._part if self._turns is None else self._lines_of(service)[0].share

    # -- inside -------------------------------------------------------------------------------------------------------

    def _take_out(self, ticket: Ticket) -> None:
        """Of its line, if it waits."""
        if ticket.in_line:
            self._version += 1
            lines = self._lines[ticket.service.full]
            lines[ticket.rank - 1].remove(ticket)
            if _first(lines) is None:
                del self._lines[ticket.service.full]

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
        """One per rank, to look at."""
        return self._lines.get(service.full, self._empty)

    def _firsts(self) -> list[Ticket]:
        """The next of each variant, the most urgent first: instances are a variant's own, so that nobody waits for those of another."""
        firsts = [first for lines in self._lines.values() if (first := _first(lines)) is not None]
        if len(firsts) > 1:
            firsts.sort(key=lambda ticket: (ticket.rank, ticket.due))
        return firsts

    def _ahead_s(self, service: Service, rank: int) -> float:
        """Costs of all who wait in the line of this rank and above."""
        ahead_s = 0.0
        for line in self._lines.get(service.full, ())[:rank]:
            ahead_s += line.total_s
        return ahead_s

    def _above_s(self, service: Service, rank: int) -> float:
        """The same, of the lines above it."""
        return self._ahead_s(service, rank - 1) if rank > HIGHEST and self._lines else 0.0

    def _start(self, now: float, service: Service, above_s: float) -> float:
        """When a line begins to be done: after all of its variant that is in flight, and the lines above, whose costs are `above_s`."""
        left_s, full, servers = 0.0, service.full, self._serving(now, service)
        for replica in servers:
            flights = replica.flights  # no call: asked of every server
            if full in flights:
                free_at = flights[full].free_at
                if free_at > now:
                    left_s += free_at - now
        if self._turns is not None:
            left_s += self._turns.delay_s(full.model)
        return now + above_s * self._part_of(service) + left_s / (len(servers) or 1)

    def _tail_s(self, service: Service, rows: float, cost_s: float, rank: int) -> float:
        """What its execution takes beyond its share of the pool's work, and what all are to be early; in a queue executions are full."""
        return service.careful_full_s(rows) - cost_s * self._part_of(service) + self._early.seconds[rank - 1]

    def _learn_early(self, now: float, ticket: Ticket, ready: float) -> None:
        """By what is seen when they are sent and when they are answered."""
        largest_s = ticket.service.seconds(ticket.service.max_batch)
        self._early.saw(now, ticket.rank - 1, largest_s, is_late=ready > ticket.deadline)

    def _alone_s(self, service: Service, rows: float) -> float:
        """From its start to its end on a server that rests, where a wrong correction does not count."""
        return min(service.careful_seconds(rows), service.curve.seconds(rows))

    def _done(self, now: float, service: Service, rows: float, replica: Replica, *, is_bold: bool = False) -> float:
        """When it would be done there if it were sent now. `is_bold`: as likely earlier as later."""
        if replica.num_in_flight == 0:
            return now + self._alone_s(service, rows)
        return replica.done(now, service, rows, is_bold=is_bold)

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

    def _soonest(self, now: float, service: Service, rows: float, may_fly: float) -> Replica | None:
        """A server that rests, or else of those with room the one that is free first."""
        least, first = inf, None
        for replica in self._serving(now, service):
            if replica.num_in_flight == 0:
                return replica
            free_at = replica.free_at
            if free_at < now:  # `free_again`, without a call for every server
                free_at = now + (now - free_at)
            if free_at < least and replica.has_room(service, rows, may_fly=may_fly):
                least, first = free_at, replica
        return first or self._on_trial(now, service, rows)

    def _send(self, now: float, ticket: Ticket, replica: Replica, *, is_new: bool = False) -> None:
        """Books it there, unless its time would be over even if all goes as fast as can be believed.

        `is_new`: it was let in a moment ago, by what is in flight, so that this need not be looked at again.
        """
        service, rows = ticket.service, ticket.rows
        starts = now if is_new else replica.free_of(service, now)
        if starts + min(service.seconds(rows), service.curve.seconds(rows)) > ticket.deadline + ROUNDING_S:
            return
        ticket.sent = now
        ticket.book(now, replica)
        full = service.full
        if self._turns is not None:
            if full.gathers:
                ticket.charged_s, lead_s = _grown_s(ticket), 0.0
            else:
                ticket.charged_s = rows / full.rate_rows_per_s
                lead_s = full.flight_s + BREAKS * service.curve.seconds(1)
            self._turns.sent(full.model, ticket.charged_s, lead_s, full.flight_s)
        elif full.model != self._model:
            self._meet(full.model)

    def _best(self, now: float, service: Service, rows: float, may_fly: float = 1.0) -> Replica | None:
        """Of the servers with room the one that will be done first; of idle ones the fastest."""
        best, least = None, inf
        for replica in self._serving(now, service):
            if replica.num_in_flight == 0:
                if best is None or best.num_in_flight or replica.late_ratio < best.late_ratio:
                    best, least = replica, -inf
                continue
            free_at = replica.free_again(now)
            if free_at < least and replica.has_room(service, rows, may_fly=may_fly):
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


def _lines(share: float, number: int = LOWEST) -> list[Line]:
    """One for each rank."""
    return [Line(share) for _ in range(number)]


def _first(lines: Sequence[Line]) -> Ticket | None:
    """Of the best rank."""
    for line in lines:
        if line.num_waiting:
            return line.first
    return None


def _time(now: float, turns: Turns, ticket: Ticket, replica: Replica) -> None:
    """With the first answer of an execution it is known how long that took, and whether another model had work there meanwhile."""
    execution, full = ticket.execution, ticket.service.full
    is_beside = any(other.model != full.model for other in replica.flights)
    if is_beside:
        replica.mixed_at = now
    if execution is None or execution.ends is None or not execution.began:
        return
    if is_beside or execution.began > replica.mixed_at:
        turns.took(
            full.model, (now - execution.began) / ticket.service.curve.seconds(execution.rows), is_beside=is_beside
        )
    execution.began = 0.0


def _answer(ticket: Ticket, replica: Replica) -> None:
    """What its model was charged for it is to be compared with what the server tells."""
    if ticket.charged_s:
        model = ticket.service.full.model
        replica.charged_s[model] = replica.charged_s.get(model, 0.0) + ticket.charged_s


def _grown_s(ticket: Ticket) -> float:
    """By which what it is part of takes longer, by its curve."""
    execution, curve = ticket.execution, ticket.service.curve
    assert execution is not None, "it was never sent"
    whole_s = curve.seconds(execution.rows)
    return whole_s if execution.num == 1 else whole_s - curve.seconds(execution.rows - ticket.rows)


def _server(ticket: Ticket) -> Replica:
    assert ticket.replica is not None, "it was never sent"
    return ticket.replica
