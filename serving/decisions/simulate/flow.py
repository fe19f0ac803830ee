"""What would a fleet of any number of pools cost, by a flow of work instead of requests? For comparing rules of scaling with each other.

Each second's work is told to a rule as gateways would measure it; servers come after their cold starts, and what the ones that are there
cannot do at `max_load_ratio` is not done and charged (`undone_ratio`). The optimum knows all of it beforehand: dynamic programming over all
numbers of servers, so that no rule can cost less but for the seconds within a slot. Rule: no request and no queue; `run.py` has those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.decisions.demand import Demand, Demands
from serving.decisions.fleet import cards, whole
from serving.decisions.prices import HOUR_S
from serving.decisions.simulate.arrivals import Arrivals, num_seconds
from serving.decisions.simulate.outcome import SLOT_S
from serving.decisions.simulate.scenario import Setting
from serving.decisions.sizes import FleetTarget, Sizes, next_fleet, not_lower
from serving.documents.tables import columns
from serving.errors import UserError
from serving.scheduling.bridge import WINDOW_S
from serving.scheduling.choice import able, that_take
from serving.settings import ScalingRules

Floats = NDArray[np.float64]
Flow = Mapping[
    str, Floats
]  # by pool: float64 [seconds], servers that all traffic would keep busy there; inf where it cannot go
MAX_STATES = 300_000  # of the optimum: numbers of servers of all pools; a day of so many takes a minute (a guess)


@dataclass(frozen=True, slots=True)
class FlowOutcome:
    """`cost`: of servers; `undone`: what is charged for work that was not done. `num_changes`: of the pools that come and go."""

    name: str
    cost: float
    undone: float
    undone_ratio: float
    num_wakes: int
    num_changes: int
    hours: Mapping[str, float]
    duration_s: float

    @property
    def charged(self) -> float:
        return self.cost + self.undone

    @property
    def changes_per_hour(self) -> float:
        return self.num_changes * HOUR_S / self.duration_s


Wanted = Callable[[float, Demands], Mapping[str, int]]  # seconds, what gateways would tell -> servers by pool


def by_scaler(sizes: Sizes, rules: ScalingRules, first: Mapping[str, int]) -> Wanted:
    """The scaler's own rule. Nothing goes down before all of a meter's window was seen, as after a start."""
    target = FleetTarget(first)

    def wanted(now: float, demands: Demands) -> Mapping[str, int]:
        nonlocal target
        new = next_fleet(target, now, demands, sizes, rules)
        target = not_lower(target, new) if now < WINDOW_S else new
        return target.replicas

    return wanted


class _Pool:
    """Servers of one pool that are paid for: since when, and from when on they answer."""

    def __init__(self, first: int) -> None:
        self.servers: list[tuple[float, float]] = [(-math.inf, -math.inf)] * first
        self.left: list[float] = []  # until when nodes are paid for whose servers have gone

    def scale(self, now: float, wanted: int, cold_start_s: float, billed_s: float, tail_s: float) -> None:
        while len(self.servers) < wanted:
            self.servers.append((now, now + cold_start_s))
        while len(self.servers) > wanted:
            asked_at, _ = self.servers.pop()
            self.left.append(max(now + tail_s, asked_at + billed_s))

    def num_ready(self, now: float) -> int:
        return sum(ready_at <= now for _, ready_at in self.servers)

    def num_paid(self, now: float) -> int:
        self.left = [until for until in self.left if until > now]
        return len(self.servers) + len(self.left)


def play(
    name: str, flow: Flow, sizes: Sizes, rules: ScalingRules, wanted: Wanted, first: Mapping[str, int]
) -> FlowOutcome:
    """`first`: servers that are there when time begins."""
    supplies = sizes.supplies
    pools = {pool: _Pool(first[pool]) for pool in supplies}
    work = np.stack([flow[pool] for pool in supplies])
    metered = _metered(work)
    number, before = dict(first), dict(first)
    wakes = changes = 0
    paid = dict.fromkeys(supplies, 0)
    ready = np.empty((len(supplies), work.shape[1]))
    for second in range(work.shape[1]):
        now = float(second)
        demands = {
            pool: Demand(
                float(it) if math.isfinite(it) else 0.0,
                0.0,
                pools[pool].num_ready(now),
            )
            for pool, it in zip(supplies, metered[:, second], strict=True)
        }
        number = dict(wanted(now, demands))
        changed = [pool for pool in sizes.coming if number[pool] != before[pool]]
        changes += len(changed)
        wakes += any(number[pool] > before[pool] for pool in changed)
        before = number
        for at, (pool, supply) in enumerate(supplies.items()):
            it = pools[pool]
            it.scale(now, number[pool], supply.cold_start_s, supply.min_billing_s, supply.consolidation_s)
            ready[at, second] = it.num_ready(now)
            paid[pool] += cards(it.num_paid(now), supply)
    undone = _undone(_slots(work), _slots(ready), rules.max_load_ratio)
    least = _slots(work).min(axis=0) / rules.max_load_ratio
    charge = rules.undone_ratio * max(it.price_per_hour for it in supplies.values()) * SLOT_S / HOUR_S
    return FlowOutcome(
        name,
        sum(paid[pool] * supply.price_per_hour for pool, supply in supplies.items()) / HOUR_S,
        float((undone * least).sum() * charge),
        float((undone * least).sum() / max(least.sum(), 1e-12)),
        wakes,
        changes,
        {pool: seconds / HOUR_S for pool, seconds in paid.items()},
        float(work.shape[1]),
    )


def _metered(work: Floats) -> Floats:
    """As the meter of demand has it: an exponential mean over its window."""
    found, mean = np.empty_like(work), np.zeros(len(work))
    share = 1 - math.exp(-1 / WINDOW_S)
    for second in range(work.shape[1]):
        with np.errstate(invalid="ignore"):
            mean = np.where(np.isfinite(work[:, second]), mean + share * (work[:, second] - mean), np.inf)
        found[:, second] = mean
    return found


def _slots(each: Floats) -> Floats:
    """Means [pools, slots] of [pools, seconds]."""
    size = int(SLOT_S)
    whole_slots = each.shape[1] // size
    means: Floats = each[:, : whole_slots * size].reshape(len(each), whole_slots, size).mean(axis=2)
    return means


def _undone(work: Floats, ready: Floats, max_load_ratio: float) -> Floats:
    """Shares [slots] that servers [pools, slots] cannot do."""
    with np.errstate(divide="ignore", invalid="ignore"):
        done = np.where(work > 0, ready * max_load_ratio / work, np.inf).sum(axis=0)
    undone: Floats = np.clip(1.0 - done, 0.0, 1.0)
    return undone


def optimum(flow: Flow, sizes: Sizes, rules: ScalingRules, duration_s: float, first: Mapping[str, int]) -> FlowOutcome:
    """The least that could be charged, with all known beforehand and the servers that are there at `first`.

    Servers are paid for from a cold start before they answer, and none more than the first answers earlier than that.
    """
    supplies = list(sizes.supplies.values())
    work = _slots(np.stack([flow[pool] for pool in sizes.supplies]))
    with np.errstate(invalid="ignore"):
        peaks = np.nanmax(np.where(np.isfinite(work), work, 0.0), axis=1) / rules.max_load_ratio
    most = [
        min(it.max_replicas, max(it.min_replicas, whole(float(peak)), first[name]))
        for (name, it), peak in zip(sizes.supplies.items(), peaks, strict=True)
    ]
    shape = tuple(top - it.min_replicas + 1 for it, top in zip(supplies, most, strict=True))
    if math.prod(shape) > MAX_STATES:
        raise ValueError(f"{math.prod(shape):,} numbers of servers are too many to be weighed (at most {MAX_STATES:,})")
    numbers = [np.arange(it.min_replicas, top + 1) for it, top in zip(supplies, most, strict=True)]
    grid = np.meshgrid(*numbers, indexing="ij")
    paid = [-(-n // it.servers_per_card) for n, it in zip(grid, supplies, strict=True)]
    price = sum(n * it.price_per_hour for n, it in zip(paid, supplies, strict=True)) * SLOT_S / HOUR_S
    starts = [
        it.price_per_hour * (it.cold_start_s + it.consolidation_s) / HOUR_S / it.servers_per_card for it in supplies
    ]
    charge = rules.undone_ratio * max(it.price_per_hour for it in supplies) * SLOT_S / HOUR_S
    began = [n > first[name] for n, name in zip(grid, sizes.supplies, strict=True)]
    best: Floats = np.where(np.logical_or.reduce(began), np.inf, 0.0)
    for slot in range(work.shape[1]):
        for axis, start in enumerate(starts):
            best = _after_changes(best, axis, start)
        each = work[:, slot]
        least = float(each.min()) / rules.max_load_ratio
        best = best + price
        for more, it in zip(began, supplies, strict=True):
            if (slot + 1) * SLOT_S <= it.cold_start_s:
                best = np.where(more, np.inf, best)
        if least > 0:
            done = sum(n * (rules.max_load_ratio / w) for n, w in zip(grid, each, strict=True))
            best = best + np.clip(1.0 - done, 0.0, 1.0) * (least * charge)
    return FlowOutcome("optimum", float(best.min()), 0.0, 0.0, 0, 0, {}, duration_s)


def _after_changes(best: Floats, axis: int, start: float) -> Floats:
    """The least with any number before: fewer cost nothing, each one more a start."""
    moved = np.moveaxis(best, axis, 0)
    found = np.minimum.accumulate(moved[::-1], axis=0)[::-1]
    steps = np.arange(len(found)).reshape(-1, *([1] * (found.ndim - 1))) * start
    found = np.minimum.accumulate(found - steps, axis=0) + steps
    return np.moveaxis(found, 0, axis)


def regret(outcome: FlowOutcome, best: FlowOutcome) -> float:
    return outcome.charged / best.charged if best.charged > 0 else 1.0


def first_of(flow: Flow, sizes: Sizes, rules: ScalingRules) -> dict[str, int]:
    """Servers of the pools that are always there for the first minute, and the fewest of the others."""
    found = {pool: it.min_replicas for pool, it in sizes.supplies.items()}
    for pool in sizes.supplies.keys() - sizes.coming:
        mean = float(np.mean(flow[pool][:60]))
        if math.isfinite(mean):
            needed = whole(mean / rules.max_load_ratio)
            found[pool] = min(max(found[pool], needed), sizes.supplies[pool].max_replicas)
            break
    return found


def flow_of(seconds: Sequence[float], ratios: Mapping[str, float]) -> Flow:
    """`seconds`: work of one second, in servers of a pool whose ratio is 1; `ratios`: how many times as much a pool's server does."""
    each = np.asarray(seconds, float)
    return {pool: each / ratio for pool, ratio in ratios.items()}


