"""Three pools of different size and price, from a fresh install on which only cards serve the model: is the cheapest mix there at each load?

The large card does twice what the small one does, for less than twice its price; a third CPU server is dearer than either. So the CPU alone is
the cheapest for little, the small card for more, and the large one instead of it for more again (`chart.py` on made-up prices). Nobody says a
number: the CPU pool comes by an upgrade, and then only the load is turned.
"""

from __future__ import annotations

from tests.cluster.bed.api import Object, until
from tests.cluster.hybrid.chart import CPU, GPU, HIGH_RPS, LOW_RPS, TOLERATES, gpu_pool
from tests.cluster.hybrid.recorder import CLAIMS
from tests.cluster.hybrid.story import Story

LARGE = "emulated-gpu-large"  # a pool of cards by its name (docs/emulated.md)
PRICE_PER_HOUR = 0.09
HIGHEST_RPS = 66.0  # the small card and two CPU servers carry 58 with headroom, 83 at full load
ALONE, COLD = "only cards serve the model", "its first requests"
JOINED, SMALL_LOAD, LARGE_LOAD, FALLS = "the CPU joins", "for the small card", "for the large card", "for the CPU alone"
NONE_BOUGHT, WOKEN, SERVED = "no node was bought", "a card was woken", "it answers"
CARDS_GO, SMALL_WANTED, SMALL_SERVES = "its cards go", "the small card is wanted", "the small card answers"
LARGE_WANTED, LARGE_SERVES, SMALL_GOES = "the large card is wanted", "the large card answers", "the small card goes"
NODES_GONE = "no node is left"
# What follows what, and within how many seconds: ten times and more of what two free cores take, as in `moments.py`.
BOUNDS_S: tuple[tuple[str, str, float], ...] = (
    (COLD, WOKEN, 60.0),
    (WOKEN, SERVED, 120.0),
    (JOINED, CARDS_GO, 240.0),
    (SMALL_LOAD, SMALL_WANTED, 60.0),
    (SMALL_WANTED, SMALL_SERVES, 90.0),
    (LARGE_LOAD, LARGE_WANTED, 60.0),
    (LARGE_WANTED, LARGE_SERVES, 90.0),
    (LARGE_SERVES, SMALL_GOES, 150.0),
    (FALLS, NODES_GONE, 180.0),
)


def values(has_cpu: bool) -> Object:
    large = gpu_pool(PRICE_PER_HOUR)
    return {f"pools.{LARGE}": large | TOLERATES, f"pools.{CPU}.enabled": has_cpu, "scaler.rules": {"holdS": 20}}


def play(story: Story) -> None:
    def wanted(pool: str) -> float | None:
        return story.scalers.wanted.get(pool)

    def nodes() -> int:
        return len(story.bed.api.items(CLAIMS))

    with story.phase(ALONE):
        story.release(**values(has_cpu=False)).install()
        until(lambda: wanted(GPU) == wanted(LARGE) == 0, "the scaler wants no card", 90)
        until(lambda: not story.kubelet.of("triton"), "the first pods have gone", 60)
        assert nodes() == 0, "an install buys no node"
        story.mark(NONE_BOUGHT)
        story.load.start()
        story.mark(COLD)
        until(lambda: (wanted(GPU) or 0) + (wanted(LARGE) or 0) > 0, "a card is wanted", 60)
        story.mark(WOKEN)
        until(lambda: story.answers_from(GPU, share=0.9) or story.answers_from(LARGE, share=0.9), "it answers", 120)
        story.mark(SERVED)
    with story.phase(JOINED):
        story.release(**values(has_cpu=True)).upgrade()
        story.mark(JOINED)
        until(lambda: wanted(GPU) == wanted(LARGE) == 0 and nodes() == 0, "its cards go", 240)
        until(lambda: story.answers_from(CPU, share=0.9), "the CPU answers", 60)
        story.mark(CARDS_GO)
    with story.phase(SMALL_LOAD):
        story.load.rate_rps = HIGH_RPS
        story.mark(SMALL_LOAD)
        until(lambda: wanted(GPU) == 1, "the small card is wanted", 60)
        story.mark(SMALL_WANTED)
        until(lambda: story.answers_from(GPU, share=0.9), "it answers", 90)
        story.mark(SMALL_SERVES)
        assert wanted(LARGE) == 0, "the large one is dearer for this load"
    with story.phase(LARGE_LOAD):
        story.load.rate_rps = HIGHEST_RPS
        story.mark(LARGE_LOAD)
        until(lambda: wanted(LARGE) == 1, "the large card is wanted", 60)
        story.mark(LARGE_WANTED)
        until(lambda: story.answers_from(LARGE), "it answers", 90)
        story.mark(LARGE_SERVES)
        until(lambda: wanted(GPU) == 0, "the small card goes", 150)
        story.mark(SMALL_GOES)
    with story.phase(FALLS):
        story.load.rate_rps = LOW_RPS
        story.mark(FALLS)
        until(lambda: wanted(GPU) == wanted(LARGE) == 0 and nodes() == 0, "no node is left", 180)
        story.mark(NODES_GONE)


def errors(report: Object) -> list[object]:
    """That are no refusal of a pool without a server, or come when there is one."""
    served_s = report["marks"].get(SERVED, 0.0)

    def waits(due_s: float, said: str) -> bool:
        is_told = said.split()[0] in ("503", "UNAVAILABLE") and "has no server yet" in said
        return is_told and due_s + report["load_began_s"] < served_s

    return [it for it in report["errors"] if not waits(it[0], it[1])]


def late(report: Object) -> list[str]:
    """Steps that never came, or too late, in words."""
    at, said = report["marks"], []
    for before, after, most_s in BOUNDS_S:
        if before not in at or after not in at:
            said.append(f"{after}: never")
        elif not 0 <= at[after] - at[before] <= most_s:
            said.append(f"{after}: {at[after] - at[before]:.1f} s after '{before}', of at most {most_s:.0f}")
    return said
