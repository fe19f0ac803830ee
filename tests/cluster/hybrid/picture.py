"""The run over time as one SVG file: requests a second and who answered them, servers from wish to answer, nodes, and what was done to it.

No script, no font, no link; it opens offline. Rule: every number is the report's; lines differ by place, dashes and label, not by colour alone.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from itertools import pairwise

from serving.decisions.simulate.picture import COLD, CPU, GPU, LOST, TRAFFIC
from tests.cluster.bed.api import Object

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 1000, 50, 170, 150, 90, 34  # pixels
NAME = 22  # pixels between two names of phases
Points = Sequence[tuple[float, float | None]]  # seconds, and what is so from then on; None: nothing is told
Line = tuple[str, str, str, Points]  # colour, dashes, label


def draw(report: Object) -> str:
    lasting_s = float(report["seconds"])
    looks, answers = report["looks"], report["answers"]

    def of(value: Callable[[Object], float | None]) -> Points:
        return [(it["at_s"], value(it)) for it in looks]

    panels: list[tuple[str, list[Line]]] = [
        (
            "requests a second, by who answered",
            [
                (TRAFFIC, "", "asked for", of(lambda it: it["rate_rps"])),
                (CPU, "", "CPU", [(at, cpu) for at, cpu, _, _ in answers]),
                (GPU, "6 3", "GPU (emulated)", [(at, gpu) for at, _, gpu, _ in answers]),
                (LOST, "2 2", "failed", [(at, wrong) for at, _, _, wrong in answers]),
            ],
        ),
        (
            "GPU servers",
            [
                (TRAFFIC, "", "wanted (scaler)", of(lambda it: it["wanted_gpu"])),
                (COLD, "1 3", "pods", of(lambda it: it["pods_gpu"])),
                (GPU, "6 3", "ready", of(lambda it: it["ready_gpu"])),
            ],
        ),
        (
            "GPU nodes (Karpenter)",
            [(COLD, "1 3", "claimed", of(lambda it: it["claims"])), (GPU, "6 3", "there", of(lambda it: it["cards"]))],
        ),
        (
            "CPU servers",
            [
                (TRAFFIC, "", "wanted (scaler)", of(lambda it: it["wanted_cpu"])),
                (CPU, "6 3", "ready", of(lambda it: it["ready_cpu"])),
            ],
        ),
    ]
    height = TOP + (PANEL + GAP) * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_phases(report, lasting_s, height),
    ]
    for at, (label, lines) in enumerate(panels):
        parts += _panel(TOP + at * (PANEL + GAP), label, lines, lasting_s)
    return "\n".join([*parts, "</svg>", ""])


def _phases(report: Object, lasting_s: float, height: int) -> list[str]:
    """A line from top to bottom where one begins, its name written upwards."""
    out, named = [], 0.0
    for name, it in report["phases"].items():
        x = _x(it["at_s"], lasting_s)
        named = max(x, named + NAME)
        out.append(f'<path d="M{named:.1f} {TOP - 24}L{x:.1f} {TOP - 16}V{height - 12}" fill="none" stroke="#dddddd"/>')
        out.append(f'<text transform="translate({named + 3:.1f} {TOP - 26}) rotate(-30)">{html.escape(name)}</text>')
    return out


def _panel(top: int, label: str, lines: Sequence[Line], lasting_s: float) -> list[str]:
    most = max((value or 0.0 for *_, points in lines for _, value in points), default=0.0) or 1.0
    out = [
        f'<text x="{LEFT}" y="{top - 5}" font-weight="bold">{html.escape(label)}</text>',
        f'<path d="M{LEFT} {top}V{top + PANEL}H{WIDTH - RIGHT}" fill="none" stroke="#999999"/>',
        f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{most:g}</text>',
        f'<text x="{LEFT - 6}" y="{top + PANEL}" text-anchor="end">0</text>',
        f'<text x="{WIDTH - RIGHT}" y="{top + PANEL + 13}" text-anchor="end">{lasting_s:.0f} s</text>',
    ]
    for at, (colour, dashes, name, points) in enumerate(lines):
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        y = top + 14 + 16 * at
        path = _steps([*points, (lasting_s, 0.0)], lambda value: top + PANEL * (1 - value / most), lasting_s)
        out.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
        out.append(f'<path d="M{WIDTH - RIGHT + 8} {y - 4}h18" stroke="{colour}" stroke-width="1.5"{dash}/>')
        out.append(f'<text x="{WIDTH - RIGHT + 30}" y="{y}">{html.escape(name)}</text>')
    return out


def _steps(points: Points, y: Callable[[float], float], lasting_s: float) -> str:
    """A gap where nothing is told."""
    out, is_drawn = [], False
    for (begin_s, value), (end_s, _) in pairwise(points):
        if value is not None:
            word = "L" if is_drawn else "M"
            out.append(f"{word}{_x(begin_s, lasting_s):.1f} {y(value):.1f}H{_x(end_s, lasting_s):.1f}")
        is_drawn = value is not None
    return " ".join(out)


def _x(at_s: float, lasting_s: float) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * min(max(at_s, 0.0) / lasting_s, 1.0)
