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
    ("the autoscaler asks for it", 30.0, lambda it: it["replicas_gpu"] > 0),
    ("its pod waits for a node", 15.0, lambda it: it["pods_gpu"] > 0),
    (CLAIM, 30.0, lambda it: it["claims"] > 0),
    (NODE, 30.0, lambda it: it["cards"] > 0),
    ("the node is ready", 30.0, lambda it: it["cards_ready"] > 0),
    ("its Triton is ready", 60.0, lambda it: it["ready_gpu"] > 0),
)
DOWN: tuple[tuple[str, float, Callable[[Object], bool]], ...] = (
    (NONE_WANTED, 90.0, lambda it: it["wanted_gpu"] == 0),
    ("the autoscaler takes it back", 30.0, lambda it: it["replicas_gpu"] == 0),
    ("its Triton has left", 60.0, lambda it: it["pods_gpu"] == 0),
    (NODE_GONE, 90.0, lambda it: it["cards"] == 0 and it["claims"] == 0),
)
NOTICE_S = 120.0  # what AWS gives before it takes a spot machine
ON_NOTICE = ("the node is tainted", "its Triton is evicted", "the CPU answers alone", "its Triton has left")


def of(report: Object) -> list[Moment]:
    """In the order in which they have to come."""
    rises, falls = report["marks"].get(RISES), report["marks"].get(FALLS)
    found = [Moment(RISES, rises)]
    found += _steps(report["looks"], UP, found[-1])
    first = report["first_gpu_answer_s"]
    found.append(
        Moment(ANSWERS, None if first is None else round(first + report["load_began_s"], 2), found[-1].what, 60.0)
    )
    found.append(Moment(MOST_ANSWERS, _most_since(report["answers"], rises), ANSWERS, 60.0))
    found.append(Moment("the notice", report["marks"].get("the notice")))
    found += [Moment(f"notice: {it}", report["marks"].get(it), "the notice", NOTICE_S) for it in ON_NOTICE]
    found.append(Moment(FALLS, falls))
    return [*found, *_steps(report["looks"], DOWN, found[-1])]


def _most_since(answers: list[list[int]], since_s: float | None) -> float | None:
    """The first second in which the GPU pool answers more than half; the end of it."""
    if since_s is None:
        return None
    return next((at + 1.0 for at, cpu, gpu, _ in answers if at >= since_s and gpu > cpu), None)


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
        if now is not None and before is not None and not before - LOOK_S <= now <= before + it["at_most_s"]:
            said.append(f"{it['what']}: {now - before:.1f} s after '{it['after']}', of at most {it['at_most_s']:.0f}")
    return said


LOOK_S = 0.5  # between two looks, on a busy machine: two things may be seen in one
