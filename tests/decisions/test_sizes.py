"""Of pools of several sizes the cheapest mix is wanted, whatever they are called; what does not come is replaced, and taken when it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.decisions.cold_start import ColdStart
from serving.decisions.demand import Demand, Demands
from serving.decisions.fleet import Load, Supply, with_gpus
from serving.decisions.sizes import (
    LEAST_GIVE_UP_S,
    FleetTarget,
    Sizes,
    WarmNodes,
    as_measured,
    fleet_changes,
    model_loads,
    next_fleet,
)
from serving.settings import ScalingRules

CPU = Supply(0.2, 1, 40)
L4 = Supply(0.8, 0, 10, 120.0, has_gpu=True)  # eight CPU servers' work
A100 = Supply(4.1, 0, 10, 120.0, has_gpu=True)  # forty
WORK = {"cpu": 1.0, "l4": 8.0, "spot": 8.0, "a100": 40.0}
RULES = ScalingRules()
LOOK_S = 4.0  # the scaler looks every second; fewer looks see the same here


class Bed:
    """What is wanted answers after `cold_s`, unless the pool is in `out_of_stock`; what is not wanted is gone at once."""

    def __init__(self, pools: Mapping[str, Supply], cold_s: float = 60.0, **first: int) -> None:
        self.sizes = Sizes(pools, frozenset(name for name, it in pools.items() if it.has_gpu))
        self.cold_s, self.out_of_stock = cold_s, set[str]()
        self.now, self.last = 0.0, FleetTarget({name: first.get(name, it.min_replicas) for name, it in pools.items()})
        self.ready = dict(self.last.replicas)
        self.asked_at: dict[str, float] = {}
        self.reasons: list[tuple[str, int, int, str]] = []

    def run(self, seconds: float, servers: float, **more: Mapping[str, float]) -> dict[str, int]:
        """`servers`: CPU servers' work that all pools may do; `more`: servers by pool, of traffic that just these pools may answer."""
        for _ in range(int(seconds / LOOK_S)):
            self.now += LOOK_S
            demands = self.demands(servers, *more.values())
            new = next_fleet(self.last, self.now, demands, self.sizes, RULES)
            changes = fleet_changes(self.last, new, demands, self.sizes, RULES)
            self.reasons += [(it.pool, it.before, it.after, it.reason) for it in changes]
            self.last = new
            for name, number in new.replicas.items():
                if number <= self.ready[name]:
                    self.ready[name] = number
                    self.asked_at.pop(name, None)
                elif (
                    name not in self.out_of_stock and self.now - self.asked_at.setdefault(name, self.now) >= self.cold_s
                ):
                    self.ready[name] = number
        return {name: number for name, number in self.last.replicas.items() if number}

    def demands(self, servers: float, *more: Mapping[str, float]) -> Demands:
        found = {}
        for name in self.sizes.supplies:
            kind = name.lstrip("z")
            shared = {",".join(sorted(one)): one[name] for one in more if name in one and len(one) > 1}
            only = sum(one[name] for one in more if set(one) == {name})
            total = servers / WORK[kind] + only + sum(shared.values())
            found[name] = Demand(total, only, self.ready[name], 0.0, shared)
        return found


@pytest.mark.parametrize(("servers", "fleet"), [(4.0, {"cpu": 1, "l4": 1}), (16.0, {"cpu": 1, "l4": 3})])
def test_the_size_that_is_the_cheapest_is_woken_whatever_its_name_is(servers: float, fleet: dict[str, int]) -> None:
    for order in (("cpu", "l4", "a100"), ("a100", "cpu", "l4"), ("a100", "cpu", "zl4")):
        bed = Bed({name: {"cpu": CPU, "l4": L4, "a100": A100}[name.lstrip("z")] for name in order}, cpu=1)
        assert {name.lstrip("z"): number for name, number in bed.run(700, servers).items()} == fleet


def test_a_size_that_became_the_cheaper_one_replaces_the_other_when_it_answers() -> None:
    bed = Bed({"cpu": CPU, "l4": L4, "a100": A100}, cold_s=100.0, cpu=1, l4=3)
    assert bed.run(300, 14.0) == {"cpu": 1, "l4": 3}
    wanted = []
    for _ in range(500):
        bed.run(LOOK_S, 200.0)
        wanted.append((bed.last.replicas["l4"], bed.last.replicas["a100"], bed.ready["a100"]))
    assert bed.last.replicas["a100"] >= 5
    assert all(l4 >= 3 for l4, a100, ready in wanted if ready < a100)


