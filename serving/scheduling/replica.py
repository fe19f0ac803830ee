"""What a gateway knows of one server: what it sent there, when that will be done, and how much more may be sent.

How much: of each variant two executions of every instance, so that the next is full and there when one ends. Only where others work on the
server too, and answers take longer than that work can, the bound falls to one execution, so that what waits waits in the gateways. Rules:
whether others do is known from the server's own count (`compare`) and never guessed from slow answers: a bound that shrinks without them
makes executions small, and everybody later still. And each variant has its own: its instances are its own, and the rows of another would
fill a bound that they have nothing to do with.
"""

from __future__ import annotations

from typing import Any

from serving.scheduling.executions import Execution, Executions
from serving.scheduling.outliers import WELL, Health, ejected
from serving.scheduling.prediction import Full, Service

LATE_TIMES = 1.25  # what full flight takes: above, others' work is before ours; a guess, not measured
SHRINK, GROW = 0.9, 0.05  # of the bound, for each round of answers that was late or not; a guess, not measured
LEAST_FILL = 0.5  # one execution on each instance: less would starve a GPU
OTHERS_RATIO = (
    0.1  # of what the server did, that it did for others: less may be requests that measure; a guess, not measured
)
ENOUGH_TIMES = 4  # what is in flight: so many requests make a comparison, in which that is the error
FAILED_TIMES = 10.0  # as long as it should have taken: what an answer counts for that is the server's own error; a guess, not measured
LATENCY_WEIGHT = 0.1  # of the newest answer, for telling slow servers from busy ones; a guess, not measured


class Flight:
    """What one variant has in flight on a server. `free_at`: when all of that is done.

    `rows`: of each request at most those of a full execution: two that are larger keep an instance at work, as two full ones do.
    """

    __slots__ = ("cost_s", "executions", "free_at", "num", "rows")

    def __init__(self) -> None:
        self.num = 0
        self.rows = 0.0
        self.cost_s = 0.0
        self.free_at = 0.0
        self.executions = Executions()


