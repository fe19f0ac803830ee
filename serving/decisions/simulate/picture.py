"""Draws a simulated run over time: requests a second, and for each policy its servers and its losses.

Rule: every number comes from the outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from serving.decisions.simulate.outcome import Moment, Outcome
from serving.documents.figures import LEFT, PANEL, Drawing, Plot, Values, timeline

WIDTH, TOP, STEP = 920, 56, PANEL + 40  # pixels
CPU, LOST, GPU, COLD, TRAFFIC = 0, 1, 2, 4, 5  # series of documents/figures.py


def draw(outcomes: Sequence[Outcome], title: str) -> str:
    """As a file of its own."""
    return drawing(outcomes, title).file()


def drawing(outcomes: Sequence[Outcome], title: str) -> Drawing:
    made = Drawing(title, WIDTH, TOP + STEP * (1 + len(outcomes)))
    made.text(LEFT, 24, title, "heading")
    duration_s = outcomes[0].duration_s
    end = duration_s, f"{duration_s / 3600:.3g} h" if duration_s >= 3600 else f"{duration_s:.0f} s"
    moments = [*outcomes[0].timeline, None]
    traffic = [
        (m.at_s, m.num_requests / max((after.at_s if after else duration_s) - m.at_s, 1e-9))
        for m, after in pairwise(moments)
        if m
    ]
    timeline(made, TOP, "requests/s", [(TRAFFIC, "came", traffic)], end)
    for index, outcome in enumerate(outcomes, start=1):
        label = f"{outcome.policy}: {outcome.attainment_ratio:.2%} in time, cost {outcome.cost:.2f}"
        lines = [
            (CPU, "CPU servers", _values(outcome, lambda m: m.num_cpu)),
            (GPU, "GPU servers", _values(outcome, lambda m: m.num_gpu)),
            (COLD, "GPU on its way", _values(outcome, lambda m: m.num_cold)),
        ]
        plot = timeline(made, TOP + index * STEP, label, lines, end)
        _losses(plot, outcome)
    return made


def _values(outcome: Outcome, value: Callable[[Moment], float]) -> Values:
    return [(moment.at_s, value(moment)) for moment in outcome.timeline]


def _losses(plot: Plot, outcome: Outcome) -> None:
    """A mark from above wherever requests were not answered in time, as long as their share."""
    ends_s = [*(moment.at_s for moment in outcome.timeline[1:]), outcome.duration_s]
    marks = ""
    for moment, end_s in zip(outcome.timeline, ends_s, strict=True):
        if moment.num_violated:
            share = moment.num_violated / max(moment.num_requests, moment.num_violated)
            marks += f"M{plot.x((moment.at_s + end_s) / 2):.1f} {plot.top:.1f}v{(plot.bottom - plot.top) * share:.1f}"
    key = plot.top + 14 + 16 * 3
    plot.drawing.add("path", d=f"{marks}M{plot.right + 17} {key - 10}v10", class_=f"line c{LOST}", opacity=0.7)
    plot.drawing.text(plot.right + 30, key, "share not in time")
