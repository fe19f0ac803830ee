"""Which whole servers carry a load for the least money? The one answer for the plan, the verdict, the scaler and the simulator.

`cheapest_mix` weighs any number of pools of any sizes; `cheapest` is the same of one CPU pool and one GPU pool, in closed form. Each pool
is within what can be had. Prices are compared exactly, as decimals; a count has a tolerance, because loads are sums of measured floats.
Of equal prices the fleet with fewer GPUs is taken.

Rule: nobody else searches for a fleet. What a kind costs alone over a range of rates is told at the end; break-even is `break_even.py`'s.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from serving.decisions.covering import Problem, cover
from serving.decisions.plan.result import CostPoint, Objective, PricedServer
from serving.decisions.prices import exact, is_less
from serving.settings import SCALING_RULES

EPSILON = 1e-9  # of a server: what rounding leaves is no server more
MAX_LOAD_RATIO = SCALING_RULES.max_load_ratio
# Numbers of GPUs that are tried. The search ends by itself unless both kinds cost nearly the same for each request; then a fleet of
# thousands could save less than one server.
MAX_TRIES = 4096


@dataclass(frozen=True, slots=True)
class Supply:
    """What can be had of a pool. `cold_start_s`: from asking for a server to its first answer; `min_billing_s`: paid for, however short.

    `servers_per_card` of them share one card (MIG, MPS, time-slicing), or one node: the price is the card's then, of one server or of all
    that fit. `memory_bytes`: of one server, for its models. Spot and on-demand servers are two pools. `consolidation_s`: paid for after the
    last server of a card has gone.
    """

    price_per_hour: float
    min_replicas: int = 0
    max_replicas: int = 1
    cold_start_s: float = 0.0
    min_billing_s: float = 0.0
    has_gpu: bool = False
    servers_per_card: int = 1
    memory_bytes: float = math.inf
    consolidation_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is not between 0 and max_replicas {self.max_replicas}")
        if self.servers_per_card < 1:
            raise ValueError(f"servers_per_card is 1 or more, not {self.servers_per_card}")
        if min(self.price_per_hour, self.cold_start_s, self.min_billing_s, self.consolidation_s) < 0:
            raise ValueError("prices, cold starts and billed times are not negative")


@dataclass(frozen=True, slots=True)
class Load:
    """Servers that all traffic would keep busy on either pool, were it there alone; `…_only` of them can go nowhere else."""

    cpu: float
    gpu: float
    gpu_only: float = 0.0
    cpu_only: float = 0.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """`price` is exact, of an hour. `short`: the share of what both kinds do that it cannot carry, and servers of what only one does."""

    num_cpu: int
    num_gpu: int
    price: Decimal
    short: float = 0.0

    @property
    def price_per_hour(self) -> float:
        return float(self.price)


def whole(servers: float) -> int:
    return math.ceil(servers - EPSILON)


def with_gpus(num_gpu: int, load: Load, cpu: Supply, gpu: Supply, max_load_ratio: float = MAX_LOAD_RATIO) -> Fleet:
    """So many GPU servers, and as many CPU servers as carry the rest."""
    for_cpu, shared_ratio, only_short = _beside(num_gpu, load, max_load_ratio)
    num_cpu = min(max(whole(for_cpu), cpu.min_replicas), cpu.max_replicas)
    lacking = for_cpu - num_cpu
    short = ((shared_ratio + load.cpu_only) * lacking / for_cpu if lacking > EPSILON else 0.0) + only_short
    return Fleet(num_cpu, num_gpu, num_cpu * exact(cpu.price_per_hour) + num_gpu * exact(gpu.price_per_hour), short)


def cheapest(load: Load, cpu: Supply, gpu: Supply, max_load_ratio: float = MAX_LOAD_RATIO) -> Fleet:
    """The fleet that carries the load, or as much of it as any does, for the least money.

    More GPUs never leave more undone and never need more CPU servers, so bisection finds the fewest that are enough and the fewest
    beyond which no CPU server is saved. Between them a price is at least what divisible CPU servers would cost, which rises from the
    cheaper end: the search goes from there until that bound exceeds the best price.
    """
    fleet = partial(with_gpus, load=load, cpu=cpu, gpu=gpu, max_load_ratio=max_load_ratio)
    numbers, most = range(gpu.min_replicas, gpu.max_replicas + 1), fleet(gpu.max_replicas)
    if len(numbers) == 1:  # as where it is asked what a number of GPUs costs: no search
        return most
    first = bisect_left(numbers, True, key=lambda n: fleet(n).short <= most.short + EPSILON)
    last = bisect_left(numbers, True, lo=first, key=lambda n: fleet(n).num_cpu <= most.num_cpu)
    order = numbers[first : last + 1]
    cpu_price = cpu.price_per_hour * (load.cpu - load.cpu_only)
    if gpu.price_per_hour * (load.gpu - load.gpu_only) < cpu_price:
        order = order[::-1]
    best = fleet(order[0])
    for number in order[1:MAX_TRIES]:
        divisible = _beside(number, load, max_load_ratio)[0] - EPSILON
        if number * gpu.price_per_hour + divisible * cpu.price_per_hour > best.price_per_hour * (1 + EPSILON):
            break
        best = min(best, fleet(number), key=lambda it: (it.price, it.num_gpu))
    return best


def _beside(num_gpu: int, load: Load, max_load_ratio: float) -> tuple[float, float, float]:
    """CPU servers that the rest needs, the share of what both can do that is left to them, and what only GPUs could do and cannot."""
    carries, shared = num_gpu * max_load_ratio, load.gpu - load.gpu_only
    ratio = max(0.0, shared - max(0.0, carries - load.gpu_only)) / shared if shared > 0 else 0.0
    for_cpu = ((load.cpu - load.cpu_only) * ratio + load.cpu_only) / max_load_ratio
    return for_cpu, ratio, max(0.0, load.gpu_only - carries)


# -- any number of pools -----------------------------------------------------------------------------------------------

# Of a server's work that is not done: as many of the dearest servers. More would be less exact, in floats; a guess, not measured.
SHORT_PRICE = 1e4
RETRY_AFTER_S = (
    300.0  # until what could not be had is asked for again: a GPU's cold start by default; a guess, not measured
)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """`servers`: how many of each pool all the model's traffic would keep busy, were it there alone.

    It cannot run on a pool that is missing there, nor on servers with less than its `memory_bytes`.
    """

    servers: Mapping[str, float]
    memory_bytes: float = 0.0

    def __post_init__(self) -> None:
        for pool, number in self.servers.items():
            if not number >= 0:
                raise ValueError(f"a load is 0 or more servers, not {number} of {pool}")


@dataclass(frozen=True, slots=True)
class Quota:
    """Cards that all these pools may have together, such as a region's GPUs."""

    pools: frozenset[str]
    max_cards: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """At `at` more than `num_servers` of a pool were asked for and could not be had."""

    pool: str
    at: float
    num_servers: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Servers by pool; a pool's cards are those servers, `servers_per_card` on each. `price` is exact, of an hour.

    `undone`: servers' work that it cannot carry, each model on the pool where it takes least. `short`: the same by which mixes are
    weighed, where all of a model is one server at least.
    No fleet that carries as much costs less than `bound_per_hour`; it is the price itself where the search was completed.
    """

    replicas: Mapping[str, int]
    price: Decimal
    short: float
    bound_per_hour: float
    undone: float = 0.0

    @property
    def price_per_hour(self) -> float:
        return float(self.price)

    @property
    def is_proven(self) -> bool:
        return self.bound_per_hour >= self.price_per_hour * (1 - EPSILON)


def cards(num_servers: int, supply: Supply) -> int:
    """Cards, or servers that have none to share, that are paid for."""
    return -(-num_servers // supply.servers_per_card)


def obtainable(
    pools: Mapping[str, Supply], shortages: Iterable[Shortage], now: float, retry_after_s: float = RETRY_AFTER_S
) -> dict[str, Supply]:
    """The pools with no more servers than could be had, as long as that is news."""
    found = dict(pools)
    for it in shortages:
        if it.pool in found and 0 <= now - it.at < retry_after_s:
            supply = found[it.pool]
            most = min(supply.max_replicas, max(0, it.num_servers))
            found[it.pool] = replace(supply, min_replicas=min(supply.min_replicas, most), max_replicas=most)
    return found


def cheapest_mix(
    models: Sequence[ModelLoad],
    pools: Mapping[str, Supply],
    quotas: Sequence[Quota] = (),
    max_load_ratio: float = MAX_LOAD_RATIO,
) -> Mix:
    """The servers that carry all models, or as much of them as any do, for the least money; each model's traffic may be split.

    Raises ValueError where a quota does not allow `min_replicas`.
    """
    loads = tuple((tuple(it.servers.items()), it.memory_bytes) for it in models)
    return _cheapest_mix(loads, tuple(pools.items()), tuple(quotas), max_load_ratio)


@lru_cache(maxsize=64)  # at rest, and of a load that stays, each look asks the same
def _cheapest_mix(
    loads: tuple[tuple[tuple[tuple[str, float], ...], float], ...],
    of_pools: tuple[tuple[str, Supply], ...],
    quotas: tuple[Quota, ...],
    max_load_ratio: float,
) -> Mix:
    models, pools = [ModelLoad(dict(servers), memory_bytes) for servers, memory_bytes in loads], dict(of_pools)
    if not quotas and (pair := _of_a_pair(models, pools, max_load_ratio)) is not None:
        return pair
    names, supplies = tuple(pools), tuple(pools.values())
    work = np.array(
        [
            [
                model.servers.get(name, math.inf) if model.memory_bytes <= supply.memory_bytes else math.inf
                for name, supply in pools.items()
            ]
            for model in models
        ]
    ).reshape(len(models), len(pools))
    least_work = work.min(axis=1, initial=math.inf)
    is_there = least_work / max_load_ratio > EPSILON
    each = np.array([supply.servers_per_card for supply in supplies], float)
    most = np.array([cards(supply.max_replicas, supply) for supply in supplies], np.int64)
    weights = np.where(np.isfinite(least_work), np.maximum(least_work, 1.0), 1.0)[is_there]
    prices = np.array([supply.price_per_hour for supply in supplies], float)
    for_fewer_gpus = _grain(supplies) / (4 * (1 + most.sum()))
    may = np.flatnonzero(most)  # a pool that may have none is no question
    found = cover(
        Problem(
            (prices + np.array([for_fewer_gpus if supply.has_gpu else 0.0 for supply in supplies]))[may],
            (work[is_there] / (max_load_ratio * each))[:, may],
            np.array([cards(supply.min_replicas, supply) for supply in supplies], np.int64)[may],
            most[may],
            np.array([supply.max_replicas / supply.servers_per_card for supply in supplies], float)[may],
            weights * SHORT_PRICE * max(1.0, prices.max(initial=0.0)),
            np.array([[name in quota.pools for name in names] for quota in quotas], bool).reshape(
                len(quotas), len(names)
            )[:, may],
            np.array([quota.max_cards for quota in quotas], float),
        )
    )
    replicas = dict.fromkeys(names, 0)
    for at, load in zip(may, found.loads, strict=True):
        name, supply = names[at], supplies[at]
        replicas[name] = min(max(whole(load * supply.servers_per_card), supply.min_replicas), supply.max_replicas)
    price = sum(
        (
            cards(number, supply) * exact(supply.price_per_hour)
            for number, supply in zip(replicas.values(), supplies, strict=True)
        ),
        Decimal(0),
    )
    short = float(found.undone @ weights)
    undone = float(found.undone @ np.where(np.isfinite(least_work), least_work, 1.0)[is_there]) / max_load_ratio
    bound = float(price) - (found.cost - found.bound)
    return Mix(replicas, price, short, bound, undone) if short > EPSILON else Mix(replicas, price, 0.0, bound)


def _of_a_pair(models: Sequence[ModelLoad], pools: Mapping[str, Supply], max_load_ratio: float) -> Mix | None:
    """In closed form, a hundred times as fast: of one CPU pool and one GPU pool that carry all. None where it does not tell."""
    names = sorted(pools, key=lambda name: pools[name].has_gpu)
    if len(names) != 2 or pools[names[0]].has_gpu or not pools[names[1]].has_gpu:
        return None
    cpu, gpu = pools[names[0]], pools[names[1]]
    for_both = [it.servers for it in models if len(it.servers) == 2]
    is_plain = cpu.servers_per_card == gpu.servers_per_card == 1 and not any(
        it.memory_bytes or not it.servers for it in models
    )
    if not is_plain or len(for_both) > 1 or any(it.servers.keys() - pools.keys() for it in models):
        return None
    cpu_only, gpu_only = (sum(it.servers.get(name, 0.0) for it in models if len(it.servers) == 1) for name in names)
    shared = for_both[0] if for_both else {}
    on_cpu, on_gpu = (shared.get(name, 0.0) for name in names)
    if (on_cpu > 0) != (on_gpu > 0):
        return None
    load = Load(on_cpu + cpu_only, on_gpu + gpu_only, gpu_only, cpu_only)
    found = cheapest(load, cpu, gpu, max_load_ratio)
    if found.short > 0:
        return None
    replicas = {name: found.num_gpu if name == names[1] else found.num_cpu for name in pools}
    return Mix(replicas, found.price, 0.0, found.price_per_hour)


def _grain(supplies: Iterable[Supply]) -> float:
    """What all prices are multiples of."""
    prices = [exact(supply.price_per_hour) for supply in supplies]
    digits = max((-int(price.as_tuple().exponent) for price in prices), default=0)
    return math.gcd(*(int(price.scaleb(digits)) for price in prices)) / 10.0**digits


# -- servers that were measured, at a rate -----------------------------------------------------------------------------


def usable_rps(priced: PricedServer, objective: Objective) -> float:
    """What one server is planned with."""
    return priced.max_rate.rate_rps * objective.headroom_ratio


def replicas(priced: PricedServer, rate_rps: float, objective: Objective) -> int:
    """Of one kind alone, as if any number could be had."""
    return max(whole(rate_rps / usable_rps(priced, objective)), objective.min_replicas, 1)


def carrying(
    cpu: PricedServer | None, gpu: PricedServer | None, rate_rps: float, objective: Objective, *, min_gpus: int = 0
) -> Fleet | None:
    """The cheapest fleet of these kinds at a rate; None where as many as can be had do not carry it.

    The CPU pool of two is always there; GPUs, at least `min_gpus` of them, come beside it.
    """
    most = math.inf if objective.max_replicas is None else objective.max_replicas
    one = gpu if cpu is None else cpu if gpu is None else None
    if one is not None:
        count = replicas(one, rate_rps, objective)
        numbers = (count, 0) if gpu is None else (0, count)
        return Fleet(*numbers, count * exact(one.per_hour)) if count <= most else None
    assert cpu is not None
    assert gpu is not None
    enough = [replicas(cpu, rate_rps, objective), whole(rate_rps / usable_rps(gpu, objective))]
    fewest = [max(1, objective.min_replicas), min_gpus]
    if max(fewest) > most:
        return None
    ours, theirs = (
        Supply(priced.per_hour, few, int(min(max(few, number), most)))
        for priced, few, number in zip((cpu, gpu), fewest, enough, strict=True)
    )
    load = Load(*(rate_rps / min(p.max_rate.rate_rps, _FASTEST_RPS) for p in (cpu, gpu)))
    found = cheapest(load, ours, theirs, objective.headroom_ratio)
    return found if found.short <= EPSILON else None


_FASTEST_RPS = 1e300  # stands for a server whose limit nobody has seen, so that it still takes some of the load


# -- without a GPU and with one, by each reading of what was measured --------------------------------------------------

End = Literal["low", "middle", "high"]  # of what was measured of a server's rate
# What was measured of CPUs and of GPUs: where the GPU looks best, in the middle, and where it looks worst.
ENDS: tuple[tuple[End, End], ...] = (("low", "high"), ("middle", "middle"), ("high", "low"))
SPEEDS: tuple[End, ...] = ("low", "middle", "high")


@dataclass(frozen=True, slots=True)
class PricedFleet:
    """A fleet and which servers it has; of those with a GPU the card first."""

    servers: tuple[tuple[PricedServer, int], ...]
    price: Decimal

    @property
    def per_hour(self) -> float:
        return float(self.price)


@dataclass(frozen=True, slots=True)
class CheapestFleets:
    """The cheapest without a GPU and the cheapest with one, by one reading of what was measured; None where there is none."""

    cpu: PricedFleet | None
    gpu: PricedFleet | None

    @property
    def gpu_is_cheaper(self) -> bool:
        return self.gpu is not None and (self.cpu is None or is_less(self.gpu.price, self.cpu.price))


def at_end(priced: PricedServer, end: End, objective: Objective) -> PricedServer:
    """As if its rate were that end of what was measured."""
    measured = priced.max_rate
    if end == "high" and (measured.is_bounded_by_generator or is_stricter(priced, objective)):
        value: float | None = math.inf  # nobody has seen its limit
    else:
        value = {"low": measured.low_rps, "middle": measured.rate_rps, "high": measured.high_rps}[end]
    return priced if value is None else replace(priced, max_rate=replace(measured, rate_rps=value))


def is_stricter(priced: PricedServer, objective: Objective) -> bool:
    """Whether its rate was measured for a shorter time than is asked for, so that it carries at least that."""
    return priced.max_rate.objective_s < objective.latency_p99_s * (1 - EPSILON)


def choices(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], rate_rps: float, objective: Objective
) -> tuple[CheapestFleets, CheapestFleets, CheapestFleets]:
    """At the GPU's best, in the middle, and at its worst: nothing within what was measured is beyond the first or the last.

    A CPU server stands in both sides, alone and beside GPUs, and a faster one makes both cheaper, by whole servers: so that either end
    has the dearest of one side against the cheapest of the other.
    """
    slow, middle, fast = (
        choice([at_end(p, end, objective) for p in cpu], [at_end(p, end, objective) for p in gpu], rate_rps, objective)
        for end in SPEEDS
    )
    return CheapestFleets(slow.cpu, fast.gpu), middle, CheapestFleets(fast.cpu, slow.gpu)


def choice(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], rate_rps: float, objective: Objective
) -> CheapestFleets:
    cpu, gpu = ([p for p in side if p.max_rate.rate_rps > 0] for side in (cpu, gpu))
    without = [_priced(one, None, carrying(one, None, rate_rps, objective)) for one in cpu]
    with_one = [_priced(None, one, carrying(None, one, rate_rps, objective)) for one in gpu]
    with_one += [
        _priced(base, peak, carrying(base, peak, rate_rps, objective, min_gpus=1)) for base in cpu for peak in gpu
    ]
    return CheapestFleets(
        *(min((it for it in side if it), key=lambda it: it.price, default=None) for side in (without, with_one))
    )


def _priced(cpu: PricedServer | None, gpu: PricedServer | None, fleet: Fleet | None) -> PricedFleet | None:
    if fleet is None:
        return None
    sides = ((gpu, fleet.num_gpu), (cpu, fleet.num_cpu))
    return PricedFleet(tuple((one, number) for one, number in sides if one is not None), fleet.price)


NUM_POINTS = 60  # of a curve: finer than a picture shows


@dataclass(frozen=True, slots=True)
class Alone:
    """Whole servers of one kind. `price` is exact, of an hour."""

    priced: PricedServer
    num_servers: int
    price: Decimal


def cheapest_alone(servers: Sequence[PricedServer], rate_rps: float, objective: Objective) -> Alone | None:
    """Of which whole ones carry the rate for the least money; of equals the first."""
    counts = ((priced, replicas(priced, rate_rps, objective)) for priced in servers if priced.max_rate.rate_rps > 0)
    return min((Alone(p, n, exact(p.per_hour) * n) for p, n in counts), key=lambda it: it.price, default=None)


def cost_point(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], rate_rps: float, objective: Objective
) -> CostPoint:
    best = [cheapest_alone(side, rate_rps, objective) for side in (cpu, gpu)]
    ours, theirs = ((it.num_servers, float(it.price)) if it else (None, None) for it in best)
    return CostPoint(rate_rps, *ours, *theirs)


def curve(
    cpu: Sequence[PricedServer], gpu: Sequence[PricedServer], objective: Objective, min_replicas: int, max_rps: float
) -> tuple[CostPoint, ...]:
    """From nothing to `max_rps`, the objective's own rates among them."""
    fewest = replace(objective, min_replicas=min_replicas)
    rates = {max_rps * k / NUM_POINTS for k in range(NUM_POINTS + 1)} | {rate for _, rate in objective.rates}
    return tuple(cost_point(cpu, gpu, rate, fewest) for rate in sorted(rates) if rate <= max_rps)
