"""What a gateway knows of one server: what it sent there, when that will be done, and how much more may be sent.

How much: of each variant two executions of every instance to begin with, so that the next one is there when one ends. Where answers
take longer than that work can, others work on the server too, and the bound falls to one execution, so that what waits waits in the
gateways. Rules: the bound goes by the bare curve; by corrected times it would grow with the very queue that it is to prevent. And each
variant has its own: its instances are its own, and the rows of another would fill a bound that they have nothing to do with.
"""

from __future__ import annotations

from serving.scheduling.outliers import WELL, Health, ejected
from serving.scheduling.prediction import Full, Service

LATE_TIMES = (
    1.25  # what full flight takes by the curve: above, somebody else's work is before ours; a guess, not measured
)
SHRINK, GROW = 0.9, 0.05  # of the bound, for each round of answers that was late or not; a guess, not measured
LEAST_FILL = 0.5  # one execution on each instance: less would starve a GPU
FAILED_TIMES = 10.0  # as long as it should have taken: what an answer counts for that is the server's own error; a guess, not measured
LATENCY_WEIGHT = 0.1  # of the newest answer, for telling slow servers from busy ones; a guess, not measured


class Flight:
    """What one variant has in flight on a server."""

    __slots__ = ("num", "rows")

    def __init__(self) -> None:
        self.num = 0
        self.rows = 0.0


class Replica:
    """One server. `free_at`: when all that was sent from here is done. `fill`: the share of first bounds that is used."""

    __slots__ = (
        "epoch",
        "fill",
        "flight_s",
        "flights",
        "free_at",
        "health",
        "in_flight",
        "in_flight_s",
        "is_up",
        "late_ratio",
        "name",
        "num_in_flight",
        "num_timed",
        "round_flight_s",
        "round_ratio",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.health: Health = WELL
        self.epoch = 0  # of bookings: those of an earlier one were given up
        self.fill = 1.0
        self.free_at = 0.0
        self.flights: dict[Full, Flight] = {}
        self.flight_s = 0.0  # what full flight takes of the variants that have something in flight, by their curves
        self.in_flight = 0.0  # rows
        self.in_flight_s = 0.0  # their costs
        self.num_in_flight = 0
        self.round_ratio = 0.0  # of first bounds, answered since `fill` was last looked at
        self.round_flight_s = 0.0  # the largest `flight_s` since then
        self.forget_times()

    @property
    def is_on_trial(self) -> bool:
        """One request at a time, until it has proven itself."""
        return self.health.num_trials_left > 0

    def sent(self, now: float, service: Service, rows: float, cost_s: float) -> float:
        """Books it and returns how long it should take: what its answer is compared with.

        Executions are shared, so all that is in flight takes its costs, its own among them, and no less than its own execution.
        """
        wait_s = self.free_at - now if self.free_at > now else 0.0
        flight = self.flights.get(service.full)
        if flight is None:
            flight = self.flights[service.full] = Flight()
            self.flight_s += service.full.flight_s
            if self.flight_s > self.round_flight_s:
                self.round_flight_s = self.flight_s
        execution_s = service.seconds(service.among(rows, flight.rows))
        flight.num += 1
        flight.rows += rows
        until_free_s = wait_s + cost_s
        self.free_at = now + until_free_s
        self.in_flight += rows
        self.in_flight_s += cost_s
        self.num_in_flight += 1
        return until_free_s if until_free_s > execution_s else execution_s

    def rows_of(self, service: Service) -> float:
        """In flight, of this variant."""
        flight = self.flights.get(service.full)
        return 0.0 if flight is None else flight.rows

    def has_room(self, service: Service, rows: float, *, is_proven: bool = False) -> bool:
        """Where something is in flight: whether so many rows may be, too. More than the bound go where none of their variant are.

        `is_proven`: as if it were not on trial.
        """
        if self.health.num_trials_left > 0 and not is_proven:
            return False
        flight = self.flights.get(service.full)
        return flight is None or flight.rows + rows <= self.fill * service.first_bound

    def ended(self, now: float, service: Service, rows: float, cost_s: float) -> None:
        """Answered or lost: what is left begins now."""
        self.num_in_flight -= 1
        if self.num_in_flight <= 0:
            self._empty()
        else:
            self.in_flight -= rows
            self.in_flight_s -= cost_s
            flight = self.flights[service.full]
            flight.num -= 1
            flight.rows -= rows
            if flight.num == 0:
                del self.flights[service.full]
                self.flight_s -= service.full.flight_s
        self.free_at = now + self.in_flight_s

    def give_up(self, now: float) -> None:
        """It is left out: what is in flight may be stuck there, and must not stand in the way of its trial."""
        self._empty()
        self.epoch += 1
        self.free_at = now
        self.forget_times()

    def fell_silent(self, now: float) -> None:
        """It answers nothing: when it does again it has to prove itself."""
        self.health = ejected(self.health, now)
        self.give_up(now)

    def _empty(self) -> None:
        self.num_in_flight, self.in_flight, self.in_flight_s, self.flight_s = 0, 0.0, 0.0, 0.0
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

    def learn(self, service: Service, rows: float, actual_s: float) -> None:
        """To be told before `ended`."""
        self.round_ratio += rows / service.first_bound
        if self.round_ratio < 1.0:
            return
        full_s, self.round_ratio, self.round_flight_s = self.round_flight_s, 0.0, self.flight_s
        if actual_s > LATE_TIMES * max(full_s, service.curve.seconds(rows)):
            self.fill = max(LEAST_FILL, self.fill * SHRINK)
        else:
            self.fill = min(1.0, self.fill + GROW)
