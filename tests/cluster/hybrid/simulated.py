"""Does `tandem simulate` tell the same story? The run's own requests and delays, through the simulator's functions.

It gets what was measured: how long a request takes that is alone on a CPU server, the time from a wish to an answer, from a wish to the node,
and from the end of a wish to the end of the node. When to wish it decides by itself, and how traffic goes over. It knows of no accident: that
nodes are lost in between is not in it. Rule: nothing that is compared is given to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from serving.decisions.simulate.arrivals import Arrivals, ListedArrivals
from serving.decisions.simulate.outcome import Outcome
from serving.decisions.simulate.run import Draws, simulate
from serving.decisions.simulate.scenario import POLICIES, ColdStart, PoolSetting, Setting
from serving.scheduling.bridge import RULES
from serving.scheduling.curve import Curve
from serving.scheduling.prediction import Service
from tests.cluster.bed.api import Object
from tests.cluster.hybrid.chart import COLD_START_S, CPU, CPU_REPLICAS, GPU, GPU_REPLICAS, PRICE_PER_HOUR, SECONDS_A_ROW
from tests.cluster.hybrid.moments import ANSWERS, MOST_ANSWERS, NODE, NODE_GONE, NONE_WANTED, RISES, WANTED

PATIENT_S = 20.0  # the clients' own patience (load.py); the run sets no objective
QUIET = "warm on the CPU"  # the phase in which requests are alone


@dataclass(frozen=True, slots=True)
class Delays:
    """Measured, in seconds."""

    node_late_s: float  # from the wish for a GPU server to its node
    ready_s: float  # from there to its first answer, without the time for which gateways wait by rule
    tail_s: float  # from the end of the wish to the end of the node
    cpu_s: float  # of a request


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds since demand rose: when the GPU was wished for, until when the CPU bridged most of it, when the GPU was wished for no more; and
    for how long a node was there."""

    wanted_s: float
    bridged_s: float
    none_wanted_s: float
    node_s: float


def delays(report: Object) -> Delays:
    at = _at(report)
    return Delays(
        node_late_s=at[NODE] - at[WANTED],
        ready_s=at[ANSWERS] - at[WANTED] - RULES.settle_s,
        tail_s=at[NODE_GONE] - at[NONE_WANTED],
        cpu_s=report["phases"][QUIET]["p50_s"],
    )


def measured(report: Object) -> Compared:
    """From when demand rose. While a lost node drains and the next one is there already, it counts as one: accidents are in the run alone."""
    at = _at(report)
    looks = [*(it for it in report["looks"] if it["at_s"] >= at[RISES]), {"at_s": report["seconds"], "cards": 0}]
    node_s = sum(min(it["cards"], 1) * (after["at_s"] - it["at_s"]) for it, after in pairwise(looks))
    return Compared(at[WANTED] - at[RISES], at[MOST_ANSWERS] - at[RISES], at[NONE_WANTED] - at[RISES], node_s)


def simulated(report: Object) -> Compared:
    at, known = _at(report), delays(report)
    rises_s = at[RISES] - report["load_began_s"]
    lasting_s = at[NODE_GONE] - report["load_began_s"]
    outcome = through(ListedArrivals((it for it in report["arrivals_s"] if it < lasting_s), lasting_s), known)
    wanted_s = next(it.at_s for it in outcome.timeline if it.num_cold or it.num_gpu)
    ready_s = next(it.at_s for it in outcome.timeline if it.num_gpu)
    none_s = next(it.at_s for it in outcome.timeline if it.at_s > ready_s and not it.num_gpu)
    node_s = (none_s + known.tail_s) - (wanted_s + known.node_late_s)
    bridged_s = ready_s + RULES.settle_s + RULES.ramp_s / 2
    return Compared(wanted_s - rises_s, bridged_s - rises_s, none_s - rises_s, node_s)


def through(arrivals: Arrivals, known: Delays) -> Outcome:
    """What Tandem does, with the run's pools."""
    cpu = _pool(CPU, known.cpu_s, COLD_START_S[CPU])
    gpu = _pool(GPU, SECONDS_A_ROW[GPU], known.ready_s)
    return simulate(Setting((cpu, gpu), PATIENT_S), POLICIES[0], arrivals, _draws)


def _draws() -> Draws:
    draw: Callable[[], float] = random.Random(1).random
    return Draws(draw)


def _pool(name: str, seconds_a_row: float, cold_start_s: float) -> PoolSetting:
    least, most = {CPU: CPU_REPLICAS, GPU: GPU_REPLICAS}[name]
    service = Service(Curve(((1, seconds_a_row),)))
    cold_start = ColdStart(cold_start_s, cold_start_s, cold_start_s)
    return PoolSetting(name, service, PRICE_PER_HOUR[name], least, most, cold_start, least, has_gpu=name == GPU)


def _at(report: Object) -> dict[str, float]:
    return {it["what"]: it["at_s"] for it in report["moments"]}


def is_in_order(it: Compared) -> bool:
    return 0 < it.wanted_s < it.bridged_s < it.none_wanted_s
