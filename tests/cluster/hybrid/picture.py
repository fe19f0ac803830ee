"""Draws the run over time as one SVG file: requests a second and who answered them, servers from wish to answer, nodes, and what was done.

Rule: every number is the report's.
"""

from __future__ import annotations

from collections.abc import Callable

from serving.decisions.simulate.picture import COLD, CPU, GPU, LOST, TRAFFIC
from serving.documents.figures import BESIDE, LEFT, PANEL, Drawing, Values, timeline
from tests.cluster.bed.api import Object

WIDTH, TOP, STEP = 1020, 150, PANEL + 34  # pixels
NAME = 22  # pixels between two names of phases
Line = tuple[int, str, Values]  # series, label


def draw(report: Object) -> str:
    lasting_s = float(report["seconds"])
    looks, answers = report["looks"], report["answers"]

    def of(value: Callable[[Object], float | None]) -> Values:
        return [(look["at_s"], value(look)) for look in looks]

    panels: list[tuple[str, list[Line]]] = [
        (
            "requests a second, by who answered",
            [
                (TRAFFIC, "asked for", of(lambda look: look["rate_rps"])),
                (CPU, "CPU", [(at, cpu) for at, cpu, _, _ in answers]),
                (GPU, "GPU (emulated)", [(at, gpu) for at, _, gpu, _ in answers]),
                (LOST, "failed", [(at, wrong) for at, _, _, wrong in answers]),
            ],
        ),
        (
            "GPU servers",
            [
                (TRAFFIC, "wanted (scaler)", of(lambda look: look["wanted_gpu"])),
                (COLD, "pods", of(lambda look: look["pods_gpu"])),
                (GPU, "ready", of(lambda look: look["ready_gpu"])),
            ],
        ),
        (
            "GPU nodes (Karpenter)",
            [(COLD, "claimed", of(lambda look: look["claims"])), (GPU, "there", of(lambda look: look["cards"]))],
        ),
        (
            "CPU servers",
            [
                (TRAFFIC, "wanted (scaler)", of(lambda look: look["wanted_cpu"])),
                (CPU, "ready", of(lambda look: look["ready_cpu"])),
            ],
        ),
    ]
    drawing = Drawing("The run over time", WIDTH, TOP + STEP * len(panels))
    _phases(drawing, report, lasting_s)
    for index, (label, lines) in enumerate(panels):
        timeline(drawing, TOP + index * STEP, label, lines, (lasting_s, f"{lasting_s:.0f} s"))
    return drawing.file()


def _phases(drawing: Drawing, report: Object, lasting_s: float) -> None:
    """A line from top to bottom where one begins, its name written upwards."""
    named = 0.0
    for name, phase in report["phases"].items():
        x = LEFT + (WIDTH - BESIDE - LEFT) * min(max(phase["at_s"], 0.0) / lasting_s, 1.0)
        named = max(x, named + NAME)
        drawing.add("path", d=f"M{named:.1f} {TOP - 24}L{x:.1f} {TOP - 16}V{drawing.height - 12}", class_="rule")
        drawing.add("text", name, transform=f"translate({named + 3:.1f} {TOP - 26}) rotate(-30)")
