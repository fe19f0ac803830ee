"""How often does a report call two equal arms different? The very code that makes a report, on campaigns whose truth is known.

Latencies are not Gaussian and not independent: a queue before a server with lognormal service times, slowness that comes and goes within
a run, noise from run to run, and a machine that drifts from repeat to repeat under both arms alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from loadtest.records import ArmRecord, Load, Manifest, Row, RunRecord
from loadtest.report import build as report
from tests.loadtest import rows as make

NUM_CAMPAIGNS = 1000
NUM_ROWS = 24  # of an open run: the fewest from which a median may be told are 20
OPEN = Load(1.0, 2.0, 1, 7, kind="open", rate_rps=(12.0,), objective_s=1.0)
CLOSED = Load(1.0, 0.6, 1, 7, users=(1,))  # in which about 30 of its 72 requests come back
ARMS = (ArmRecord("first", "fp32", "cpu"), ArmRecord("second", "fp32", "cpu"))

Times = npt.NDArray[np.float64]


def simulated(random: np.random.Generator, load: Load, *, shared: Times, ours: float) -> Times:
    """Latencies [runs, rows] in seconds. `shared` [runs]: of the machine at the time. `ours`: how much slower the arm is."""
    is_open = load.kind == "open"
    shape = len(shared), NUM_ROWS if is_open else 3 * NUM_ROWS
    mood = np.zeros(shape)  # slowness that comes and goes: each request remembers 80 % of the one before
    jolts = random.normal(0, 0.1, shape)
    for at in range(1, shape[1]):
        mood[:, at] = 0.8 * mood[:, at - 1] + jolts[:, at]
    noise = random.normal(0, 0.05, (shape[0], 1))  # of this run alone
    service_s = 0.02 * ours * np.exp(random.normal(0, 0.5, shape) + mood + noise + shared[:, None])
    if not is_open:
        return service_s  # a lone user never waits for another
    gaps_s = random.exponential(0.04, shape)
    waited_s = np.zeros(shape)  # Lindley: who comes waits for what is left of those before
    for at in range(1, NUM_ROWS):
        waited_s[:, at] = np.maximum(0, waited_s[:, at - 1] + service_s[:, at - 1] - gaps_s[:, at])
    return waited_s + service_s


def campaign(load: Load, repeats: int, random: np.random.Generator, ours: float = 1.0) -> tuple[Manifest, dict[str, list[Row]]]:  # fmt: skip
    """Two arms, the second `ours` times as slow."""
    drift = random.normal(0, 0.1, repeats).cumsum()
    runs: list[RunRecord] = []
    by_run: dict[str, list[Row]] = {}
    for arm, slow in zip(ARMS, (1.0, ours), strict=True):
        for repeat, times_s in enumerate(simulated(random, load, shared=drift, ours=slow).tolist(), start=1):
            scheduled = NUM_ROWS if load.kind == "open" else None
            run = make.run(arm.name, repeat, point=load.points[0], num_scheduled=scheduled)
            runs.append(run)
            by_run[run.rows] = _rows(times_s, load)
    return make.manifest(runs, load=replace(load, repeats=repeats), arms=ARMS, baseline="first"), by_run


def _rows(times_s: list[float], load: Load) -> list[Row]:
    if load.kind == "open":
        starts_s = [1.0 + 2.0 * at / NUM_ROWS for at in range(NUM_ROWS)]
    else:  # one after the other, from a moment that nobody chose
        starts_s = (1.0 - times_s[0] / 2 + np.concatenate([[0.0], np.cumsum(times_s[:-1])])).tolist()
    return [
        Row(at, 0.0, time_s, 200, 1, None, "fp32", "cpu", make.CPU, "")
        for at, time_s in zip(starts_s, times_s, strict=True)
    ]


def told(load: Load, repeats: int, seed: int, ours: float = 1.0) -> Literal["faster", "slower", "equal"]:
    """As the report calls the second arm."""
    arm = report.summarise(*campaign(load, repeats, np.random.default_rng(seed), ours)).arms[1]
    ratio = arm.speed_ratio if load.kind == "open" else arm.throughput_ratio
    assert ratio is not None
    words: dict[str, Literal["faster", "slower", "equal"]] = {"higher": "faster", "lower": "slower"}
    assert ratio.outcome != "inconclusive"
    return words.get(ratio.outcome, "equal")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("load", "repeats"), [(OPEN, 3), (OPEN, 5), (OPEN, 10), (CLOSED, 3)])
def test_two_equal_arms_are_called_different_in_five_percent_of_reports(load: Load, repeats: int) -> None:
    words = [told(load, repeats, seed) for seed in range(NUM_CAMPAIGNS)]
    alarms = sum(word != "equal" for word in words)
    assert 0.02 <= alarms / NUM_CAMPAIGNS <= 0.08
    assert words.count("faster") / alarms == pytest.approx(0.5, abs=0.3)  # not always the same side


@pytest.mark.parametrize(
    ("repeats", "least"),
    [
        pytest.param(3, 0.1, marks=pytest.mark.thorough),
        (5, 0.45),
        pytest.param(10, 0.85, marks=pytest.mark.thorough),
    ],
)
def test_an_arm_that_is_half_as_slow_again_is_found_the_oftener_the_more_repeats_there_are(repeats: int, least: float) -> None:  # fmt: skip
    words = [told(OPEN, repeats, seed, ours=1.5) for seed in range(100)]
    assert words.count("slower") / 100 >= least
    assert words.count("faster") <= 2
