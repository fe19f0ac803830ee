"""By a flow of work: the optimum is one, no rule is charged less, others' rules do as is published, and any number of pools is told."""

from __future__ import annotations

import json
import re
from itertools import pairwise, product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from serving.cli import cli
from serving.decisions.demand import Demand
from serving.decisions.fleet import Supply
from serving.decisions.prices import HOUR_S
from serving.decisions.simulate.flow import Wanted, by_scaler, first_of, flow_of, optimum, play, recommended, regret
from serving.decisions.simulate.outcome import SLOT_S
from serving.decisions.simulate.rivals import KEDA_COOLDOWN_S, KNATIVE_GRACE_S, KNATIVE_STABLE_S, rivals
from serving.decisions.sizes import Sizes
from serving.errors import UserError
from serving.settings import ScalingRules

RULES = ScalingRules()
CPU, GPU = Supply(0.2, 0, 1, 20.0), Supply(1.0, 0, 2, 60.0, consolidation_s=15.0, has_gpu=True)
SIZES = Sizes({"cpu": CPU, "gpu": GPU}, frozenset({"gpu"}))


@pytest.mark.parametrize(("seed", "first"), [(0, (1, 2)), (1, (0, 0)), (2, (0, 1)), (3, (1, 0))])
def test_the_optimum_is_the_least_of_all_ways_from_the_servers_that_are_there(
    seed: int, first: tuple[int, int]
) -> None:
    work = np.random.default_rng(seed).choice([0.0, 0.5, 4.0, 12.0], 5)
    flow = flow_of(list(np.repeat(work, int(SLOT_S))), {"cpu": 1.0, "gpu": 10.0})

    def charged(numbers: tuple[tuple[int, int], ...]) -> float:
        total = 0.0
        for slot, ((cpu, gpu), each) in enumerate(zip(numbers, work, strict=True)):
            at = (slot + 1) * SLOT_S
            if (cpu > first[0] and at <= CPU.cold_start_s) or (gpu > first[1] and at <= GPU.cold_start_s):
                return inf
            needed = each / 10 / RULES.max_load_ratio
            done = (cpu / 10 + gpu) / needed if needed else 1.0
            undone = RULES.undone_ratio * max(0.0, 1 - done) * min(needed, needed * 10)
            total += (0.2 * cpu + gpu + undone) * SLOT_S / HOUR_S
        for (cpu, gpu), (next_cpu, next_gpu) in pairwise((first, *numbers)):
            total += (0.2 * 20 * max(0, next_cpu - cpu) + 75 * max(0, next_gpu - gpu)) / HOUR_S
        return total

    ways = product(product(range(2), range(3)), repeat=5)
    found = optimum(flow, SIZES, RULES, 50.0, dict(zip(("cpu", "gpu"), first, strict=True)))
    assert found.charged == pytest.approx(min(map(charged, ways)))


def test_no_rule_is_charged_less_than_the_optimum_and_recommended_ones_no_more_than_those_there_are() -> None:
    generator = np.random.default_rng(5)
    work = np.repeat(generator.choice([0.2, 6.0], 4), 30)
    flow = flow_of(list(work), {"cpu": 1.0, "gpu": 10.0})
    first = first_of(flow, SIZES, RULES)
    best = optimum(flow, SIZES, RULES, 120.0, first)
    all_of_them = {"tandem": by_scaler(SIZES, RULES, first), **rivals(SIZES, first, RULES.max_load_ratio)}
    found = {name: play(name, flow, SIZES, RULES, rule, first) for name, rule in all_of_them.items()}
    assert all(regret(it, best) >= 0.98 for it in found.values()), "a slot of ten seconds hides a little"
    advised, outcome = recommended(flow, SIZES, RULES)
    assert outcome.charged <= found["tandem"].charged
    again = play("again", flow, SIZES, RULES, by_scaler(SIZES, advised, first), first)
    assert again.charged == outcome.charged


