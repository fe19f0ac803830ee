"""`python -m tests.cluster.hybrid.page report.json docs/story.md docs/story.svg`: the run as a page and a picture.

Every figure comes out of the report, or out of the simulator with the report's delays; what a figure means stands beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.cluster.bed.api import Object
from tests.cluster.hybrid import quick_day, three_pools
from tests.cluster.hybrid.chart import CPU, GPU, HIGH_RPS, LOW_RPS, PRICE_PER_HOUR
from tests.cluster.hybrid.container import ROOT
from tests.cluster.hybrid.day import CONSOLIDATE_S, Day, controllers_s, days
from tests.cluster.hybrid.moments import ENDED, LET_GO, NOTICE_S, NOTICES, TOLD
from tests.cluster.hybrid.picture import draw
from tests.cluster.hybrid.simulated import Compared, measured, simulated
from tests.cluster.hybrid.spent import spent

SCENARIO = Path("docs/scenarios/bert-large.yaml")
MEANS_RPS, SWING = (
    (40.0, 300.0),
    0.9,
)  # of two days: around where the first GPU pays in that scenario, and where several do
TEXT = """# A GPU node comes and goes: the story on the clock

What happens when demand rises and falls, on a real control plane with the real scaler (`autoscaling.by: scaler`), scheduler and Karpenter: [tests on a control plane](cluster-tests.md#real-processes-behind-simulated-pods)
says what is real there and what stands in. Nodes are simulated, the GPU pool is [emulated](emulated.md): no time here is a cloud's or a card's. Nobody tells the cluster a number; only the load changes.

    python -m tests.cluster.hybrid --report report.json
    python -m tests.cluster.hybrid.page report.json docs/story.md docs/story.svg{further}

Seen on {day}, on two cores of a machine that calls its processor {processor}; the run took {seconds:.0f} s and had {requests:,} requests.

![requests, servers and nodes over time](story.svg)

## Step by step

| second | what | s after |
| --- | --- | --- |
{moments}

A Triton has to leave its node three times by a notice. In a maintenance an operator says `kubectl drain`; the pool has no disruption budget, because one of a pool that may be down to one Triton would keep it there for ever. For a
consolidation the operator lets Karpenter buy spot machines and move what runs to a cheaper one (the NodePool of [k8s/gpu-nodes](../k8s/gpu-nodes/README.md) does not); it buys first, and gives the old node up when the new one is ready.
The spot notice is the cloud's. {let_go} the shortest notice of a cloud is {notice:.0f} s. Gateways have let go once none of them has a connection to it.

## What the clients saw

{errors}

| from second | what is done | requests | of them gRPC | failed | answered by the CPU | by the GPU | median ms | longest s |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{phases}

Three of four requests are HTTP, and one is gRPC over channels that are kept for the whole run. Clients try nothing again that a gateway has begun. A killed gateway loses what is on its way to it
([which is excused](cluster-tests.md#real-processes-behind-simulated-pods), and nothing else).
The GPU pool's only pod waits for the scaler, which wants none, and no node is bought before demand rises. Of the two scalers the one that set replicas
was killed, and then the other: the Lease had another holder {hand_overs} later, and a number was told all the time.

## What the GPU nodes cost

The prices of the run are made up so that minutes show what hours do: a third CPU server is dearer than the emulated card. A machine is paid from its purchase to its end, and each of two that are there at once, while one takes over from the other.

| | a GPU node is there, s | GPU node seconds | at ${gpu_price} an hour |
| --- | --- | --- | --- |
| this run | {one:.0f} of {lasting:.0f} | {node:.0f} | ${cost:.5f} |
| one that is always on | {lasting:.0f} of {lasting:.0f} | {lasting:.0f} | ${always:.5f} |

{saving} Demand is high for most of the run, and four nodes are lost or given up in it: what a day brings is below.

## The same by `tandem simulate`

The simulator gets the requests that were sent, the pools, and what was measured: how long a request takes alone on a CPU server, from the wish to the node, from the wish to the first answer, from the end of the
wish to the end of the node. When to wish it decides itself, by the scaler's function, and how traffic goes over by the gateways'. It knows nothing of the nodes that were lost in between.

| | run | simulated |
| --- | --- | --- |
{compared}

{quick_day}## A day by `tandem simulate`, next to GPUs that are always on

[bert-large](scenarios/bert-large.yaml)'s speeds, prices (USD) and cold starts, which are assumptions ([where they come from](simulate.md#where-the-figures-come-from)), with what the controllers of this run added: {before:.1f} s from the wish to
the purchase, and {after:.1f} s from the end of the wish to the end of the node beside the {consolidate:.0f} s that the NodePool waits. Requests are Poisson and rise and fall once a day. `gpu-always` has as many GPU nodes as the peak needs, known beforehand, and no CPU server.

| requests a second | policy | GPU node hours | CPU server hours | cost | in time | GPU nodes bought |
| --- | --- | --- | --- | --- | --- | --- |
{days}

{verdict}
"""

QUICK_DAY = """## A day in {minutes:.0f} minutes, next to a GPU that is always on

    python -m tests.cluster.hybrid --day-s {lasting:.0f} --report day.json

Demand rises and falls once between {least:.0f} and {most:.0f} requests a second, {times:.0f} times as fast as in a day, and the same scaler and Karpenter let a GPU node come and go; the hours are read off the machines' own time line. Only demand is sped up:
the seconds in which a node comes, and in which it is kept when it is needed no more, weigh {times:.0f} times as much as in a day with machines as quick as these (a cloud's take minutes). Prices are made up, and the card is dearer than in the run above.
Of {requests:,} requests {errors} failed. One that is always on needs no third CPU server; two are there in either case and not counted.

| of a day | GPU node there | GPU node hours at ${gpu_price} | hours of a third CPU server at ${cpu_price} | cost |
| --- | --- | --- | --- | --- |
| the run | {share:.0%} | {node_hours:.1f} | {third_hours:.1f} | ${cost:.2f} |
| always on | 100% | 24.0 | 0.0 | ${always:.2f} |

{saving}

"""

THREE_POOLS = """## Three pools of different size and price

    python -m tests.cluster.hybrid --three-pools --report three.json

A run of its own, from a fresh install on which only cards serve the model: no node is bought, the first requests are told that it is not ready, and wake one. Then the CPU pool joins, and only the load is turned: {low:.0f},
{high:.0f}, {highest:.0f} and {low:.0f} requests a second. The large card does twice what the small one does, at ${large} an hour instead of ${small}; a CPU server costs ${cpu}. Of {requests:,} requests {errors}.

| second | what | s after |
| --- | --- | --- |
{steps}

"""


def page(report: Object, of_day: list[Day], quick: Object | None = None, three: Object | None = None) -> str:
    before_s, after_s = controllers_s(report)
    bill = spent(report)
    return TEXT.format(
        day=report["day"], processor=report["processor"], seconds=report["seconds"],
        requests=report["all"]["requests"], moments=_moments(report), phases=_phases(report), errors=_errors(report),
        compared=_compared(measured(report), simulated(report)), before=before_s, after=after_s,
        let_go=_let_go(report), notice=NOTICE_S, gpu_price=PRICE_PER_HOUR[GPU], one=bill.one_s, lasting=bill.lasting_s,
        node=bill.node_s, cost=bill.cost, always=bill.always_cost, saving=_saving(bill.cost, bill.always_cost),
        quick_day=(_quick_day(quick) if quick else "") + (_three_pools(three) if three else ""),
        further=(" --day day.json" if quick else "") + (" --three-pools three.json" if three else ""),
        hand_overs=" and ".join(f"{it:.1f} s" for it in report["hand_overs_s"]),
        consolidate=CONSOLIDATE_S, days=_days(of_day), verdict=_verdict(of_day),
    )  # fmt: skip


def _moments(report: Object) -> str:
    at = {it["what"]: it["at_s"] for it in report["moments"]}
    rows = []
    for it in sorted(report["moments"], key=lambda it: float(it["at_s"])):
        _, _, short = it["after"].rpartition(": ")
        later = f"{it['at_s'] - at[it['after']]:.1f} after {short}" if it["after"] else ""
        rows.append(f"| {it['at_s']:.1f} | {it['what']} | {later} |")
    return "\n".join(rows)


def _let_go(report: Object) -> str:
    at = {it["what"]: it["at_s"] for it in report["moments"]}
    told = [
        f"{at[f'{kind}: {LET_GO}'] - at[f'{kind}: {TOLD}']:.1f} and {at[f'{kind}: {ENDED}'] - at[f'{kind}: {TOLD}']:.1f} s"
        for kind in NOTICES
    ]
    return f"The gateways had let go of it, and it had ended, {', '.join(told)} after each notice;"


def _quick_day(report: Object) -> str:
    phase, it = report["phases"][quick_day.DAY], quick_day.bill(report)
    mean_rps, swing = quick_day.MEAN_RPS, quick_day.SWING
    hours = 1 - it.node_hours / 24
    return QUICK_DAY.format(
        minutes=phase["seconds"] / 60, lasting=phase["seconds"], least=mean_rps * (1 - swing), most=mean_rps * (1 + swing),
        times=it.times, requests=phase["requests"], errors=phase["errors"] or "none", gpu_price=quick_day.GPU_PRICE,
        cpu_price=PRICE_PER_HOUR[CPU], share=it.share, node_hours=it.node_hours, third_hours=it.third_cpu_hours,
        cost=it.cost, always=it.always_cost,
        saving=f"{hours:.0%} fewer GPU node hours. {_saving(it.cost, it.always_cost)}",
    )  # fmt: skip


def _three_pools(report: Object) -> str:
    at, rows = report["marks"], []
    for before, after, _ in three_pools.BOUNDS_S:
        if not rows or before not in {of for _, of, _ in three_pools.BOUNDS_S}:
            rows.append(f"| {at[before]:.1f} | {before} |  |")
        rows.append(f"| {at[after]:.1f} | {after} | {at[after] - at[before]:.1f} after '{before}' |")
    served_s = at[three_pools.SERVED] - report["load_began_s"]
    late = sum(due_s >= served_s for due_s, *_ in report["errors"])
    errors = f"{report['all']['errors']} were told so before the first answers, and {late or 'none'} failed after them"
    return THREE_POOLS.format(
        low=LOW_RPS, high=HIGH_RPS, highest=three_pools.HIGHEST_RPS, small=PRICE_PER_HOUR[GPU], cpu=PRICE_PER_HOUR[CPU],
        large=three_pools.PRICE_PER_HOUR, requests=report["all"]["requests"], errors=errors, steps="\n".join(rows),
    )  # fmt: skip


def _saving(cost: float, always_cost: float) -> str:
    less = 1 - cost / always_cost
    return f"The run costs {abs(less):.0%} {'less' if less >= 0 else 'more'}."


def _errors(report: Object) -> str:
    wrong = {name: it["errors"] for name, it in report["phases"].items() if it["errors"]}
    if not wrong:
        return "No request failed."
    return (
        "Failed: " + ", ".join(f"{number} while {name}" for name, number in wrong.items()) + ". No other request did."
    )


def _phases(report: Object) -> str:
    rows = []
    for name, it in report["phases"].items():
        pools = it["pools"]
        p50, longest = (f"{it['p50_s'] * 1000:.0f}", f"{it['max_s']:.1f}") if it["p50_s"] is not None else ("", "")
        rows.append(
            f"| {it['at_s']:.0f} | {name} | {it['requests']} | {it['grpc']['requests']} | {it['errors']} | {pools.get('emulated-cpu', 0)} "
            f"| {pools.get('emulated-gpu', 0)} | {p50} | {longest} |"
        )
    return "\n".join(rows)


def _compared(run: Compared, simulation: Compared) -> str:
    rows = (
        ("a GPU server is wanted, s after demand rises", run.wanted_s, simulation.wanted_s),
        ("the CPU bridges more than half of the traffic, s until", run.bridged_s, simulation.bridged_s),
        ("none is wanted, s after demand rises", run.none_wanted_s, simulation.none_wanted_s),
        ("a GPU node is there, s (two at once, while a lost one drains, count as one)", run.node_s, simulation.node_s),
    )
    return "\n".join(f"| {name} | {ours:.1f} | {theirs:.1f} |" for name, ours, theirs in rows)


def _days(of_day: list[Day]) -> str:
    return "\n".join(
        f"| {it.mean_rps * (1 - SWING):.0f} to {it.mean_rps * (1 + SWING):.0f} | {it.policy} | {it.node_hours:.2f} | {it.cpu_hours:.2f} | {it.cost:.2f} | {it.in_time_ratio:.3%} | {it.num_starts} |"
        for it in of_day
    )


def _verdict(of_day: list[Day]) -> str:
    """Of each day, in words."""
    lines = []
    for mean_rps in MEANS_RPS:
        ours = next((it for it in of_day if (it.policy, it.mean_rps) == ("tandem", mean_rps)), None)
        always = next((it for it in of_day if (it.policy, it.mean_rps) == ("gpu-always", mean_rps)), None)
        if ours is None or always is None:
            continue
        hours, cost = (1 - ours.node_hours / always.node_hours), (1 - ours.cost / always.cost)
        lines.append(
            f"With {mean_rps:.0f} a second on average Tandem uses {abs(hours):.0%} {'fewer' if hours >= 0 else 'more'} GPU hours and costs "
            f"{abs(cost):.0%} {'less' if cost >= 0 else 'more'}."
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.cluster.hybrid.page", description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--day", type=Path, help="report of a run with --day-s")
    parser.add_argument("--three-pools", type=Path, help="report of a run with --three-pools")
    given = parser.parse_args()
    report = json.loads(given.report.read_text())
    if report["failed"]:
        print(f"tandem: {given.report} is of a run that failed: {report['failed']}", file=sys.stderr)
        return 1
    quick = json.loads(given.day.read_text()) if given.day else None
    three = json.loads(given.three_pools.read_text()) if given.three_pools else None
    of_day = [it for mean_rps in MEANS_RPS for it in days(report, ROOT / SCENARIO, mean_rps, SWING)]
    given.page.write_text(page(report, of_day, quick, three))
    given.picture.write_text(draw(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
