"""Which of the models that share a pool's servers is held back, so that each gets its share of the device whatever is sent to the others?

A device divides itself by instances, or by executions however long they are, and never by shares. So each model is charged for what it
sends, in seconds of executions, by its weight (start-time fair queueing), and one that is ahead of a model that waits by some executions
is held back until that one has caught up. By some, because a model that was held begins anew with an execution that is nearly empty.
Rules: nobody waits for a model whose executions are not slowed by others', since the device has room for both, nor for one of which
nothing is sent although nobody holds it; of those that wait one is never held; what a model did not ask for it has no claim to later; and
a look costs by the models that have work, not by all that ever had. Where several gateways send to a server its own counts are the truth:
none of them sees which executions ran beside others' requests, nor with whose they were put together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import NamedTuple

from serving.scheduling.prediction import Service
from serving.scheduling.shares import Term, Terms, shares_of

# Executions of one row, that it may be ahead, too, where nothing is gathered: more wastes less in breaks, and delays others more; a
# guess, simulated.
BREAKS = 1.0
SLOWED_TIMES = (
    1.2  # as long as alone: whose executions take less beside others is not slowed by them; a guess, not measured
)
PACE_WEIGHT = 0.1  # of the newest execution; a guess, not measured
USE_WEIGHT = 0.5  # of the newest look at what a server did; a guess, simulated
MOST_FIRST_PACE = 2.0  # of a first execution, which may take a hundred times as long as all others (guess, simulated)
QUEUE_RATIO = 0.75  # of a full execution's rows; a guess, simulated
LEAST_BESIDE_RATIO = (
    0.1  # of the time, in which others had executions: less tells nothing of how these slow it; a guess, simulated
)
APART_S = 1.0  # without requests of other gateways; then what is seen here is the truth again; a guess, not simulated
STUCK_S, STUCK_TIMES = (
    1.0,
    4.0,
)  # at least, and of what all may have in flight: who waits longer and sends nothing is stuck; guesses
BINDS_S = 1.0  # after somebody was held, for which lines move by shares and not by what was learnt; a guess, simulated


class Use(NamedTuple):
    """What a server did of one model, for all gateways.

    `cost_s`: as it is charged for; None where a row's cost is not known. `curve_s` and `took_s`: of executions, by the curve and really.
    """

    cost_s: float | None
    curve_s: float
    took_s: float

    def with_another(self, other: Use) -> Use:
        """Of another of its variants."""
        cost_s = None if self.cost_s is None or other.cost_s is None else self.cost_s + other.cost_s
        return Use(cost_s, self.curve_s + other.curve_s, self.took_s + other.took_s)


def use_of(
    service: Service, executions: Mapping[int, int] | Mapping[float, int], took_s: float, *, is_alike: bool = True
) -> Use:
    """Of executions by their rows, which took so long together. `is_alike`: a row of a tensor costs what a row of the curve does."""
    curve_s = sum([num * service.curve.seconds(rows) for rows, num in executions.items()])
    if not is_alike:
        return Use(None, 0.0, took_s)
    full = service.full
    rows = sum([rows * num for rows, num in executions.items()])
    return Use(curve_s if full.gathers else rows / full.rate_rows_per_s, curve_s, took_s)


def is_queue(service: Service, rows: float) -> bool:
    """Whether so many that wait on a server on average are more than wait for a fuller execution, or for the one that runs."""
    return rows >= QUEUE_RATIO * service.full.batch


class _Model:
    """`tag`: where what it sent ends, in seconds for each unit of share. Paces: of executions, as a multiple of the curve's.

    `moved`: when it last sent something, was held or had nothing to send, as far as a look showed.
    """

    __slots__ = (
        "alone_pace",
        "beside_pace",
        "delay_s",
        "flight_s",
        "has_run",
        "has_sent",
        "is_held",
        "is_waiting",
        "lead_s",
        "moved",
        "share",
        "tag",
        "term",
        "waited",
    )

    def __init__(self, term: Term) -> None:
        self.term = term
        self.share = 0.0
        self.tag = 0.0
        self.lead_s = 0.0  # seconds of executions, that it may be ahead
        self.flight_s = 0.0  # likewise, that it may have in flight
        self.delay_s = 0.0  # seconds of a server, by which its line may be late beside its share
        self.is_waiting = self.is_held = False
        self.has_sent = True  # since the last look
        self.moved = 0.0
        self.waited = -inf  # last
        self.alone_pace, self.beside_pace = 1.0, inf
        self.has_run = False  # alone

    def counted(self, pace: float) -> float:
        """What an execution alone counts as: the first one seen at no more than MOST_FIRST_PACE, or it would be charged for long."""
        has_run, self.has_run = self.has_run, True
        return pace if has_run else min(pace, MOST_FIRST_PACE)

    @property
    def is_slowed(self) -> bool:
        """As long as nobody knows, it is."""
        return self.beside_pace > SLOWED_TIMES * self.alone_pace


class Turns:
    """Of one pool, where several models have work."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._models: dict[str, _Model] = {}
        self._here: dict[str, _Model] = {}  # of these, that wait, are ahead, or waited a moment ago
        self._virtual = 0.0
        self._looked = -inf
        self._num_waiting = 0
        self._binds_until = -inf
        self._share = 0.0  # of all that waited within that time
        self.holds = False  # somebody
        self.is_shared = False  # by several gateways, until none was seen for a while
        self._apart_s = 0.0  # since others were seen

    def use(self, terms: Terms) -> None:
        """From now on."""
        self._terms = terms
        for name, model in self._models.items():
            model.term = terms.of(name)
        self._share_out()

    def is_held(self, name: str) -> bool:
        model = self._models.get(name)
        return model is not None and model.is_held

    def delay_s(self, name: str) -> float:
        """Seconds of a server by which its line may be late beside its share: until it is not held any more, or another one is."""
        model = self._models.get(name)
        return 0.0 if model is None else model.delay_s

    def sent(self, name: str, cost_s: float, lead_s: float, flight_s: float) -> None:
        """So many seconds of executions, by its curve. `lead_s`: that it may be ahead; `flight_s`: that it may have in flight by itself."""
        model = self._enter(name)
        model.has_sent = True
        model.lead_s, model.flight_s = lead_s, flight_s
        start = max(model.tag, self._virtual)
        if self._num_waiting == model.is_waiting:  # nobody else has a claim
            self._virtual = start
        model.tag = start + cost_s * model.alone_pace / model.share

    def took(self, name: str, pace: float, *, is_beside: bool) -> None:
        """An execution, as a multiple of its curve's; `is_beside`: while others had work on the server."""
        if self.is_shared:
            return
        model = self._models.get(name) or self._enter(name)
        if not is_beside:
            model.alone_pace += PACE_WEIGHT * (model.counted(pace) - model.alone_pace)
        elif model.beside_pace == inf:
            model.beside_pace = pace
        else:
            model.beside_pace += PACE_WEIGHT * (pace - model.beside_pace)

    def did(self, uses: Mapping[str, Use], charged_s: Mapping[str, float], own_ratio: float, lasting_s: float) -> None:
        """What a server that several gateways share did in `lasting_s`, by model, of which so much was sent from here.

        A model is charged for our part of it in place of `charged_s`, which it was for what was answered from there meanwhile.
        """
        if not self.is_shared:  # what was learnt before others were seen may be theirs
            self.is_shared = True
            for model in self._models.values():
                model.alone_pace, model.beside_pace = 1.0, inf
        busy_s = sum([use.took_s for use in uses.values()])
        for name, use in uses.items():
            if (model_here := self._here.get(name)) is None:
                continue
            if use.cost_s is not None:
                more_s = use.cost_s * own_ratio - charged_s.get(name, 0.0)
                model_here.tag += more_s * model_here.alone_pace / model_here.share
            if use.curve_s:
                _learn(model_here, use.took_s / use.curve_s, min(1.0, (busy_s - use.took_s) / lasting_s))
        tags = [model.tag for model in self._here.values() if model.is_waiting]
        if tags:
            self._virtual = min(tags)

    def meet(self, others: bool, lasting_s: float) -> None:
        """Whether any server answered requests of other gateways, too, in `lasting_s`."""
        self._apart_s = 0.0 if others else self._apart_s + lasting_s
        if self._apart_s >= APART_S:
            self.is_shared = False

    def look(self, now: float, waiting: Collection[str]) -> None:
        """These wait now: who is held?"""
        for name in waiting:
            self._enter(name)
        stuck_s = max(STUCK_S, STUCK_TIMES * sum([model.flight_s for model in self._here.values()]))
        is_first = now - self._looked > STUCK_S  # meanwhile nobody waited
        self._looked = now
        here = []
        for name, model in self._here.items():
            is_here = name in waiting
            if model.has_sent or model.is_held or not is_here or is_first:
                model.has_sent, model.moved = False, now
            if not is_here or now - model.moved > stuck_s:
                model.is_waiting = False
                continue
            if not model.is_waiting:
                model.is_waiting = True
                model.tag = max(model.tag, self._virtual)
            model.waited = now
            here.append(model)
        self._num_waiting = len(here)
        if here:
            self._virtual = max(self._virtual, min([model.tag for model in here]))
        self._forget(now, waiting)
        claiming = sorted([model for model in here if model.is_slowed], key=_tag)
        all_share = sum([model.share for model in claiming])
        self.holds = False
        for model in self._here.values():
            first = next((other for other in claiming if other is not model), None)
            ahead = -inf if first is None else model.tag - first.tag
            model.is_held = ahead * model.share > (0.0 if model.is_held else model.lead_s)
            model.delay_s = 0.0
            if model.is_held:
                self.holds = True
                model.delay_s = ahead * (all_share - (model.share if model.is_waiting and model.is_slowed else 0.0))
        if self.holds:
            self._binds_until = now + BINDS_S
        if now < self._binds_until:
            self._share = sum([model.share for model in self._here.values() if model.waited > now - BINDS_S])
            leads = sorted([model.lead_s for model in here if not model.is_held], reverse=True)[:2]
            for model in claiming:
                if not model.is_held and len(leads) > 1:
                    model.delay_s = leads[1] if model.lead_s == leads[0] else leads[0]

    def time_ratio(self, now: float, name: str, factor: float) -> float:
        """How long a line of it takes, as a multiple of what its costs say, which are corrected by `factor`.

        While shares decide it gets its own of the device, however slow its executions were beside the others'.
        """
        model = self._models.get(name)
        if now >= self._binds_until or model is None:
            return 1.0
        is_counted = model.waited > now - BINDS_S
        return (self._share + (0.0 if is_counted else model.share)) / model.share * model.alone_pace / factor

    def _enter(self, name: str) -> _Model:
        model = self._here.get(name)
        if model is None:
            model = self._models.get(name)
            if model is None:
                model = self._models[name] = _Model(self._terms.of(name))
            self._here[name] = model
            self._share_out()
        return model

    def _forget(self, now: float, waiting: Collection[str]) -> None:
        """Who has no work: of what is reserved and of weights the others have their parts."""
        gone = [
            name
            for name, model in self._here.items()
            if model.tag <= self._virtual and model.waited <= now - BINDS_S and name not in waiting
        ]
        for name in gone:
            model = self._here.pop(name)
            model.is_held, model.delay_s = False, 0.0
        if gone:
            self._share_out()

    def _share_out(self) -> None:
        """Among those that are here. What one has sent counts by the share that it has now."""
        models = list(self._here.values())
        for model, share in zip(models, shares_of([model.term for model in models]), strict=True):
            if model.share and model.share != share:
                model.tag = self._virtual + (model.tag - self._virtual) * model.share / share
            model.share = share


def _learn(model: _Model, pace: float, beside_ratio: float) -> None:
    """From executions of which others had some beside them in such a part of the time."""
    if beside_ratio == 0.0:
        model.alone_pace += USE_WEIGHT * (model.counted(pace) - model.alone_pace)
    elif beside_ratio >= LEAST_BESIDE_RATIO:
        beside_pace = model.alone_pace + (pace - model.alone_pace) / beside_ratio
        weight = 1.0 if model.beside_pace == inf else USE_WEIGHT
        model.beside_pace = (
            beside_pace if weight == 1.0 else model.beside_pace + weight * (beside_pace - model.beside_pace)
        )


def _tag(model: _Model) -> float:
    return model.tag