def test_what_does_not_come_is_replaced_within_one_decision_and_taken_when_it_comes() -> None:
    spot = Supply(0.3, 0, 10, 120.0, has_gpu=True)
    bed = Bed({"cpu": Supply(0.2, 1, 4), "spot": spot, "l4": L4}, cpu=4)
    bed.out_of_stock = {"spot"}
    assert bed.run(RULES.patience_s + 60, 16.0) == {"cpu": 4, "spot": 3}
    found = bed.run(2 * spot.cold_start_s, 16.0)
    assert (found["spot"], found["l4"]) == (3, 3)
    assert ("l4", 0, 3, "replaces") in bed.reasons
    bed.out_of_stock = set()
    assert bed.run(1200, 16.0) == {"cpu": 1, "spot": 3}
    assert bed.reasons[-1][0] in {"l4", "cpu"}


def test_with_no_card_of_any_size_the_cpu_does_what_it_can_and_nothing_flaps() -> None:
    bed = Bed({"cpu": CPU, "l4": L4, "a100": A100}, cpu=1)
    bed.out_of_stock = {"l4", "a100"}
    found = bed.run(1800, 16.0)
    assert found["cpu"] == 23
    assert len([it for it in bed.reasons if it[0] != "cpu"]) <= 2


def test_a_shortage_is_not_told_of_a_pool_that_has_just_lost_a_server() -> None:
    bed = Bed({"cpu": Supply(0.2, 1, 4), "l4": L4, "a100": A100}, cpu=4, l4=3)
    bed.run(1200, 16.0)
    bed.ready["l4"], bed.asked_at["l4"] = 2, bed.now
    assert bed.run(LEAST_GIVE_UP_S, 16.0)["l4"] == 3
    assert bed.last.shortages == ()
    assert "a100" not in bed.run(600, 16.0)


def test_cold_starts_that_were_measured_count_instead_of_those_that_were_said() -> None:
    """A card that comes in half a minute pays sooner than one that was said to take two."""
    pools = {"cpu": CPU, "l4": L4, "a100": A100}
    bed, quick = (Bed(pools, cpu=1) for _ in range(2))
    quick.sizes = as_measured(quick.sizes, [ColdStart("l4", 0.0, warm_at=30.0)])
    seconds = [next(n for n in range(500) if it.run(LOOK_S, 4.0).get("l4")) for it in (bed, quick)]
    assert seconds[1] < seconds[0] / 2


def test_traffic_that_only_some_sizes_may_answer_wakes_the_cheapest_of_them() -> None:
    gpus = {"a100": 0.1, "l4": 0.3}
    bed = Bed({"cpu": CPU, "l4": L4, "a100": A100}, cpu=1)
    assert bed.run(300, 0.3, gpus=gpus) == {"cpu": 1, "l4": 1}
    assert bed.run(1800, 0.3, large={"a100": 0.2})["a100"] == 1


def test_sets_of_pools_are_told_apart_in_demands() -> None:
    demands = Bed({"cpu": CPU, "l4": L4, "a100": A100}).demands(
        4.0, {"a100": 0.5, "l4": 2.5}, {"l4": 1.0}, {"cpu": 3.0}
    )
    found = sorted((sorted(it.servers.items()) for it in model_loads(demands)), key=lambda it: (len(it), it))
    assert [[(name, pytest.approx(number)) for name, number in it] for it in found] == [
        [("cpu", 3.0)],
        [("l4", 1.0)],
        [("a100", 0.5), ("l4", 2.5)],
        [("a100", 0.1), ("cpu", 4.0), ("l4", 0.5)],
    ]


def test_of_sizes_that_nobody_has_seen_one_server_of_one_is_tried() -> None:
    bed = Bed({"cpu": Supply(0.2, 1, 4), "l4": L4, "a100": A100}, cpu=4)
    never = {
        "cpu": Demand(10.0, 0.0, 4),
        "l4": Demand(10.0, 0.0, 0, 10.0),
        "a100": Demand(10.0, 0.0, 0, 10.0),
    }
    target = bed.last
    for second in range(600):
        target = next_fleet(target, second + 1.0, never, bed.sizes, RULES)
        assert target.replicas["l4"] <= 1
        assert target.replicas["a100"] <= 1
    assert target.replicas["l4"] == 1


# -- nodes that are kept for several pools ---------------------------------------------------------------------------------


