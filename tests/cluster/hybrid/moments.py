"""When did each step of the story come, and how long may it have taken? Values only, from what the report says was seen.

Bounds are generous: ten times and more of what two free cores take, because a busy machine is no fault. Order is what is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.bed.api import Object


@dataclass(frozen=True, slots=True)
class Moment:
    """`after`: the step it follows, `at_most_s` later; empty for what the story itself does. `at_s` None: it was never seen."""

    what: str
    at_s: float | None
    after: str = ""
    at_most_s: float = 0.0


RISES, FALLS = "demand rises", "demand falls"
WANTED, NONE_WANTED = "the scaler wants a GPU server", "the scaler wants none"
ANSWERS, MOST_ANSWERS = "the first answer from it", "most of the traffic goes there"
CLAIM = "Karpenter buys a node"
NODE, NODE_GONE = "the node is there", "no node is left"
UP: tuple[tuple[str, float, Callable[[Object], bool]], ...] = (
    (WANTED, 60.0, lambda it: (it["wanted_gpu"] or 0) > 0),
    ("its Deployment asks for it", 30.0, lambda it: it["replicas_gpu"] > 0),
    ("its pod waits for a node", 15.0, lambda it: it["pods_gpu"] > 0),
    (CLAIM, 30.0, lambda it: it["claims"] > 0),
    (NODE, 30.0, lambda it: it["cards"] > 0),
    ("the node is ready", 30.0, lambda it: it["cards_ready"] > 0),
    ("its Triton is ready", 60.0, lambda it: it["ready_gpu"] > 0),
)
DOWN: tuple[tuple[str, float, Callable[[Object], bool]], ...] = (
    (NONE_WANTED, 90.0, lambda it: it["wanted_gpu"] == 0),
    ("its Deployment asks for none", 30.0, lambda it: it["replicas_gpu"] == 0),
    ("its Triton has left", 60.0, lambda it: it["pods_gpu"] == 0),
    (NODE_GONE, 90.0, lambda it: it["cards"] == 0 and it["claims"] == 0),
)
# Of one Triton that has to leave its node, by the watch of `leaving`, and by what was answered.
TOLD, CLOSED, EVICTED = "the notice", "the node takes nothing new", "its Triton is told to go"
LET_GO, ALONE, ENDED, BACK = (
    "the gateways have let go of it",
    "the CPU answers alone",
    "its Triton has ended",
    "the next one answers",
)
NOTICE_S = 30.0  # the shortest that a cloud gives before it takes a spot machine (Google, Azure); AWS gives 120
IN_TIME = tuple((it, TOLD, NOTICE_S) for it in (EVICTED, LET_GO, ENDED))
ALLOWED = "cheaper nodes may be bought"
MAINTENANCE, CONSOLIDATION, SPOT = "maintenance", "consolidation", "spot notice"
NOTICES: dict[str, tuple[tuple[str, str, float], ...]] = {  # what, after what, at most s
    MAINTENANCE: ((TOLD, "", 0.0), (CLOSED, TOLD, NOTICE_S), *IN_TIME, (ALONE, TOLD, NOTICE_S), (BACK, ENDED, 60.0)),
    # Karpenter looks every 10 s, thinks for 15, and buys the new node before it gives the old one up: no machine is taken away in a hurry.
    CONSOLIDATION: ((ALLOWED, "", 0.0), (CLOSED, ALLOWED, 90.0), (TOLD, CLOSED, 90.0), *IN_TIME, (BACK, ENDED, 60.0)),
    SPOT: ((TOLD, "", 0.0), (CLOSED, TOLD, NOTICE_S), *IN_TIME, (ALONE, TOLD, NOTICE_S)),
}


def of(report: Object) -> list[Moment]:
    """In the order in which they have to come."""
    rises, falls = report["marks"].get(RISES), report["marks"].get(FALLS)
    found = [Moment(RISES, rises)]
    found += _steps(report["looks"], UP, found[-1])
    first = report["first_gpu_answer_s"]
    found.append(
        Moment(ANSWERS, None if first is None else round(first + report["load_began_s"], 2), found[-1].what, 60.0)
    )
    found.append(
        Moment(MOST_ANSWERS, _first_second(report["answers"], rises, lambda cpu, gpu: gpu > cpu), ANSWERS, 60.0)
    )
    for kind in NOTICES:
        found += _leaving(report, kind)
    found.append(Moment(FALLS, falls))
    return [*found, *_steps(report["looks"], DOWN, found[-1])]


def _leaving(report: Object, kind: str) -> list[Moment]:
    marks, answers = report["marks"], report["answers"]
    seen: dict[str, float | None] = {it: marks.get(f"{kind}: {it}") for it, *_ in NOTICES[kind]}
    for what, since, is_so in (
        (ALONE, EVICTED, lambda cpu, gpu: cpu > 0 and gpu == 0),
        (BACK, ENDED, lambda cpu, gpu: gpu > 0),
    ):
        if what in seen:
            seen[what] = _first_second(answers, seen[since], is_so)
    return [Moment(f"{kind}: {it}", seen[it], after and f"{kind}: {after}", s) for it, after, s in NOTICES[kind]]


def _first_second(answers: list[list[int]], since_s: float | None, is_so: Callable[[int, int], bool]) -> float | None:
    """The end of the first whole second since then of which it is so, by what the CPU and the GPU answered of it."""
    if since_s is None:
        return None
    return next((at + 1.0 for at, cpu, gpu, _ in answers if at >= since_s and is_so(cpu, gpu)), None)


def _steps(
    looks: list[Object], steps: tuple[tuple[str, float, Callable[[Object], bool]], ...], first: Moment
) -> list[Moment]:
    found = [first]
    for what, at_most_s, is_so in steps:
        since_s = found[0].at_s
        at_s = (
            None if since_s is None else next((it["at_s"] for it in looks if it["at_s"] >= since_s and is_so(it)), None)
        )
        found.append(Moment(what, at_s, found[-1].what, at_most_s))
    return found[1:]


def wrong(moments: list[Object]) -> list[str]:
    """What did not come, came too early or too late, in words."""
    at = {it["what"]: it["at_s"] for it in moments}
    said = [f"{it['what']}: never" for it in moments if it["at_s"] is None]
    for it in moments:
        now, before = it["at_s"], at.get(it["after"])
        early_s = PAGE_S if it["after"] in (WANTED, NONE_WANTED) else LOOK_S
        if now is not None and before is not None and not before - early_s <= now <= before + it["at_most_s"]:
            said.append(f"{it['what']}: {now - before:.1f} s after '{it['after']}', of at most {it['at_most_s']:.0f}")
    return said


LOOK_S = 0.5  # between two looks, on a busy machine: two things may be seen in one
PAGE_S = 2.0  # until what the scaler does is read on its page, on a busy machine: it is asked every second