def of_arrivals(arrivals: Arrivals, setting: Setting) -> tuple[Flow, Sizes]:
    """The work of a scenario's requests by second. Raises UserError where pools differ in which of them they may answer."""
    pools = setting.pools
    costs: dict[float, list[float]] = {}
    work = np.zeros((len(pools), num_seconds(arrivals)))
    for second in range(work.shape[1]):
        for rows, number in arrivals.asked(second).items():
            each = costs.get(rows)
            if each is None:
                may = able(that_take(pools, rows), rows, setting.objective_s)
                each = costs[rows] = [it.service.cost_s(rows) if it in may else math.inf for it in pools]
            if number:
                work[:, second] += np.array(each) * number
    ways = {tuple(math.isfinite(it) for it in each) for each in costs.values()}
    if len(ways) > 1:
        raise UserError(
            "requests of some sizes are answered in time by fewer pools than others; a flow of work has one size"
        )
    work[~np.isfinite(work).all(axis=1)] = math.inf
    return {it.name: row for it, row in zip(pools, work, strict=True)}, setting.sizes


HEAD = ("rule", "charged", "regret", "servers", "undone", "not done", "wakes", "changes/h")


def table(outcomes: Sequence[FlowOutcome], best: FlowOutcome) -> str:
    rows: list[tuple[str, ...]] = [
        (
            it.name,
            f"{it.charged:.3f}",
            f"{regret(it, best):.2f}",
            f"{it.cost:.3f}",
            f"{it.undone:.3f}",
            f"{it.undone_ratio:.3%}",
            str(it.num_wakes),
            f"{it.changes_per_hour:.1f}",
        )
        for it in outcomes
    ]
    rows.append((best.name, f"{best.charged:.3f}", "1.00", *["-"] * 5))
    return columns([HEAD, *rows], align="<".ljust(len(HEAD), ">"), ruled=True)


TRIED: dict[str, tuple[float, ...]] = {
    "patience_s": (0.0, 5.0, 15.0, 60.0),
    "hold_s": (0.0, 60.0, 300.0),
    "change_ratio": (0.5, 1.0, 2.0),
    "cpu_hold_s": (60.0, 300.0, 900.0),
    "max_bursts": (0, 16),
}


def recommended(flow: Flow, sizes: Sizes, rules: ScalingRules) -> tuple[ScalingRules, FlowOutcome]:
    """The rules that would have been charged least for this traffic, one after the other from those that are there."""
    first = first_of(flow, sizes, rules)

    def tried(it: ScalingRules) -> FlowOutcome:
        return play("recommended", flow, sizes, it, by_scaler(sizes, it, first), first)

    best, outcome = rules, tried(rules)
    for name, values in TRIED.items():
        for value in values:
            if value != getattr(best, name):
                other = best.model_copy(update={name: value})
                found = tried(other)
                if found.charged < outcome.charged * (1 - LEAST_GAIN):
                    best, outcome = other, found
    return best, outcome


LEAST_GAIN = 0.005  # of what is charged, before a rule is changed for it
