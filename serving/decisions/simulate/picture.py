"""The run over time as one SVG file: requests a second, and for each policy its servers and what it did not answer in time.

No script, no font, no link; it opens offline. Rule: every number comes from the outcomes; lines differ by place and label, not by colour
alone.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from serving.decisions.simulate.outcome import Moment, Outcome

WIDTH, PANEL, GAP, LEFT, RIGHT = 900, 86, 40, 64, 150  # pixels
TRAFFIC, CPU, GPU, COLD, LOST = "#444444", "#0072B2", "#007A5A", "#8A6A00", "#C04A00"  # told apart by colour-blind eyes


def draw(outcomes: Sequence[Outcome], title: str) -> str:
    height = 60 + (PANEL + GAP) * (1 + len(outcomes))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{html.escape(title)}</text>',
        _panel(50, "requests/s", outcomes[0], [(TRAFFIC, "", "came", _rate)]),
    ]
    for at, outcome in enumerate(outcomes, start=1):
        label = f"{outcome.policy}: {outcome.attainment_ratio:.2%} in time, cost {outcome.cost:.2f}"
        lines: list[_Curve] = [
            (CPU, "", "CPU servers", lambda m, _: m.num_cpu),
            (GPU, "6 3", "GPU servers", lambda m, _: m.num_gpu),
            (COLD, "1 3", "GPU on its way", lambda m, _: m.num_cold),
        ]
        parts.append(_panel(50 + at * (PANEL + GAP), label, outcome, lines))
        parts.append(_losses(50 + at * (PANEL + GAP), outcome))
    return "\n".join([*parts, "</svg>", ""])


_Curve = tuple[str, str, str, Callable[[Moment, float], float]]


def _rate(moment: Moment, lasting_s: float) -> float:
    return moment.num_requests / lasting_s


def _panel(top: float, label: str, outcome: Outcome, lines: Sequence[_Curve]) -> str:
    moments = outcome.timeline
    values = [[value(m, _lasting_s(outcome, at)) for at, m in enumerate(moments)] for _, _, _, value in lines]
    most = max((max(row, default=0.0) for row in values), default=0.0) or 1.0
    out = [
        f'<text x="{LEFT}" y="{top - 5:.0f}">{html.escape(label)}</text>',
        f'<path d="M{LEFT} {top:.0f}V{top + PANEL:.0f}H{WIDTH - RIGHT}" fill="none" stroke="#999999"/>',
        f'<text x="{LEFT - 6}" y="{top + 10:.0f}" text-anchor="end">{most:,.3g}</text>',
        f'<text x="{LEFT - 6}" y="{top + PANEL:.0f}" text-anchor="end">0</text>',
        f'<text x="{WIDTH - RIGHT}" y="{top + PANEL + 14:.0f}" text-anchor="end">{_clock(outcome.duration_s)}</text>',
    ]
    for at, ((colour, dashes, name, _), row) in enumerate(zip(lines, values, strict=True)):
        path = " ".join(_step(outcome, n, top + PANEL * (1 - value / most)) for n, value in enumerate(row))
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        y = top + 14 + 16 * at
        out.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>')
        out.append(f'<path d="M{WIDTH - RIGHT + 8} {y - 4:.0f}h18" stroke="{colour}" stroke-width="1.5"{dash}/>')
        out.append(f'<text x="{WIDTH - RIGHT + 30}" y="{y:.0f}">{name}</text>')
    return "\n".join(out)


def _step(outcome: Outcome, at: int, y: float) -> str:
    begin_s = outcome.timeline[at].at_s
    end_s = begin_s + _lasting_s(outcome, at)
    return f"{'L' if at else 'M'}{_x(outcome, begin_s):.1f} {y:.1f}H{_x(outcome, end_s):.1f}"


def _losses(top: float, outcome: Outcome) -> str:
    """A mark from above wherever requests were not answered in time, as long as their share."""
    marks = ""
    for at, moment in enumerate(outcome.timeline):
        if moment.num_violated:
            share = moment.num_violated / max(moment.num_requests, moment.num_violated)
            marks += f"M{_x(outcome, moment.at_s + _lasting_s(outcome, at) / 2):.1f} {top:.1f}v{PANEL * share:.1f}"
    y = top + 14 + 16 * 3
    key = f'<text x="{WIDTH - RIGHT + 30}" y="{y:.0f}">share not in time</text>'
    return f'<path d="{marks}M{WIDTH - RIGHT + 17} {y - 10:.0f}v10" stroke="{LOST}" stroke-width="2.5" opacity="0.7"/>{key}'


def _lasting_s(outcome: Outcome, at: int) -> float:
    moments = outcome.timeline
    end = moments[at + 1].at_s if at + 1 < len(moments) else outcome.duration_s
    return max(end - moments[at].at_s, 1e-9)


def _x(outcome: Outcome, at_s: float) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * min(at_s / outcome.duration_s, 1.0)


def _clock(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds:.0f} s"
