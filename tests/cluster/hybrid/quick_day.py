"""A day of demand in minutes, through the real scaler and Karpenter: what do GPU nodes that come and go cost, next to one that is always on?

Only demand is sped up. Machines, Tritons, Karpenter's looks and the time for which the scaler lets a server stay take what they take in the
story, and so weigh as many times more than in a day: what is found is more than such a day would take.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from serving.decisions.prices import HOUR_S
from serving.decisions.simulate.arrivals import DAY_S, daily
from tests.cluster.bed.api import Object
from tests.cluster.hybrid.chart import CPU, CPU_REPLICAS, GPU, PRICE_PER_HOUR
from tests.cluster.hybrid.spent import between
from tests.cluster.hybrid.story import Story

DAY = "a day"
MEAN_RPS, SWING = 16.0, 0.75  # 4 to 28 a second, as the story's low and high
STEP_S = 0.5  # in which the rate stands still
# Half of what a third CPU server costs. The story's card is six times as cheap, so that it is wanted soon; always on it would cost next to nothing.
GPU_PRICE = 0.15


@dataclass(frozen=True, slots=True)
class Bill:
    """Of the whole day: hours as if it had taken 24. `third_cpu_hours`: of CPU servers beyond those that are always there."""

    times: float
    share: float  # of the day with at least one GPU node
    node_hours: float
    third_cpu_hours: float

    @property
    def cost(self) -> float:
        return self.node_hours * GPU_PRICE + self.third_cpu_hours * PRICE_PER_HOUR[CPU]

    @property
    def always_cost(self) -> float:
        return DAY_S / HOUR_S * GPU_PRICE


def play(story: Story, lasting_s: float) -> None:
    story.warm_up(**{f"pools.{GPU}.pricePerHour": GPU_PRICE})
    rate = daily(MEAN_RPS, SWING)
    with story.phase(DAY):
        began = time.monotonic()
        while (at_s := time.monotonic() - began) < lasting_s:
            story.load.rate_rps = rate(at_s * DAY_S / lasting_s)
            time.sleep(STEP_S)


def bill(report: Object) -> Bill:
    phase = report["phases"][DAY]
    found = between(report, phase["at_s"], phase["at_s"] + phase["seconds"])
    times = DAY_S / found.lasting_s
    third_s = found.cpu_s - CPU_REPLICAS[0] * found.lasting_s
    return Bill(times, found.one_s / found.lasting_s, found.node_s * times / HOUR_S, third_s * times / HOUR_S)
