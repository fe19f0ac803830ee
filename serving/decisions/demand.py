"""How many servers of each pool would pay now, going by what gateways publish, and what is said of it?

Takes demands summed over gateways and what the settings say can be had; `wake.next_target` decides. `tandem up` shows it, and whoever
starts and stops servers asks the same function. Rule: values in, values out; the time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from serving.decisions.break_even import break_even_load
from serving.decisions.fleet import EPSILON, Load, Supply, cheapest, with_gpus
from serving.decisions.prices import EQUAL_PER_HOUR
from serving.decisions.wake import WAKE_RULES, Target, WakeRules, next_target
from serving.settings import PoolSettings, comes_and_goes

GPU_COLD_START_S = 300.0  # a node, a driver, an image of 15 GB, a model; a guess, not measured
COLD_START_S = 40.0  # an image that is there, and a model; a guess, not measured


@dataclass(frozen=True, slots=True)
class Demand:
    """Servers of one pool that the traffic it may answer would keep busy, those of them that nobody else may, and how many answer.

    `unseen_replicas` of them at most: a gateway that never saw the pool does not know what it takes there.
    """

    replicas: float
    only_replicas: float
    num_ready: int
    unseen_replicas: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The pool that is always there and the one that comes and goes, and what can be had of each."""

    steady: str
    coming: str
    supply: Supply
    coming_supply: Supply


def pair_of(pools: Mapping[str, PoolSettings]) -> Pair | None:
    """The first of each kind. None where one kind is missing: then there is nothing to weigh."""
    steady = next((name for name, pool in pools.items() if not comes_and_goes(name, pool)), None)
    coming = next((name for name, pool in pools.items() if comes_and_goes(name, pool)), None)
    if steady is None or coming is None:
        return None
    return Pair(steady, coming, supply_of(steady, pools[steady]), supply_of(coming, pools[coming]))


def supply_of(name: str, pool: PoolSettings) -> Supply:
    is_coming = comes_and_goes(name, pool)
    least = pool.min_replicas
    if least is None:
        least = 0 if is_coming else min(1, pool.max_replicas or 1)
    most = pool.max_replicas
    if most is None:
        most = max(least, len(pool.urls))
    cold_start_s = pool.cold_start_s
    if cold_start_s is None:
        cold_start_s = GPU_COLD_START_S if is_coming else COLD_START_S
    price = pool.price_per_hour or EQUAL_PER_HOUR
    return Supply(price, min(least, most), most, cold_start_s, pool.min_billing_s or 0.0)


def target_for(
    old: Target | None, now: float, pair: Pair, demands: Mapping[str, Demand], rules: WakeRules = WAKE_RULES
) -> Target:
    """To be asked every second or so; `old` None at the first time, when what is there is taken for wanted."""
    steady, coming = demands[pair.steady], demands[pair.coming]
    if old is None:
        return Target(steady.num_ready, coming.num_ready, now)
    return next_target(old, now, load_of(pair, demands), pair.supply, pair.coming_supply, coming.num_ready, rules)


def load_of(pair: Pair, demands: Mapping[str, Demand]) -> Load:
    steady, coming = demands[pair.steady], demands[pair.coming]
    return Load(steady.replicas, coming.replicas, coming.only_replicas, steady.only_replicas, coming.unseen_replicas)


Reason = Literal["short", "pays", "might_pay", "does_not_pay", "idle"]


@dataclass(frozen=True, slots=True)
class Change:
    """Another number of servers is wanted of a pool. `reason`: what `next_target` went by, in a word."""

    pool: str
    before: int
    after: int
    reason: Reason
    sentence: str


def changes(
    old: Target, new: Target, pair: Pair, demands: Mapping[str, Demand], rules: WakeRules = WAKE_RULES
) -> list[Change]:
    """One for each pool of which another number is wanted."""
    found = []
    if new.gpu != old.gpu:
        all_of_it = load_of(pair, demands)
        pays_from = break_even_load(all_of_it, pair.supply, pair.coming_supply, rules.max_load_ratio)
        even = "" if pays_from is None else f", break-even {pays_from:.2g}"
        reason = _reason(old, new, all_of_it, pair, rules)
        demand = _demand(demands[pair.coming])
        sentence = f"{pair.coming}: {_servers(new.gpu)} would pay ({demand}{even})"
        if reason == "might_pay":
            sentence = f"{pair.coming}: {_servers(new.gpu)} might pay, which shows when it is there ({demand} at most)"
        found.append(Change(pair.coming, old.gpu, new.gpu, reason, sentence))
    if new.cpu != old.cpu:
        sentence = f"{pair.steady}: {_servers(new.cpu)} would do ({_demand(demands[pair.steady])})"
        found.append(Change(pair.steady, old.cpu, new.cpu, "short" if new.cpu > old.cpu else "idle", sentence))
    return found


def _reason(old: Target, new: Target, all_of_it: Load, pair: Pair, rules: WakeRules) -> Reason:
    """Of another number of GPUs."""
    if new.gpu < old.gpu:
        return "does_not_pay"
    if with_gpus(old.gpu, all_of_it, pair.supply, pair.coming_supply, rules.max_load_ratio).short > EPSILON:
        return "short"
    is_known = cheapest(all_of_it, pair.supply, pair.coming_supply, rules.max_load_ratio).num_gpu >= new.gpu
    return "pays" if is_known else "might_pay"


def sentences(
    old: Target, new: Target, pair: Pair, demands: Mapping[str, Demand], rules: WakeRules = WAKE_RULES
) -> list[str]:
    """A line for each pool of which another number is wanted."""
    return [it.sentence for it in changes(old, new, pair, demands, rules)]


def _servers(number: int) -> str:
    return "no server" if number == 0 else f"{number} server" if number == 1 else f"{number} servers"


def _demand(demand: Demand) -> str:
    return f"demand {demand.replicas:.2g} servers"
