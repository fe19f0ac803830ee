"""How many servers would pay, out of settings and published demand, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from serving.decisions.demand import Demand
from serving.decisions.wake import (
    COLD_START_S,
    GPU_COLD_START_S,
    Pair,
    Supply,
    Target,
    WakeRules,
    pair_of,
    sentences,
    supply_of,
    target_for,
)
from serving.settings import PoolSettings

RULES = WakeRules(max_load_ratio=1.0, hold_s=0.0, cpu_hold_s=0.0, handover_s=0.0)
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


def test_there_is_nothing_to_weigh_without_both_kinds_of_pools() -> None:
    assert pair_of({"cpu": pool()}) is None
    assert pair_of({"gpu": pool("gpu")}) is None
    both = pair_of({"gpu": pool("gpu"), "cpu": pool(), "other": pool()})
    assert both is not None
    assert (both.steady, both.coming) == ("cpu", "gpu")


PAIR = Pair("cpu", "gpu", Supply(0.25, 1, 8), Supply(1.0, 0, 2, 60.0))


def run(demands: dict[str, Demand], seconds: int, wanted_now: Target | None = None) -> tuple[Target, list[str]]:
    """A look a second."""
    said: list[str] = []
    start = int(wanted_now.at) + 1 if wanted_now else 0
    for now in range(start, start + seconds):
        new = target_for(wanted_now, float(now), PAIR, demands, RULES)
        if wanted_now is not None:
            said += sentences(wanted_now, new, PAIR, demands, RULES)
        wanted_now = new
    assert wanted_now is not None
    return wanted_now, said


def test_a_gpu_that_would_pay_is_told_once_with_demand_and_break_even() -> None:
    demands = {"cpu": Demand(8.0, 0.0, 8), "gpu": Demand(0.8, 0.0, 0)}
    state, said = run(demands, 300)
    assert said == ["gpu: 1 server would pay (demand 0.8 servers, break-even 0.5)"]
    assert state.gpu == 1
    quiet = {"cpu": Demand(0.4, 0.0, 8), "gpu": Demand(0.04, 0.0, 1)}
    _, said = run(quiet, 300, state)
    assert "gpu: no server would pay (demand 0.04 servers, break-even 0.5)" in said


def test_what_is_there_at_first_is_taken_for_wanted() -> None:
    assert run({"cpu": Demand(0.0, 0.0, 2), "gpu": Demand(0.0, 0.0, 1)}, 1)[0] == Target(2, 1, 0.0)


def test_servers_of_the_steady_pool_are_told_too() -> None:
    assert run({"cpu": Demand(2.5, 2.5, 1), "gpu": NOBODY}, 9)[1] == ["cpu: 3 servers would do (demand 2.5 servers)"]


def test_a_gpu_that_nobody_has_seen_is_said_to_be_tried() -> None:
    """It might save the price of six CPU servers, if it took all of it."""
    _, said = run({"cpu": Demand(7.0, 0.0, 7), "gpu": Demand(7.0, 0.0, 0, 7.0)}, 900)
    assert said[0] == "gpu: 1 server might pay, which shows when it is there (demand 7 servers at most)"