def test_changes_of_pools_that_come_and_go_are_counted_and_at_constant_load_nobody_flaps() -> None:
    flow = flow_of([4.0] * 1800, {"cpu": 1.0, "gpu": 10.0})

    def changes_an_hour(rule: Wanted) -> float:
        return play("rule", flow, SIZES, RULES, rule, {"cpu": 1, "gpu": 1}).changes_per_hour

    assert changes_an_hour(lambda now, _: {"cpu": int(now) // 60 % 2, "gpu": int(now) // 300 % 2}) == 2 * 6
    for name, rule in rivals(SIZES, {"cpu": 1, "gpu": 1}, RULES.max_load_ratio).items():
        assert changes_an_hour(rule) == 0, name
    assert changes_an_hour(by_scaler(SIZES, RULES, {"cpu": 1, "gpu": 1})) == 0


def followed(name: str, *legs: tuple[int, float]) -> list[int]:
    """Cards of each second, for legs of (seconds, cards' work)."""
    sizes = Sizes({"cpu": CPU, "gpu": Supply(1.0, 0, 20, 60.0, has_gpu=True)}, frozenset({"gpu"}))
    rule, found, now = rivals(sizes, {"cpu": 0, "gpu": 0}, 0.7)[name], [], 0
    for seconds, work in legs:
        for _ in range(seconds):
            found.append(rule(float(now), {"cpu": Demand(0, 0, 0), "gpu": Demand(work, 0.0, 0)})["gpu"])
            now += 1
    return found


def test_others_go_up_and_down_as_is_published() -> None:
    for name in ("hpa", "keda"):
        found = followed(name, (200, 7.0), (900, 0.7))
        assert found[199] == 10
        assert found[200 + 250] == 10, "the highest of five minutes"
        assert found[-1] == 1
    assert followed("hpa", (60, 7.0), (2000, 0.0))[-1] == 1, "never none"
    quiet = followed("keda", (60, 7.0), (2000, 0.0))
    assert (quiet[60 + KEDA_COOLDOWN_S - 1] > 0, quiet[60 + KEDA_COOLDOWN_S + 1]) == (True, 0)
    panics = followed("knative", (60, 0.7), (8, 7.0))
    assert panics[-1] > 5 * panics[59], "by six seconds, not sixty"
    gone = followed("knative", (60, 0.7), (KNATIVE_STABLE_S + KNATIVE_GRACE_S + 4, 0.0))
    assert (gone[60 + KNATIVE_STABLE_S], gone[-1]) == (1, 0)


POOL = {"curve": [[1, 0.05]], "price_per_hour": 0.2, "replicas": [1, 6], "cold_start_s": [20, 20, 20]}
THREE: dict[str, Any] = {
    "cpu": POOL,
    "l4": {**POOL, "device": "gpu", "curve": [[1, 0.00625]], "price_per_hour": 0.8, "replicas": [0, 2]},
    "a100": {**POOL, "device": "gpu", "curve": [[1, 0.00125]], "price_per_hour": 4.1, "replicas": [0, 1]},
}


def simulated(tmp_path: Path, *words: str, **more: object) -> Any:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "objective_s": 0.3, "pools": THREE, **more}))
    return CliRunner().invoke(cli, ["simulate", str(path), "--duration", "80", *words], catch_exceptions=False)


def test_pools_of_several_sizes_are_told_by_a_flow_and_quotas_bound_them(tmp_path: Path) -> None:
    def hours(**more: object) -> dict[str, float]:
        result = simulated(tmp_path, "--flow", "--rate", "150", "--json", **more)
        assert result.exit_code == 0, result.output
        rules = {it["name"]: it for it in json.loads(result.stdout)["rules"]}
        assert rules["tandem"]["regret"] >= 0.98
        assert set(rules) == {"tandem", "hpa", "keda", "knative", "optimum"}
        found: dict[str, float] = rules["tandem"]["hours"]
        return found

    assert hours()["l4"] > 0
    assert hours(quotas={"gpus": {"pools": ["l4", "a100"], "max_cards": 0}})["l4"] == 0


def test_what_is_recommended_is_a_block_of_settings(tmp_path: Path) -> None:
    only = {name: it for name, it in THREE.items() if name != "a100"}
    result = simulated(tmp_path, "--recommend", "--rate", "100", pools=only)
    block = yaml.safe_load(result.stdout.rpartition("\n\n")[2])
    assert block.keys() == {"scaling"}
    ScalingRules.model_validate(block["scaling"])


def test_what_a_flow_cannot_do_is_said(tmp_path: Path) -> None:
    for words in (("--flow", "--policy", "tandem"), ("--recommend", "--noise", "0.1")):
        with pytest.raises(UserError, match=r"flow"):
            simulated(tmp_path, *words)


def test_requests_one_by_one_know_any_number_of_pools_too(tmp_path: Path) -> None:
    result = simulated(tmp_path, "--duration", "60", "--policy", "tandem", "--policy", "gpu-always")
    (head,) = (line for line in result.stdout.splitlines() if line.startswith("policy "))
    assert {"cpu h", "l4 h", "a100 h"} <= set(re.split(r" {2,}", head))