class Replica:
    """One server. `free_at`: when all that was sent from here is done. `fill`: the share of the bounds that is used."""

    __slots__ = (
        "_compared",
        "_is_judged",
        "_round",
        "charged_s",
        "epoch",
        "fill",
        "flights",
        "free_at",
        "health",
        "in_flight",
        "in_flight_s",
        "is_shared",
        "is_up",
        "late_ratio",
        "mixed_at",
        "name",
        "num_answered",
        "num_in_flight",
        "num_timed",
        "others_ratio",
        "pace",
        "queued",
        "version",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.health: Health = WELL
        self.epoch = 0  # of bookings: those of an earlier one were given up
        self.free_at = 0.0
        self.flights: dict[Full, Flight] = {}
        self.in_flight = 0.0  # rows
        self.in_flight_s = 0.0  # their costs
        self.num_in_flight = 0
        self.fill = 1.0
        self.pace = 1.0  # what executions really take, as a multiple of their curves
        self.is_shared = False  # others send requests there, too
        self.mixed_at = 0.0  # when several models had work here last
        self.charged_s: dict[str, float] = {}  # to models, for what was answered since its work was told
        self.queued: frozenset[str] = frozenset()  # models of which something waited there lately, of whoever sent it
        self.others_ratio = 0.0  # of what it did lately, that it did for them
        self.num_answered = 0  # requests
        self._compared: tuple[int, int] | None = (
            None  # requests it had answered for all and for us when that was compared last
        )
        self._is_judged = False  # `is_shared` says what was seen
        self._round = 0.0  # of the bounds, answered since `fill` was last looked at
        self.version = 0  # of what is in flight: another one after each booking and each end
        self.forget_times()

    @property
    def is_on_trial(self) -> bool:
        """One request at a time, until it has proven itself."""
        return self.health.num_trials_left > 0

    def sent(self, now: float, service: Service, rows: float, cost_s: float) -> tuple[Execution, float]:
        """Books it. Returns the execution that it will be part of, and how long it should take: what its answer is compared with.

        All that is in flight of its variant takes its costs, its own among them, and it is not done before its own execution ends.
        """
        flight = self.flights.get(service.full)
        if flight is None:
            flight = self.flights[service.full] = Flight()
        execution, ends = flight.executions.join(now, service, rows)
        flight.num += 1
        flight.rows += min(rows, service.batch)
        flight.cost_s += cost_s
        flight.free_at = max(now, flight.free_at) + cost_s
        self.free_at = max(now, self.free_at) + cost_s
        self.in_flight += rows
        self.in_flight_s += cost_s
        self.num_in_flight += 1
        self.version += 1
        return execution, max(flight.free_at, ends) - now

    def done(self, now: float, service: Service, rows: float, *, is_bold: bool = False) -> float:
        """When it would be done here, where something is in flight, if it were sent now; `is_bold`: without room for errors."""
        flight = self.flights.get(service.full)
        if flight is None:
            return now + service.careful_seconds(rows)
        begins, together = flight.executions.begins(now, service, rows)
        own_s = service.seconds(together) if is_bold else service.careful_seconds(together)
        return max(begins + own_s, flight.free_at + service.cost_s(rows))

    def least_done(self, now: float, service: Service, rows: float) -> float:
        """The earliest `done` of so many rows or more."""
        flight = self.flights.get(service.full)
        if flight is None:
            return now + service.careful_seconds(rows)
        return max(flight.executions.least_end(now, service, rows), flight.free_at + service.cost_s(rows))

    def free_of(self, service: Service, now: float) -> float:
        """When all that this variant has in flight here is done."""
        flight = self.flights.get(service.full)
        return now if flight is None else max(now, flight.free_at)

    def gathers(self, now: float, service: Service, rows: float) -> bool:
        """Whether so many rows more would fill an execution that was sent and has not begun, to no larger one than pays."""
        flight = self.flights.get(service.full)
        if flight is None or not self.has_room(service, rows):
            return False
        _, together = flight.executions.begins(now, service, rows)
        return rows < together <= service.batch

    def has_room(self, service: Service, rows: float, *, is_proven: bool = False, may_fly: float = 1.0) -> bool:
        """Where something is in flight: whether so many rows may be, too, a request counting for one full execution at most.

        `is_proven`: as if it were not on trial. `may_fly`: of the bound, how much may be in flight.
        """
        if self.health.num_trials_left > 0 and not is_proven:
            return False
        flight = self.flights.get(service.full)
        return flight is None or flight.rows + min(rows, service.batch) <= may_fly * self.fill * service.bound

    def ended(self, now: float, service: Service, rows: float, cost_s: float, execution: Execution) -> None:
        """Answered or lost: what is left begins now."""
        self.version += 1
        self.num_in_flight -= 1
        if self.num_in_flight <= 0:
            self._empty()
        else:
            self.in_flight -= rows
            self.in_flight_s -= cost_s
            flight = self.flights[service.full]
            flight.num -= 1
            flight.rows -= min(rows, service.batch)
            flight.cost_s -= cost_s
            flight.free_at = now + flight.cost_s
            flight.executions.left(now, service, execution, rows)
            if flight.num == 0:
                del self.flights[service.full]
        self.free_at = now + self.in_flight_s

    def give_up(self, now: float) -> None:
        """It is left out: what is in flight may be stuck there, and must not stand in the way of its trial."""
        self._empty()
        self.version += 1
        self.epoch += 1
        self.free_at = now
        self.forget_times()

    def fell_silent(self, now: float) -> None:
        """It answers nothing: when it does again it has to prove itself."""
        self.health = ejected(self.health, now)
        self.give_up(now)

    def _empty(self) -> None:
        self.num_in_flight, self.in_flight, self.in_flight_s = 0, 0.0, 0.0
        self.flights.clear()

    def free_again(self, now: float) -> float:
        """`free_at`; what is late already will be as late again."""
        return self.free_at if self.free_at >= now else now + (now - self.free_at)

    def forget_times(self) -> None:
        self.late_ratio = 0.0  # actual latencies to those by the bare curve; one that nobody knows yet is tried first
        self.num_timed = 0

    def time(self, service: Service, predicted_s: float, actual_s: float) -> None:
        """By the bare curve, because what is corrected is learnt from the slow ones too."""
        if predicted_s > 0:
            self._took(service.correction.factor * actual_s / predicted_s)

    def time_failure(self) -> None:
        """It answered with an error of its own, which is no work done fast."""
        self._took(FAILED_TIMES)

    def time_refusal(self) -> None:
        """It answered that the request is wrong: now it is known, but not how fast it is."""
        if self.num_timed == 0:
            self.late_ratio = 1.0

    def _took(self, times: float) -> None:
        self.num_timed += 1
        weight = max(LATENCY_WEIGHT, 1 / self.num_timed)
        self.late_ratio += weight * (times - self.late_ratio)

    def compare(self, num_answered_to_all: int, num_answered_to_us: int, pace: float) -> bool:
        """What the server has answered to all so far by its own count, what of that was ours (`num_answered`) at that moment, and what
        executions took lately as a multiple of their curves. Returns whether `others_ratio` is to be told (`Candidate.share_with`): as long
        as there are others, when they have gone, and of a new server, which may stand for one where there were some.
        """
        before, was_shared = self._compared, self.is_shared
        if before is None:  # what it did before it was looked at first tells nothing of now
            self._compared = num_answered_to_all, num_answered_to_us
            return False
        to_all, to_us = num_answered_to_all - before[0], num_answered_to_us - before[1]
        if 0 <= to_all < ENOUGH_TIMES * max(1, self.num_in_flight):
            return was_shared
        self._compared = num_answered_to_all, num_answered_to_us
        if to_all > 0:  # otherwise it began anew
            self.is_shared = to_all - to_us - self.num_in_flight > OTHERS_RATIO * to_all
            self.others_ratio = 1.0 - to_us / to_all if self.is_shared else 0.0
            self.pace = max(1.0, pace)
            was_shared, self._is_judged = was_shared or not self._is_judged, True
        return was_shared or self.is_shared

    def learn(self, service: Service, rows: float, actual_s: float) -> None:
        """From an answer, before it has `ended`."""
        self.num_answered += 1
        self._round += min(rows, service.batch) / service.bound
        if self._round < 1.0:
            return
        self._round = 0.0
        own_s = service.curve.seconds(rows)
        flight_s = max(sum(full.flight_s for full in self.flights), own_s if rows <= service.batch else 2 * own_s)
        if self.is_shared and actual_s > LATE_TIMES * self.pace * flight_s:
            self.fill = max(LEAST_FILL, self.fill * SHRINK)
        else:
            self.fill = min(1.0, self.fill + GROW)


class Ticket:
    """A request that was let in. `rank`: of its line, the first is 1.

    `due` is when its share of the work must be done, `deadline` when its answer must be there."""

    __slots__ = (
        "charged_s",
        "cost_s",
        "deadline",
        "due",
        "epoch",
        "execution",
        "in_line",
        "is_open",
        "predicted_s",
        "rank",
        "replica",
        "request",
        "rows",
        "sent",
        "service",
        "tenant",
    )

    def __init__(
        self,
        request: Any,
        service: Service,
        rows: float,
        deadline: float,
        due: float,
        cost_s: float,
        rank: int,
        tenant: str = "",
    ) -> None:
        self.request = request
        self.service = service
        self.rows = rows
        self.deadline = deadline
        self.due = due
        self.cost_s = cost_s
        self.rank = rank
        self.tenant = tenant
        self.is_open = True  # neither done nor gone
        self.in_line = False
        self.replica: Replica | None = None  # where it was sent
        self.epoch = 0  # of that server's bookings
        self.execution: Execution | None = None  # there, that it is thought to be part of
        self.sent = 0.0
        self.predicted_s = 0.0  # from being sent to its answer
        self.charged_s = 0.0  # to its model

    def book(self, now: float, replica: Replica) -> None:
        """On this server, from now on."""
        self.replica, self.epoch = replica, replica.epoch
        self.execution, self.predicted_s = replica.sent(now, self.service, self.rows, self.cost_s)

    def end(self, now: float) -> None:
        """Answered or lost. What its server was left out for counts there no longer."""
        replica, execution = self.replica, self.execution
        if replica is not None and execution is not None and self.epoch == replica.epoch:
            replica.ended(now, self.service, self.rows, self.cost_s, execution)
