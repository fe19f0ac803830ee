"""How many servers would pay, out of settings and published demand, and in which words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from serving.decisions.demand import Demand
from serving.decisions.fleet import Supply
from serving.decisions.sizes import (
    COLD_START_S,
    GPU_COLD_START_S,
    FleetTarget,
    Sizes,
    fleet_changes,
    next_fleet,
    sizes_of,
    supply_of,
)
from serving.settings import GatewaySettings, PoolSettings, ScalingRules

RULES = ScalingRules(max_load_ratio=1.0, hold_s=0.0, cpu_hold_s=0.0, handover_s=0.0)
NOBODY = Demand(0.0, 0.0, 0)


def pool(device: str = "cpu", num_urls: int = 1, **more: Any) -> PoolSettings:
    urls = [f"http://h:{n + 1}" for n in range(num_urls)]
    return PoolSettings.model_validate({"urls": urls, "device": device, **more})


@pytest.mark.parametrize(
    ("name", "settings", "supply"),
    [
        ("cpu", pool(), Supply(1.0, 1, 1, COLD_START_S)),
        ("cpu", pool(num_urls=3), Supply(1.0, 1, 3, COLD_START_S)),
        ("gpu", pool("gpu"), Supply(1.0, 0, 1, GPU_COLD_START_S)),
        ("emulated-gpu-1", pool("emulated"), Supply(1.0, 0, 1, GPU_COLD_START_S)),
        ("gpu", pool("gpu", price_per_hour=1.2, max_replicas=4, cold_start_s=0.0), Supply(1.2, 0, 4, 0.0)),
        ("cpu", pool(min_replicas=3), Supply(1.0, 3, 3, COLD_START_S)),
        ("cpu", pool(min_replicas=0), Supply(1.0, 0, 1, COLD_START_S)),
    ],
)
def test_what_can_be_had_of_a_pool_is_what_its_settings_say(name: str, settings: PoolSettings, supply: Supply) -> None:
    assert supply_of(name, settings) == supply


def test_pools_that_come_and_go_are_gpus_and_what_emulates_them() -> None:
    pools = {"gpu": pool("gpu"), "cpu": pool(), "emulated-gpu-1": pool("emulated"), "other": pool()}
    found = sizes_of(GatewaySettings(version=1, pools=pools))
    assert found.coming == {"gpu", "emulated-gpu-1"}
    assert {name for name, supply in found.supplies.items() if supply.has_gpu} == found.coming
    assert list(found.supplies) == list(pools)


SIZES = Sizes({"cpu": Supply(0.25, 1, 8), "gpu": Supply(1.0, 0, 2, 60.0, has_gpu=True)}, frozenset({"gpu"}))


def run(
    demands: dict[str, Demand], seconds: int, wanted_now: FleetTarget | None = None
) -> tuple[FleetTarget, list[str]]:
    """A look a second; at first what answers is taken for wanted."""
    said: list[str] = []
    wanted = wanted_now or FleetTarget({name: it.num_ready for name, it in demands.items()})
    for now in range(int(wanted.at) + 1, int(wanted.at) + 1 + seconds):
        new = next_fleet(wanted, float(now), demands, SIZES, RULES)
        said += [it.sentence for it in fleet_changes(wanted, new, demands, SIZES, RULES)]
        wanted = new
    return wanted, said


def facts(line: str) -> list[str]:
    """The pool and the figures of a sentence."""
    return re.findall(r"^\w+|\bno\b|\d[\d.]*", line)


def test_a_gpu_that_would_pay_is_told_once_with_demand_and_break_even() -> None:
    demands = {"cpu": Demand(8.0, 0.0, 8), "gpu": Demand(0.8, 0.0, 0)}
    state, said = run(demands, 300)
    assert [facts(line) for line in said] == [["gpu", "1", "0.8", "0.5"]]
    assert state.replicas["gpu"] == 1
    quiet = {"cpu": Demand(0.4, 0.0, 8), "gpu": Demand(0.04, 0.0, 1)}
    _, said = run(quiet, 300, state)
    assert ["gpu", "no", "0.04", "0.5"] in [facts(line) for line in said]


def test_servers_of_the_steady_pool_are_told_too() -> None:
    _, said = run({"cpu": Demand(2.5, 2.5, 1), "gpu": NOBODY}, 9)
    assert [facts(line) for line in said] == [["cpu", "3", "2.5"]]


def test_a_gpu_that_nobody_has_seen_is_said_to_be_tried() -> None:
    """It might save the price of six CPU servers, if it took all of it."""
    _, said = run({"cpu": Demand(7.0, 0.0, 7), "gpu": Demand(7.0, 0.0, 0, 7.0)}, 900)
    assert facts(said[0])[:3] == ["gpu", "1", "7"]
    assert "might pay" in said[0]
