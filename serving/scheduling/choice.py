"""Of the pools that may answer this request, which is the cheapest that will be in time?

Takes the decisions that `routing.py` allows, each with the queue of its pool, and never looks beyond them: that is why nothing goes to a
pool outside the plan. A price is that of the device's time for these rows alone, so few rows go to a cheap slow device and many to a dear
fast one. Rule: the same inputs give the same choice; what is to be spread evenly comes in as `turn`, a number in 0..1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from serving.scheduling.admission import DEFAULT, PoolQueue
from serving.scheduling.prediction import Correction, Service, corrected, packed
from serving.scheduling.replica import Ticket

LEFT_WEIGHT = 0.5  # of the newest look at what others do on a server; a guess, not measured
LEAST_LEFT = 0.1  # of a server, that is ours whatever others do there: who asks gets some of it; a guess, not measured
NOTICEABLE = 0.01  # of a time: smaller corrections change no decision worth its cost; a guess, not measured
GOLDEN = 0.6180339887498949  # multiples of it, without their whole part, fill 0..1 evenly whatever their number


class Candidate:
    """One pool that may answer. `share`: of the requests, that may go there now; 0 while it is cold, 1 once it is warm (bridge.py).

    `num_hopeless`: requests that its curve alone made it refuse, however little there was to do; a curve that is wrong shows in nothing
    else, because what is never sent teaches nothing: so it is a reason to measure again.
    """

    __slots__ = ("_believed", "_priced", "name", "num_hopeless", "price_per_s", "queue", "service", "share", "variant")

    service: Service
    _believed: Correction
    _priced: tuple[float, float]

    def __init__(
        self, queue: PoolQueue, service: Service, price_per_hour: float, *, variant: str = "", share: float = 1.0
    ) -> None:
        self.queue = queue
        self.name = queue.name
        self.variant = variant
        self.use(service)
        self.price_per_s = price_per_hour / 3600
        self.share = share

    def use(self, service: Service) -> None:
        """From now on, with what it believes."""
        self.service = service
        self._believed = service.correction
        self.num_hopeless = 0
        self._priced = 0.0, 0.0

    def price(self, rows: float) -> float:
        """Of the seconds of its server that so many rows take by themselves."""
        priced, device_s = self._priced  # nearly all requests have as many rows as the one before
        if rows != priced:
            device_s = self.service.device_s(rows)  # which no correction changes
            self._priced = rows, device_s
        return self.price_per_s * device_s

    def learn(self, ticket: Ticket, actual_s: float) -> None:
        """From an answer that took so long at its server. What changes little is collected until it changes something."""
        believed = corrected(self._believed, ticket.predicted_s, actual_s, ticket.service.correction)
        execution = ticket.execution
        if execution is not None and execution.ends is not None:
            rows = execution.closed_rows or execution.rows
            has_room = not execution.closed_rows and rows + ticket.rows <= self.service.max_batch
            believed = packed(believed, 1.0 if has_room else self.service.packed_ratio(rows))
        self._believe(believed)

    def share_with(self, others_rows_per_s: float, pace: float, *, is_alike: bool = True) -> None:
        """One of its servers did so many rows for others lately, and took `pace` times as long as its curve says: the rest is ours.

        `is_alike`: a row of a tensor costs what a row of the curve does, so that `pace` tells of executions and not of longer rows.
        """
        old, service = self._believed, self.service
        others_ratio = others_rows_per_s * pace / (service.full.rate_rows_per_s * service.num_instances)
        left_ratio = max(LEAST_LEFT, 1.0 - others_ratio)
        own_pace = (
            max(1.0, pace) if others_ratio and is_alike else 0.0
        )  # below it, the way there and back is in the curve
        weight = LEFT_WEIGHT / max(1, len(self.queue.replicas))
        if others_ratio and old.left_ratio < 1.0:  # of which something is known
            left_ratio = old.left_ratio + weight * (left_ratio - old.left_ratio)
        if own_pace and old.pace:
            own_pace = old.pace + weight * (own_pace - old.pace)
        self._believe(Correction(old.factor, old.spread, old.packed_ratio, left_ratio, own_pace))

    def _believe(self, believed: Correction) -> None:
        """It is used once it changes decisions."""
        used = self.service.correction
        if (
            max(abs(believed.factor - used.factor), abs(believed.spread - used.spread)) > NOTICEABLE * used.factor
            or abs(believed.packed_ratio - used.packed_ratio) > NOTICEABLE
            or abs(believed.left_ratio - used.left_ratio) > NOTICEABLE
            or abs(believed.pace - used.pace) > NOTICEABLE
        ):
            self.service = self.service.corrected_by(believed)
        self._believed = believed


class Answering(Protocol):
    """A pool, as far as how fast it is goes."""

    @property
    def service(self) -> Service: ...


Pool = TypeVar("Pool", bound=Answering)


def that_take(pools: Sequence[Pool], rows: float) -> Sequence[Pool]:
    """Those that take so many rows at once; all where none does, so that its server says so. To be offered to `choose` and the others here.

    Rows of a tensor, and not what they cost: one that is long may count for several there.
    """
    if rows <= 1 or len(pools) < 2:
        return pools
    return [pool for pool in pools if pool.service.max_batch >= rows] or pools


def able(pools: Sequence[Pool], rows: float, left_s: float) -> Sequence[Pool]:
    """Those that would answer so many rows within that time, had they nothing else to do: the request is demand for them, and no others.

    By the curve alone, so that demand does not jump with what is learnt. One that is asked alone is, whatever it takes.
    """
    return pools if len(pools) < 2 else [pool for pool in pools if pool.service.curve.seconds(rows) <= left_s]


class Chosen(NamedTuple):
    candidate: Candidate
    reason: str  # of the receipt
    finish: float  # as predicted


class Forecast(NamedTuple):
    """What a candidate would do, as it looked when a request was decided on; `finish` None where it has no server."""

    candidate: Candidate
    finish: float | None
    price: float
    share: float


def forecasts(
    now: float,
    candidates: Sequence[Candidate],
    rows: float,
    deadline: float,
    priority: int = DEFAULT,
    *,
    tenant: str = "",
    chosen: Chosen | None = None,
) -> list[Forecast]:
    """Of all of them, including those that `choose` need not ask, the cheapest first; one that would be late as the last in its line.

    `chosen`: what `choose` said at this moment, which is not asked again.
    """
    found: list[Forecast] = []
    for c in _by_price(candidates, rows):
        if chosen is not None and c is chosen.candidate:
            finish: float | None = chosen.finish
        else:
            finish = c.queue.finish(now, c.service, rows, deadline, priority, tenant)
            if finish is None:
                finish = c.queue.finish(now, c.service, rows, inf, priority, tenant)
        found.append(Forecast(c, finish, c.price(rows), c.share))
    return found


def verdicts(
    forecast: Sequence[Forecast], chosen: Candidate | None, deadline: float, turn: float
) -> Iterator[tuple[Forecast, str]]:
    """With what became of each: chosen, dearer, late, no_server, or warming, when it was passed over by its share of the requests."""
    is_dearer = False
    for one in forecast:
        if one.candidate is chosen:
            is_dearer = True
            yield one, "chosen"
        elif one.finish is None:
            yield one, "no_server"
        elif one.share <= turn and one.share < 1.0:
            yield one, "warming"
        elif is_dearer and one.finish <= deadline:
            yield one, "dearer"
        else:
            yield one, "late"


def turn_of(number: int) -> float:
    """The turn of the request with this number: any share of them, evenly spread, lies below that share."""
    return number * GOLDEN % 1.0


def choose(
    now: float,
    candidates: Sequence[Candidate],
    rows: float,
    deadline: float,
    priority: int = DEFAULT,
    *,
    tenant: str = "",
    turn: float = 0.0,
    is_pinned: bool = False,
    is_bridged: bool = False,
) -> Chosen | None:
    """The cheapest in time; of equally cheap ones the first. A pool that warms up is passed over by its share, but not where all others
    refuse; one without a share (0) is left out then too, but for a `turn` below 0, of requests that have nowhere else to go.

    `is_bridged`: beside the candidates there is a pool that nobody has seen yet, because it is cold.
    None: no pool would be in time; `retry_after_s` says when one would.
    """
    ordered = _by_price(candidates, rows)
    passed_over: list[Candidate] = []
    bridges = is_bridged
    for candidate in ordered:
        if candidate.share <= turn and candidate.share < 1.0:
            bridges = True
            if candidate.share > 0.0:
                passed_over.append(candidate)
            continue
        finish = candidate.queue.finish(now, candidate.service, rows, deadline, priority, tenant)
        if finish is not None:
            return Chosen(candidate, _reason(candidate, ordered, bridges, is_pinned), finish)
        if now + candidate.service.curve.seconds(rows) > deadline:
            candidate.num_hopeless += 1
    for candidate in passed_over:
        finish = candidate.queue.finish(now, candidate.service, rows, deadline, priority, tenant)
        if finish is not None:
            return Chosen(candidate, _reason(candidate, ordered, False, is_pinned), finish)
    return None


def may_admit(
    now: float,
    candidates: Sequence[Candidate],
    rows: float,
    deadline: float,
    priority: int = DEFAULT,
    *,
    tenant: str = "",
    turn: float = 0.0,
    is_length_free: bool = False,
) -> bool:
    """Whether `choose` could find one for a request that has so many rows or more, and this deadline or an earlier one.

    `is_length_free`: a row may be as long as several, so that a server may take more than its largest batch.
    """
    for c in _open(candidates, turn):
        most_rows = inf if is_length_free else max(rows, c.service.max_batch)
        if c.queue.may_admit(now, c.service, rows, most_rows, deadline, priority, tenant):
            return True
    return False


def hopeless(candidates: Sequence[Candidate], rows: float, left_s: float, turn: float = 0.0) -> list[Candidate]:
    """Those of which `may_admit` says no by the curve alone: to be counted there."""
    return [c for c in _open(candidates, turn) if c.service.curve.seconds(rows) > left_s]


class Closed:
    """Of a `may_admit` that was False just now, with a deadline of `due_by`: as long as it is so whatever has passed since."""

    __slots__ = ("_due_by", "_seen", "_until")

    def __init__(self, now: float, candidates: Sequence[Candidate], due_by: float) -> None:
        self._due_by = due_by
        self._until = min((c.queue.gets_better_at(now) for c in candidates), default=now)
        self._seen = [(c, c.queue.version, c.service, c.share) for c in candidates]

    def holds(self, now: float, deadline: float) -> bool:
        """For a request with this deadline."""
        if deadline > self._due_by or now >= self._until:
            return False
        for candidate, version, service, share in self._seen:
            if (
                candidate.queue.version != version
                or candidate.service is not service  # what was learnt
                or candidate.share != share
            ):
                return False
        return True


def retry_after_s(
    now: float,
    candidates: Sequence[Candidate],
    rows: float,
    deadline: float,
    priority: int = DEFAULT,
    *,
    tenant: str = "",
    turn: float = 0.0,
) -> float | None:
    """Retry-After: how long until a request like the one that `choose` refused would be let in, if nothing more arrived.

    None if never.
    """
    in_s = deadline - now
    asked = _open(candidates, turn)
    opens = min((c.queue.opens_at(now, c.service, rows, in_s, priority, tenant) for c in asked), default=inf)
    return None if opens == inf else opens - now


def _by_price(candidates: Sequence[Candidate], rows: float) -> Sequence[Candidate]:
    """The cheapest first, equally cheap ones as they stand."""
    if len(candidates) < 2:
        return candidates
    if len(candidates) == 2:  # as most fleets have: sorting takes a twentieth of a decision
        first, second = candidates
        return candidates if first.price(rows) <= second.price(rows) else (second, first)
    return sorted(candidates, key=lambda c: c.price(rows))


def _open(candidates: Sequence[Candidate], turn: float) -> list[Candidate]:
    """Those that get any share."""
    return [candidate for candidate in candidates if candidate.share > 0.0 or turn < 0.0]


def _reason(candidate: Candidate, ordered: Sequence[Candidate], bridges: bool, is_pinned: bool) -> str:
    if is_pinned:
        return "pinned"
    if bridges:
        return "bridged"
    if len(ordered) == 1:
        return "only_pool"
    return "cheapest_in_time" if candidate is ordered[0] else "spill"