@cache
def warm(every_s: float, *pools: str, until_s: float = 16 * 600.0, max_nodes: int = 2) -> list[tuple[int, int]]:
    """(servers, warm nodes) at each look: bursts of 200 s that one pool alone answers, and then the next one."""
    sizes = Sizes(
        {"cpu": CPU, "chat": L4, "search": L4},
        frozenset({"chat", "search"}),
        warm={"cards": WarmNodes(("chat", "search"), max_nodes, 90.0)},
    )
    target, found = FleetTarget({"cpu": 1, "chat": 0, "search": 0}), []
    for now in range(0, int(until_s), int(LOOK_S)):
        burst, at = divmod(now, every_s)
        busy = pools[int(burst) % len(pools)] if at < 200 else ""
        told = {
            name: Demand(only, only, target.replicas[name])
            for name, only in (("cpu", 0.1), *((it, 0.5 * (it == busy)) for it in ("chat", "search")))
        }
        target = next_fleet(target, float(now), told, sizes, RULES)
        found.append((target.replicas["chat"] + target.replicas["search"], target.warm["warm-cards"]))
    return found


def test_a_node_is_kept_for_the_pool_that_is_next_where_that_costs_less_than_to_start_one() -> None:
    """Each pool's own bursts are too far apart to keep its server."""
    found = warm(400.0, "chat", "search")
    lulls = [nodes for servers, nodes in found[len(found) // 2 :] if servers == 0]
    assert lulls
    assert set(lulls) == {1}
    before_two_were_seen = [nodes for _, nodes in found[: int(400 / LOOK_S)]]
    assert set(before_two_were_seen) == {0}


@pytest.mark.thorough
def test_no_node_is_kept_for_bursts_that_are_far_apart() -> None:
    assert {nodes for _, nodes in warm(5000.0, "chat", "search", until_s=40_000.0)} == {0}


def test_never_more_nodes_are_kept_than_allowed_and_none_beside_a_server_that_takes_it() -> None:
    assert {nodes for _, nodes in warm(400.0, "chat", "search", max_nodes=1, until_s=4800.0)} == {0, 1}
    assert all(nodes == 0 for servers, nodes in warm(400.0, "chat", "search") if servers)


# -- one CPU pool and one with cards, by prices and patience alone -------------------------------------------------------

ONE_CPU = Supply(0.2, 1, 20)
FEW_CPUS = Supply(0.2, 1, 4)
CARD = Supply(1.0, 0, 4, 240.0, has_gpu=True)  # ten CPU servers' work
EVEN = ScalingRules(max_load_ratio=1.0, hold_s=0.0, max_bursts=0)


def looks(
    demand: Sequence[tuple[float, float]],
    cpu: Supply = ONE_CPU,
    rules: ScalingRules = EVEN,
    *,
    card: Supply = CARD,
    first: int | None = None,
) -> list[FleetTarget]:
    """Demands of (seconds, CPU servers) one after another, a look a second; servers answer as soon as they are wanted."""
    sizes = Sizes({"cpu": cpu, "gpu": card}, frozenset({"gpu"}))
    target, found = FleetTarget({"cpu": first or cpu.min_replicas, "gpu": card.min_replicas}), list[FleetTarget]()
    for seconds, servers in demand:
        for _ in range(int(seconds)):
            told = {
                name: Demand(servers / work, 0.0, target.replicas[name]) for name, work in (("cpu", 1.0), ("gpu", 10.0))
            }
            target = next_fleet(target, len(found) + 1.0, told, sizes, rules)
            found.append(target)
    return found


def changes(found: Sequence[FleetTarget], pool: str = "gpu") -> list[tuple[int, int]]:
    """(second, servers) where their number changes."""
    numbers = [it.replicas[pool] for it in found]
    return [(at + 2, after) for at, (before, after) in enumerate(pairwise(numbers)) if before != after]


@pytest.mark.parametrize(
    ("demand", "cpu", "found"),
    [
        ([(2000, 0.0)], ONE_CPU, []),
        ([(2000, 5.0)], ONE_CPU, []),
        ([(300, 9.0), (300, 1.0)] * 3, ONE_CPU, []),
        ([(60, 9.0)], FEW_CPUS, [(5, 1)]),
        ([(1, 9.0), (30, 1.0)] * 5, FEW_CPUS, []),
        ([(60, 9.0), (1000, 0.0)], FEW_CPUS, [(5, 1), (60 + 240, 0)]),
    ],
    ids=[
        "nothing",
        "never pays",
        "a peak that the CPU carries",
        "too little: after patience",
        "a burst of a second",
        "idle: as long as its cold start would cost",
    ],
)
def test_a_card_is_woken_and_kept_by_what_it_costs_not_to(
    demand: list[tuple[float, float]], cpu: Supply, found: list[tuple[int, int]]
) -> None:
    assert changes(looks(demand, cpu)) == found


def test_a_card_is_woken_when_waiting_has_cost_what_a_cold_start_costs() -> None:
    """Nine CPU servers cost 1.8, one and a card 1.2: 0.6 an hour saved; a cold start costs 240 s of 1.0: 400 s."""
    assert changes(looks([(500, 9.0)])) == [(pytest.approx(400, abs=15), 1)]


@pytest.mark.parametrize(
    ("rules", "card", "goes_s"),
    [(EVEN.model_copy(update={"hold_s": 600.0}), CARD, 605), (EVEN, replace(CARD, min_billing_s=3600.0), 3605)],
)
def test_a_card_is_kept_as_long_as_the_rules_hold_it_and_its_node_is_paid_for(
    rules: ScalingRules, card: Supply, goes_s: int
) -> None:
    assert changes(looks([(60, 9.0), (goes_s, 0.0)], FEW_CPUS, rules, card=card)) == [(5, 1), (goes_s, 0)]


def test_a_card_that_was_woken_too_often_stays_awake_until_the_hour_is_over() -> None:
    rules = EVEN.model_copy(update={"max_wakes_per_hour": 2})
    found = changes(looks([(60, 9.0), (540, 0.0)] * 8, FEW_CPUS, rules))
    assert [count for _, count in found] == [1, 0, 1, 0, 1, 0, 1][: len(found)]
    assert len([at for at, count in found if count and at <= 3600]) == 2


@pytest.mark.parametrize(
    ("cpu", "goes_s"),
    [
        (Supply(0.2, 1, 20, 300.0), EVEN.cpu_hold_s),
        (Supply(0.2, 1, 20, 300.0, min_billing_s=900.0), 900),
        (Supply(0.2, 1, 20, 1.0), 6),
    ],
    ids=["as other autoscalers", "paid for longer", "back in a second"],
)
def test_without_a_card_cpu_servers_go_after_as_long_as_missing_them_would_cost(cpu: Supply, goes_s: float) -> None:
    none = replace(CARD, max_replicas=0)
    assert changes(looks([(1200, 0.5)], cpu, card=none, first=4), "cpu") == [(goes_s + 1, 1)]


DEMANDS = st.lists(st.tuples(st.integers(1, 900), st.floats(0, 40)), min_size=1, max_size=12)


@pytest.mark.thorough
@settings(deadline=None, max_examples=30)
@given(DEMANDS, st.sampled_from([0, 16]))
def test_never_more_or_fewer_servers_than_can_be_had_and_never_more_wakes_than_allowed(
    demand: list[tuple[int, float]], max_bursts: int
) -> None:
    rules = ScalingRules(hold_s=0.0, max_wakes_per_hour=3, max_bursts=max_bursts)
    found = looks(demand, FEW_CPUS, rules)
    assert all(1 <= it.replicas["cpu"] <= 4 and 0 <= it.replicas["gpu"] <= 4 for it in found)
    sleeps = [at for (_, before), (at, after) in pairwise([(0, 0), *changes(found)]) if after < before]
    for at in sleeps:
        assert sum(at - 3600 < other <= at for other in sleeps) <= 3 * CARD.max_replicas


def optimum(demand: list[tuple[int, float]]) -> float:
    """What knowing the future costs, with one card at most: dynamic programming over seconds of idle or busy."""
    one = replace(CARD, max_replicas=1)
    costs = {0: 0.0, 1: inf}
    for seconds, cpu in demand:
        off, on = (with_gpus(n, Load(cpu, cpu / 10), ONE_CPU, one, 1.0).price_per_hour * seconds / 3600 for n in (0, 1))
        wake = one.price_per_hour * one.cold_start_s / 3600
        costs = {0: min(costs[0], costs[1]) + off, 1: min(costs[1], costs[0] + wake) + on}
    return min(costs.values())


@pytest.mark.thorough
@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from([0.5, 9.5])), min_size=1, max_size=8))
def test_by_prices_alone_not_knowing_the_future_costs_at_most_three_times_of_knowing_it(
    demand: list[tuple[int, float]],
) -> None:
    """Renting skis there and back: at most twice for each way, and what both ways share is paid once more."""
    one = replace(CARD, max_replicas=1)
    seconds = [(10 * s, d) for s, d in demand]
    found, levels = looks(seconds, card=one), [d for s, d in seconds for _ in range(s)]
    numbers, cost = [0, *(it.replicas["gpu"] for it in found)], 0.0
    for number, level in zip(numbers, levels, strict=False):
        cost += with_gpus(number, Load(level, level / 10), ONE_CPU, one, 1.0).price_per_hour / 3600
    wakes = sum(after > before for before, after in pairwise(numbers))
    cost += wakes * one.price_per_hour * one.cold_start_s / 3600
    assert cost <= 3 * optimum(seconds) + 0.02
