"""What would a day cost, next to GPUs that are always on? A simulated day, with the delays of the run's own controllers.

The scenario says what no bed can: prices, speeds, and how long a real node takes to come. The report says what the controllers added: from the
scaler's wish to Karpenter's purchase, and from the end of the wish to the end of the node beyond the time that Karpenter is told to wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from serving.decisions.prices import HOUR_S
from serving.decisions.simulate.arrivals import DAY_S, PoissonArrivals, daily
from serving.decisions.simulate.outcome import Outcome
from serving.decisions.simulate.run import Draws, simulate
from serving.decisions.simulate.scenario import POLICIES, ColdStart, PoolSetting, Setting, read_scenario
from tests.cluster.bed.api import Object
from tests.cluster.hybrid.chart import EMPTY_S
from tests.cluster.hybrid.moments import CLAIM, NODE_GONE, NONE_WANTED, WANTED

CONSOLIDATE_S = 300.0  # consolidateAfter of k8s/gpu-nodes/karpenter-aws.yaml
ASKED = ("tandem", "gpu-always")
PER_SECOND = 10  # requests of each second that are looked at while nothing changes


@dataclass(frozen=True, slots=True)
class Day:
    """`node_hours`: of GPU machines, from their purchase to their end."""

    policy: str
    mean_rps: float
    node_hours: float
    cpu_hours: float
    cost: float
    in_time_ratio: float
    num_starts: int


def controllers_s(report: Object) -> tuple[float, float]:
    """Before the purchase, and after the last Triton was let go, without what Karpenter is told to wait."""
    at = {it["what"]: it["at_s"] for it in report["moments"]}
    return at[CLAIM] - at[WANTED], at[NODE_GONE] - at[NONE_WANTED] - EMPTY_S


def days(report: Object, scenario: Path, mean_rps: float, swing: float) -> list[Day]:
    before_s, after_s = controllers_s(report)
    setting = read_scenario(scenario)
    setting = replace(setting, pools=tuple(_later(it, before_s) if it.has_gpu else it for it in setting.pools))
    arrivals = PoissonArrivals(daily(mean_rps, swing), DAY_S, lambda number: random.Random(number))
    outcomes = [simulate(setting, it, arrivals, _draws, per_second=PER_SECOND) for it in POLICIES if it.name in ASKED]
    return [_day(it, setting, mean_rps, before_s, after_s + CONSOLIDATE_S) for it in outcomes]


def _later(pool: PoolSetting, by_s: float) -> PoolSetting:
    cold = pool.cold_start
    return replace(pool, cold_start=ColdStart(*(it + by_s for it in (cold.least_s, cold.usual_s, cold.most_s))))


def _day(it: Outcome, setting: Setting, mean_rps: float, before_s: float, after_s: float) -> Day:
    """The simulator pays from the wish to its end; a machine is paid from its purchase to its own."""
    node_hours = it.gpu_hours + it.num_gpu_starts * (after_s - before_s) / HOUR_S  # what is always on has no start
    ((cpu,), (gpu,)) = setting.cpus, setting.gpus
    cost = node_hours * gpu.price_per_hour + it.cpu_hours * cpu.price_per_hour
    return Day(it.policy, mean_rps, node_hours, it.cpu_hours, cost, it.attainment_ratio, it.num_gpu_starts)


def _draws() -> Draws:
    draw: Callable[[], float] = random.Random(1).random
    return Draws(draw)
