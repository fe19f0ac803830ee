"""What did the run's machines cost, next to a card that is always on? Off the timeline of the real controllers: no simulation.

A GPU machine is paid from its purchase to its end, and each of two that are there at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from serving.decisions.prices import HOUR_S
from tests.cluster.bed.api import Object
from tests.cluster.hybrid.chart import GPU, PRICE_PER_HOUR


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds. `one_s`: with at least one GPU machine; `node_s`: the sum over all of them; `cpu_s`: over all CPU servers that are asked for."""

    lasting_s: float
    one_s: float
    node_s: float
    cpu_s: float

    @property
    def cost(self) -> float:
        """Of GPU machines."""
        return self.node_s * PRICE_PER_HOUR[GPU] / HOUR_S

    @property
    def always_cost(self) -> float:
        return self.lasting_s * PRICE_PER_HOUR[GPU] / HOUR_S


def spent(report: Object) -> Spent:
    """Since the load began."""
    return between(report, report["load_began_s"], report["seconds"])


def between(report: Object, began_s: float, ended_s: float) -> Spent:
    before = [it for it in report["looks"] if it["at_s"] <= began_s][-1:]
    after = [it for it in report["looks"] if began_s < it["at_s"] < ended_s]
    looks = [*(it | {"at_s": began_s} for it in before), *after, {"at_s": ended_s}]
    steps = [(it, later["at_s"] - it["at_s"]) for it, later in pairwise(looks)]
    return Spent(
        lasting_s=ended_s - began_s,
        one_s=sum(s for it, s in steps if it["claims"]),
        node_s=sum(s * it["claims"] for it, s in steps),
        cpu_s=sum(s * it["replicas_cpu"] for it, s in steps),
    )
