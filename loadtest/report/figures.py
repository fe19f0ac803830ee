"""Draws the figures of load tests: throughput, distributions of latency, latency against load. Numbers come from `build.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.report.summaries import ArmSummary, number
from loadtest.report.wording import label
from serving.documents.figures import BAR, NARROW, ROW, Drawing, Figure, LegendEntry, Plot, Scale, figure

Curve = Sequence[tuple[float, float]]  # (seconds, share of requests at or below)
EDGE = 0.001  # the fastest and the slowest requests beyond would squeeze the rest


def throughput(arms: Sequence[ArmSummary]) -> Figure:
    caption = "Good answers per second: the bar is the median over runs, the line its interval, each dot one run."
    return figure("Throughput", caption, lambda width: _throughput(arms, width))


def _throughput(arms: Sequence[ArmSummary], width: int) -> Drawing:
    drawing = Drawing("Throughput of each arm", width, 6 + ROW * len(arms))
    rates = [arm.throughput_rps for arm in arms if arm.throughput_rps]
    most = max(max(*rate.runs, rate.high or 0.0) for rate in rates) or 1.0
    plot = Plot(drawing, Scale(0, most, is_log=False), left=0, right=72)
    for index, (arm, rate) in enumerate(zip(arms, rates, strict=True)):
        top = plot.row(index, label(arm))
        middle = top + BAR / 2
        plot.bar(top, 0, plot.x(rate.median), index)
        if rate.low is not None and rate.high is not None:
            low, high = plot.x(rate.low), plot.x(rate.high)
            ends = f"M{low:.1f} {middle - 6}v12M{high:.1f} {middle - 6}v12"
            drawing.add("path", d=f"M{low:.1f} {middle}H{high:.1f}{ends}", class_="whisker")
        for run in rate.runs:
            drawing.add("circle", cx=plot.x(run), cy=middle, r=3, class_="dot")
        reach = max(rate.median, rate.high or 0.0, *rate.runs)
        drawing.text(plot.x(reach) + 8, middle + 5, number(rate.median))
    return drawing


def latency(arms: Sequence[ArmSummary]) -> Figure:
    caption = (
        "Share of the good answers that came within a time, on a logarithmic scale: further left is faster. All valid runs together, "
        "without the fastest and the slowest 0.1 %."
    )
    return distribution("Latency", caption, {label(arm): arm.latency_curve for arm in arms})


def distribution(title: str, caption: str, curves: Mapping[str, Curve], objective_s: float | None = None) -> Figure:
    """`curves` by what their keys say."""
    kept = [
        [(s * 1000, share) for s, share in curve if EDGE <= share <= 1 - EDGE and s > 0] for curve in curves.values()
    ]
    keys = [LegendEntry(index, name) for index, name in enumerate(curves)]
    return figure(title, caption, lambda width: _distribution(title, kept, objective_s, width), keys)


def _distribution(title: str, curves: Sequence[Curve], objective_s: float | None, width: int) -> Drawing:
    drawing = Drawing(f"{title}: share of answers within a time", width, 260 if width == NARROW else 320)
    limit = [] if objective_s is None else [objective_s * 1000]
    times = [*(ms for curve in curves for ms, _ in curve), *limit] or [1.0]
    plot = Plot(drawing, Scale.around(times, 1.05), Scale(0, 1, is_log=False))
    plot.y_axis("share of answers", "{:.0%}".format, (0, 0.25, 0.5, 0.75, 1))
    plot.x_axis("latency, ms")
    plot.level(0.99, "limit")
    drawing.text(plot.right, plot.y(0.99) + 14, "p99", "end name")
    for ms in limit:
        plot.upright(ms, "limit")
        drawing.text(plot.x(ms) - 6, plot.bottom - 8, "objective", "end name")
    for index, curve in enumerate(curves):
        plot.curve(curve, index)
    return drawing


def latency_against_load(arms: Mapping[str, Sequence[ArmSummary]], unit: str) -> Figure:
    """Of each arm, by name, its points in rising order of the load."""
    caption = f"Median (lower line) and 99th percentile (upper line, where enough requests tell it) against {unit}, on a logarithmic scale."
    keys = [LegendEntry(index, label(points[0])) for index, points in enumerate(arms.values())]
    return figure("Latency against load", caption, lambda width: _against_load(arms, unit, width), keys)


def _against_load(arms: Mapping[str, Sequence[ArmSummary]], unit: str, width: int) -> Drawing:
    drawing = Drawing(f"Latency of each arm against {unit}", width, 260 if width == NARROW else 320)
    lines = [
        (index, [(arm.point, value.median * 1000) for arm in points if (value := getattr(arm, name)) is not None])
        for index, points in enumerate(arms.values())
        for name in ("latency_p50_s", "latency_p99_s")
    ]
    values = [ms for _, line in lines for _, ms in line]
    if not values:
        return drawing
    loads = sorted({load for _, line in lines for load, _ in line})
    plot = Plot(drawing, Scale(0, loads[-1], is_log=False), Scale.around(values, 1.1))
    plot.y_axis("latency, ms", "{:g}".format)
    plot.x_axis(unit, loads, has_rules=False)
    for index, line in lines:
        plot.curve(line, index)
        for load, ms in line:
            drawing.add("circle", cx=plot.x(load), cy=plot.y(ms), r=3, class_="dot")
    return drawing
