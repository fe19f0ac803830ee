"""Of pools of several sizes the cheapest mix is wanted, whatever they are called; what does not come is replaced, and taken when it comes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from serving.decisions.cold_start import ColdStart
from serving.decisions.demand import Demand, Demands
from serving.decisions.fleet import Supply
from serving.decisions.sizes import (
    LEAST_GIVE_UP_S,
    FleetTarget,
    Sizes,
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
