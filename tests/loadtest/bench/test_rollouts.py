"""The bench of simulated rollouts, in short; the whole of it is `python -m loadtest.bench.rollouts`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench.rollouts import (
    MODULE,
    PLANTED,
    SAME,
    Plant,
    Thresholds,
    World,
    blocks,
    logged,
    main,
    runs,
    simulate,
)
from serving.cluster.control_map import ControlMap
from serving.decisions.rollout import Arm, Block

BY = {
    "1 % wrong answers": "agreement",
    "5 % slower": "latency",
    "two of ten labels swapped": "agreement",
    "INT8 off on one of four replicas, 5 % wrong there": "agreement",
    "2 % of requests take ten times as long": "slowest",
    "0.5 % more errors": "errors",
    "15 % dearer": "cost",
    "every request fails": "errors",
}
SLOWLY_FOUND = ("1 % wrong answers", "5 % slower", "0.5 % more errors")


def test_the_same_model_is_not_taken_back() -> None:
    assert {run.outcome for run in runs(SAME, 1, lasting_s=300)} <= {"promoted", "held"}


@pytest.mark.parametrize(
    "plant",
    [pytest.param(it, id=it.name, marks=[pytest.mark.thorough] * (it.name in SLOWLY_FOUND)) for it in PLANTED],
)
def test_what_is_planted_is_taken_back_for_the_right_reason(plant: Plant) -> None:
    run = simulate(1, plant, beside=False)
    assert (run.outcome, run.because) == ("rolled_back", (BY[plant.name],))


def test_four_gateways_judge_together_as_one() -> None:
    assert simulate(1, SAME, lasting_s=100, beside=False, num_gateways=4).outcome != "rolled_back"
    run = simulate(1, PLANTED[2], beside=False, num_gateways=4)
    assert (run.outcome, run.because) == ("rolled_back", ("agreement",))
    of = list(blocks(1, SAME, lasting_s=60))
    assert sum(it.candidate.num for it in of) - 200 < sum(it.candidate.num for it in logged(of, 4, 1))


@pytest.mark.thorough
def test_blocks_of_a_configmap_are_enough_to_promote_and_answers_do_not_wait_for_them() -> None:
    assert simulate(1, SAME, lasting_s=3600, beside=False, store=ControlMap).outcome == "promoted"
    run = simulate(1, PLANTED[2], beside=False, store=ControlMap)
    assert (run.outcome, run.because, run.num_seconds < ControlMap.block_s) == ("rolled_back", ("agreement",), True)


@pytest.mark.thorough
@pytest.mark.timeout(900)  # 25 to 40 s of a processor's time each
@pytest.mark.parametrize("world", [World(), World(counts_queues=True), World(mood_s=20.0)])
def test_the_same_model_is_hardly_ever_taken_back(world: World) -> None:
    found = runs(SAME, 40, world, lasting_s=900)
    assert sum(run.outcome == "rolled_back" for run in found) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("plant", PLANTED, ids=lambda it: it.name)
def test_all_that_is_planted_is_taken_back(plant: Plant) -> None:
    assert {run.outcome for run in runs(plant, 10)} == {"rolled_back"}


def test_simulated_seconds_depend_on_each_other_and_times_have_a_tail() -> None:
    of = list(blocks(3, SAME, World(counts_queues=True), 600))
    medians = np.log([np.median(block.candidate.latencies_s) for block in of])
    off = medians - medians.mean()
    assert (off[1:] @ off[:-1]) / (off @ off) > 0.2
    latencies_s = np.concatenate([block.primary.latencies_s for block in of])
    assert np.quantile(latencies_s, 0.99) > 4 * np.median(latencies_s)


def test_fixed_thresholds_count_bad_minutes() -> None:
    good = [Block(Arm([0.1] * 20, 20), Arm([0.1] * 20, 20))] * 900
    bad = [Block(Arm([0.6] * 20, 20), Arm([0.1] * 20, 20))] * 900
    for is_relative in (False, True):
        assert Thresholds(is_relative).outcome(good) == ("promoted", 60 * 20 * 10)
        assert Thresholds(is_relative).outcome(bad) == ("rolled_back", 60 * 20 * 5)


@pytest.mark.thorough
def test_the_bench_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rollouts.json"
    assert main(["--quick", "--seconds", "60", "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert [row["candidate"] for row in told["rows"]] == [SAME.name, *(it.name for it in PLANTED)]
    assert f"python -m {MODULE}" in capsys.readouterr().out
