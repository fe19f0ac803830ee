"""What the scaler tells: nothing without gateways, nothing lower while one is missed, and no pod cancelled by starting again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from serving.decisions.bursts import note_of, noted
from serving.decisions.demand import FRESH_S, GONE_S, Demand
from serving.decisions.scaling import Scaling, ScalingInput, step
from serving.decisions.sizes import sizes_of
from serving.scheduling.bridge import WINDOW_S
from serving.settings import GatewaySettings, PoolSettings, ScalingRules

EAGER = ScalingRules(max_load_ratio=1.0, patience_s=5.0, hold_s=0.0, cpu_hold_s=0.0, handover_s=0.0)
WINDOW = int(WINDOW_S)


def pool(device: str, **more: Any) -> PoolSettings:
    return PoolSettings.model_validate({"urls": ["http://h:1"], "device": device, **more})


POOLS = {
    "cpu": pool("cpu", price_per_hour=0.25, max_replicas=8),
    "gpu": pool("gpu", price_per_hour=1.0, max_replicas=3, cold_start_s=20.0),
}
BUSY = {"cpu": Demand(20.0, 0.0, 8), "gpu": Demand(2.0, 0.0, 0)}  # more than all CPU servers do
QUIET = {"cpu": Demand(0.1, 0.0, 1), "gpu": Demand(0.01, 0.0, 0)}


class Bed:
    """A look a second; what a look does not say is as it was said before."""

    def __init__(self, pools: Mapping[str, PoolSettings] = POOLS, rules: ScalingRules = EAGER, **look: Any) -> None:
        self.sizes, self.rules = sizes_of(GatewaySettings(version=1, pools=dict(pools))), rules
        self.said = replace(ScalingInput(("A",), {}), **look)
        self.state = Scaling()
        self.now = 1000.0
        self.lines: list[tuple[str, int, int, str]] = []

    def run(self, seconds: int, **look: Any) -> Scaling:
        self.said = replace(self.said, **look)
        for _ in range(seconds):
            self.now += 1.0
            self.state = step(self.state, self.now, self.said, self.sizes, self.rules)
            self.lines += [(it.pool, it.before, it.after, it.reason) for it in self.state.changes]
        return self.state


def ready(**there: int) -> dict[str, int]:
    return there


def awake() -> Bed:
    """One GPU is wanted and there, and not needed any more."""
    bed = Bed(there={"cpu": 1, "gpu": 1})
    bed.run(WINDOW + 2, heard={"A": {"cpu": Demand(10.0, 0.0, 1), "gpu": Demand(1.0, 0.5, 1)}})
    assert bed.state.replicas == {"cpu": 1, "gpu": 1}
    return bed


def test_nothing_is_told_until_demands_were_heard_for_a_window() -> None:
    bed = Bed(heard={"A": BUSY}, there={"cpu": 8, "gpu": 0})
    assert bed.run(WINDOW).replicas is None
    assert "10 s" in bed.state.holds
    assert bed.run(1).replicas == {"cpu": 8, "gpu": 0}


def test_too_little_is_told_within_seconds_with_its_reason() -> None:
    bed = Bed(heard={"A": BUSY}, there={"cpu": 8, "gpu": 0})
    found = bed.run(WINDOW + 10)
    assert found.replicas is not None
    assert found.replicas["gpu"] >= 1
    assert bed.lines[0][:2] == ("gpu", 0)
    assert bed.lines[0][3] == "short"


@pytest.mark.parametrize("there", [{"cpu": 8, "gpu": 0}, None])
def test_of_a_pool_that_no_gateway_has_seen_one_server_is_wanted_until_it_answers(there: dict[str, int] | None) -> None:
    never = {"cpu": Demand(20.0, 0.0, 8), "gpu": Demand(20.0, 0.0, 0, 20.0)}
    bed = Bed(heard={"A": never}, there=there)
    assert bed.run(WINDOW + 300).replicas == {"cpu": 8, "gpu": 1}
    answers = {"cpu": Demand(20.0, 0.0, 8), "gpu": Demand(4.0, 0.0, 1)}
    assert bed.run(10, heard={"A": answers}).replicas == {"cpu": 8, "gpu": 3}


def test_a_scaler_that_starts_again_does_not_cancel_a_pod_that_waits_for_its_node() -> None:
    """Nothing of the pool answers yet; demand is such that a GPU pays, but nobody was short of anything for long."""
    pays = {"cpu": Demand(6.0, 0.0, 6), "gpu": Demand(0.6, 0.0, 0)}
    bed = Bed(heard={"A": pays}, there={"cpu": 6, "gpu": 1})
    found = bed.run(200)
    assert found.replicas is not None
    assert found.replicas["gpu"] == 1
    assert [line for line in bed.lines if line[0] == "gpu"] == []


def test_a_pending_pod_that_does_not_pay_is_kept_as_long_as_a_cold_start_costs_and_then_let_go() -> None:
    bed = Bed(heard={"A": QUIET}, there={"cpu": 1, "gpu": 1})
    assert bed.run(WINDOW + 20).replicas == {"cpu": 1, "gpu": 1}
    assert bed.run(10).replicas == {"cpu": 1, "gpu": 0}
    assert bed.lines[-1] == ("gpu", 1, 0, "does_not_pay")


def test_it_waits_for_what_the_cluster_runs_as_long_as_somebody_is_asking() -> None:
    bed = Bed(heard={"A": BUSY}, is_there_known=False)
    assert "cluster" in bed.run(60).holds
    assert bed.run(1, there={"cpu": 2, "gpu": 2}, is_there_known=True).replicas == {"cpu": 2, "gpu": 2}


def test_without_the_cluster_it_begins_from_what_answers_or_pays() -> None:
    bed = Bed(heard={"A": BUSY})
    assert bed.run(WINDOW + 1).replicas == {"cpu": 8, "gpu": 2}  # a GPU may be on its way: it pays at this demand
    idle = Bed(heard={"A": {"cpu": Demand(0.1, 0.0, 2), "gpu": Demand(0.01, 0.0, 1)}})
    assert idle.run(WINDOW + 1).replicas == {"cpu": 2, "gpu": 1}


def test_a_cluster_that_runs_more_or_fewer_than_allowed_is_brought_to_the_bounds() -> None:
    bed = Bed(heard={"A": QUIET}, there={"cpu": 0, "gpu": 9})
    assert bed.run(WINDOW + 1).replicas == {"cpu": 1, "gpu": 3}


def test_while_no_gateway_answers_nothing_is_told_and_afterwards_it_goes_on_from_there() -> None:
    bed = awake()
    bed.run(int(FRESH_S) + 1, heard={})
    assert (bed.state.replicas, bed.state.holds) == (None, "no gateway answers")
    bed.run(3600)
    quiet = {"cpu": Demand(0.1, 0.0, 1), "gpu": Demand(0.01, 0.0, 1)}
    assert bed.run(WINDOW, heard={"A": quiet}).replicas is None
    assert bed.run(1).replicas == {"cpu": 1, "gpu": 1}  # an hour in which nobody knew has cost nothing


@pytest.mark.parametrize(
    ("are_named", "why"),
    [(True, "the gateways' name has no address"), (False, "the gateways' name cannot be looked up")],
)
def test_without_addresses_nothing_is_told(are_named: bool, why: str) -> None:
    bed = awake()
    bed.run(1, addresses=(), heard={}, are_named=are_named)
    assert (bed.state.replicas, bed.state.holds) == (None, why)


def test_while_dns_fails_known_gateways_are_heard_and_nothing_goes_down() -> None:
    bed = awake()
    quiet = {"cpu": Demand(0.1, 0.0, 1), "gpu": Demand(0.01, 0.0, 1)}
    found = bed.run(600, heard={"A": quiet}, are_named=False)
    assert found.replicas == {"cpu": 1, "gpu": 1}
    assert "looked up" in found.keeps
    assert bed.run(60, are_named=True).replicas == {"cpu": 1, "gpu": 0}


def test_while_a_gateway_is_missed_nothing_goes_down_and_what_is_short_goes_up() -> None:
    bed = Bed(addresses=("A", "B"), there={"cpu": 4, "gpu": 1})
    half = {"cpu": Demand(2.0, 0.0, 4), "gpu": Demand(0.2, 0.1, 1)}
    bed.run(WINDOW + 5, heard={"A": half, "B": half})
    start = bed.state.replicas
    assert start is not None
    bed.run(60, heard={"A": QUIET | {"gpu": Demand(0.0, 0.0, 1)}})
    assert bed.state.replicas == start
    assert bed.state.keeps == "B not heard"
    found = bed.run(12, heard={"A": {"cpu": Demand(30.0, 0.0, 4), "gpu": Demand(3.0, 0.0, 1)}})
    assert found.replicas is not None
    assert found.replicas["gpu"] > start["gpu"]


def test_a_gateway_that_dies_flaps_nothing_though_its_demand_moves() -> None:
    bed = Bed(addresses=("A", "B"), there={"cpu": 1, "gpu": 1})
    half = {"cpu": Demand(4.0, 0.0, 1), "gpu": Demand(0.4, 0.2, 1)}
    bed.run(WINDOW + 5, heard={"A": half, "B": half})
    before = bed.state.replicas
    bed.lines.clear()
    for second in range(1, 2 * int(GONE_S)):
        more = min(1.0, second / WINDOW_S)
        moved = {"cpu": Demand(4.0 + 4.0 * more, 0.0, 1), "gpu": Demand(0.4 + 0.4 * more, 0.2 + 0.2 * more, 1)}
        bed.run(1, addresses=("A",), heard={"A": moved})
    assert (bed.state.replicas, bed.lines) == (before, [])


def test_a_clock_that_goes_back_stands_still() -> None:
    bed = awake()
    before = bed.state
    again = step(before, before.at - 5000.0, bed.said, bed.sizes, bed.rules)
    assert again.at == before.at
    assert again.replicas == before.replicas
    bed.now -= 5000.0
    assert bed.run(3).replicas == before.replicas


def test_a_node_that_is_paid_for_longer_is_kept_for_it() -> None:
    hourly = {**POOLS, "gpu": pool("gpu", price_per_hour=1.0, max_replicas=3, cold_start_s=20.0, min_billing_s=600)}
    bed = Bed(
        hourly, heard={"A": {"cpu": Demand(0.1, 0.0, 1), "gpu": Demand(0.01, 0.0, 1)}}, there={"cpu": 1, "gpu": 1}
    )
    assert bed.run(600).replicas == {"cpu": 1, "gpu": 1}
    assert bed.run(20).replicas == {"cpu": 1, "gpu": 0}


# -- pools without a counterpart ---------------------------------------------------------------------------------------


def test_a_pool_alone_follows_its_demand() -> None:
    bed = Bed({"gpu": POOLS["gpu"]}, heard={"A": {"gpu": Demand(1.5, 0.0, 0)}}, there={"gpu": 0})
    assert bed.run(WINDOW + 10).replicas == {"gpu": 2}
    bed = Bed({"cpu": POOLS["cpu"]}, heard={"A": {"cpu": Demand(4.5, 0.0, 1)}}, there={"cpu": 1})
    assert bed.run(WINDOW + 2).replicas == {"cpu": 5}


def test_a_further_pool_is_wanted_for_what_only_it_may_answer() -> None:
    more = {**POOLS, "gpu2": pool("gpu", price_per_hour=1.0, max_replicas=4)}
    both = {**QUIET, "gpu2": Demand(0.01, 0.0, 0)}
    bed = Bed(more, heard={"A": both}, there={"cpu": 1, "gpu": 0, "gpu2": 0})
    assert bed.run(WINDOW + 30).replicas == {"cpu": 1, "gpu": 0, "gpu2": 0}
    found = bed.run(30, heard={"A": {**QUIET, "gpu2": Demand(1.51, 1.5, 0)}})
    assert found.replicas == {"cpu": 1, "gpu": 0, "gpu2": 2}


CARDS = {
    "cpu": pool("cpu", price_per_hour=0.2, max_replicas=4),
    "gpu": pool("gpu", price_per_hour=1.0, max_replicas=3, cold_start_s=300.0),
}
CALM = {"cpu": Demand(0.5, 0.0, 4), "gpu": Demand(0.05, 0.0, 0)}
BURST = {"cpu": Demand(8.0, 0.0, 4), "gpu": Demand(0.8, 0.0, 0)}


def burst(bed: Bed) -> list[tuple[str, int, int, str]]:
    """Of 45 s, after ten minutes less that; the changes of the GPU pool."""
    before = len(bed.lines)
    bed.run(555, heard={"A": CALM})
    bed.run(45, heard={"A": BURST})
    return [it for it in bed.lines[before:] if it[0] == "gpu"]


def test_bursts_that_a_scaler_saw_are_known_to_the_one_after_it() -> None:
    first = Bed(CARDS, ScalingRules(), there={"cpu": 4, "gpu": 0})
    assert burst(first), "nobody knows yet that it is over soon"
    for _ in range(4):
        last = burst(first)
    assert not [it for it in last if it[2] > it[1]]
    assert first.state.target is not None
    note = note_of(first.state.target.needs, first.now, 5e9)
    for needs, wakes in ((noted(note, 1000.0, 5e9 + 20.0), False), ({}, True)):
        after = Bed(CARDS, ScalingRules(), there={"cpu": 4, "gpu": 0}, needs=needs)
        assert any(it[2] > it[1] for it in burst(after)) == wakes
