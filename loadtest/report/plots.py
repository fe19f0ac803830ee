"""The figures of a report, as SVG: each drawn for a desk and for a phone, so that letters keep their size.

Only drawing; numbers come from `build.py`. Curves differ by dash and by their key as well as by colour; colours are the page's.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from loadtest.report.summaries import ArmSummary, number
from loadtest.report.wording import label
from serving.measure.intervals import Estimate

DASHES = ("", "7 4", "2 3", "10 3 2 3", "14 5", "4 2")
WIDE, NARROW = 760, 340  # a column on a desk, a column on a phone


def figure(title: str, caption: str, wide: str, narrow: str) -> str:
    drawn = f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
    return f"<figure><h2>{title}</h2>{drawn}<figcaption>{caption}</figcaption></figure>"


def svg(width: int, height: int, name: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{html.escape(name)}">{"".join(parts)}</svg>'


def bars(arms: Sequence[ArmSummary]) -> str:
    caption = "Good answers per second: the bar is the median over runs, the line its interval, each dot one run."
    return figure("Throughput", caption, _draw_bars(arms, WIDE), _draw_bars(arms, NARROW))


def _draw_bars(arms: Sequence[ArmSummary], width: int) -> str:
    row, top, right = 58, 6, 72
    most = (
        max(max(*arm.throughput_rps.runs, arm.throughput_rps.high or 0.0) for arm in arms if arm.throughput_rps) or 1.0
    )
    parts = []
    for index, arm in enumerate(arms):
        assert arm.throughput_rps
        y, scale = top + index * row, (width - right) / most
        value = arm.throughput_rps
        end = value.median * scale
        parts.append(f'<text x="0" y="{y + 13}" class="name">{html.escape(label(arm))}</text>')
        parts.append(f'<rect x="0" y="{y + 20}" width="{end:.1f}" height="22" rx="2" class="fill c{index % 6}"/>')
        reach = max(end, (value.high or 0) * scale, max(value.runs) * scale)
        if value.low is not None and value.high is not None:
            low, high, middle = value.low * scale, value.high * scale, y + 31
            parts.append(
                f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 6}v12M{high:.1f} {middle - 6}v12" class="whisker"/>'
            )
        parts += [f'<circle cx="{run * scale:.1f}" cy="{y + 31}" r="3" class="dot"/>' for run in value.runs]
        parts.append(f'<text x="{reach + 8:.1f}" y="{y + 36}">{number(value.median)}</text>')
    return svg(width, top + row * len(arms), "Throughput of each arm", parts)


def curves(arms: Sequence[ArmSummary]) -> str:
    key = "".join(_key(index, arm) for index, arm in enumerate(arms))
    words = (
        "Share of the good answers that came within a time, on a logarithmic scale: further left is faster. All valid runs together, "
        "without the fastest and the slowest 0.1 %."
    )
    caption = f'<span class="keys">{key}</span>{words}'
    return figure("Latency", caption, _draw_curves(arms, WIDE, 320), _draw_curves(arms, NARROW, 260))


def _key(index: int, arm: ArmSummary) -> str:
    path = f'<path d="M1 5H33" class="line c{index % 6}" stroke-dasharray="{DASHES[index % 6]}"/>'
    line = f'<svg width="34" height="10" aria-hidden="true">{path}</svg>'
    return f'<span class="key">{line} {html.escape(label(arm))}</span>'


def _draw_curves(arms: Sequence[ArmSummary], width: int, height: int) -> str:
    left, right, top, bottom = 44, 14, 10, 40
    curves = [arm.latency_curve for arm in arms]
    # From the fastest 0.1 % to the slowest 0.1 %: single requests beyond would squeeze the rest.
    low = min(_at(curve, 0.001) for curve in curves) * 1000
    high = max(max(_at(curve, 0.999) for curve in curves) * 1000, low * 1.5)
    span = math.log(high / low)

    def x(ms: float) -> float:
        return left + (width - left - right) * math.log(max(ms, low) / low) / span

    def y(share: float) -> float:
        return top + (height - top - bottom) * (1 - share)

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{left} {y(share):.1f}H{width - right}" class="rule"/>')
        parts.append(f'<text x="{left - 6}" y="{y(share) + 4:.1f}" class="end">{share:.0%}</text>')
    for tick in ticks(low, high, 4 if width == NARROW else 9):
        parts.append(f'<path d="M{x(tick):.1f} {top}V{height - bottom}" class="rule"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{height - bottom + 16}" class="middle">{tick:g}</text>')
    parts.append(f'<text x="{(left + width - right) / 2:.0f}" y="{height - 6}" class="middle">latency, ms</text>')
    for index, curve in enumerate(curves):
        points = " ".join(f"{x(v * 1000):.1f},{y(s):.1f}" for v, s in curve if v * 1000 <= high)
        parts.append(f'<polyline points="{points}" class="line c{index % 6}" stroke-dasharray="{DASHES[index % 6]}"/>')
    return svg(width, height, "Distribution of latency of each arm", parts)


def _at(curve: Sequence[tuple[float, float]], share: float) -> float:
    return next((value for value, at in curve if at >= share), curve[-1][0])


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers of a logarithmic axis; as many kinds of digits as fit."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [
            round(digit * 10.0**decade, 9)
            for decade in decades
            for digit in digits
            if low <= digit * 10.0**decade <= high
        ]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def against_load(arms: Mapping[str, Sequence[ArmSummary]], unit: str) -> str:
    """Of each arm, by name, its points in rising order of the load."""
    key = "".join(_key(index, points[0]) for index, points in enumerate(arms.values()))
    words = f"Median (lower line) and 99th percentile (upper line, where enough requests tell it) against {unit}, on a logarithmic scale."
    caption = f'<span class="keys">{key}</span>{words}'
    return figure(
        "Latency against load", caption, _draw_load(arms, unit, WIDE, 320), _draw_load(arms, unit, NARROW, 260)
    )


def _draw_load(arms: Mapping[str, Sequence[ArmSummary]], unit: str, width: int, height: int) -> str:
    left, right, top, bottom = 52, 14, 10, 40
    lines: list[tuple[int, list[tuple[float, float]]]] = []
    for index, points in enumerate(arms.values()):
        for pick in (_p50, _p99):
            drawn = [(arm.point, value.median * 1000) for arm in points if (value := pick(arm)) is not None]
            lines.append((index, drawn))
    values = [value for _, line in lines for _, value in line]
    if not values:
        return svg(width, height, "Latency against load", [])
    low, high = min(values) / 1.1, max(values) * 1.1
    most = max(point for _, line in lines for point, _ in line)

    def x(point: float) -> float:
        return left + (width - left - right) * point / most

    def y(ms: float) -> float:
        return top + (height - top - bottom) * (1 - math.log(ms / low) / math.log(high / low))

    parts = []
    for tick in ticks(low, high, 6):
        parts.append(f'<path d="M{left} {y(tick):.1f}H{width - right}" class="rule"/>')
        parts.append(f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" class="end">{tick:g}</text>')
    for point in sorted({point for _, line in lines for point, _ in line}):
        parts.append(f'<text x="{x(point):.1f}" y="{height - bottom + 16}" class="middle">{point:,.6g}</text>')
    parts.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 6}" class="middle">{unit}; latency in ms</text>'
    )
    for index, line in lines:
        joined = " ".join(f"{x(point):.1f},{y(ms):.1f}" for point, ms in line)
        parts.append(f'<polyline points="{joined}" class="line c{index % 6}" stroke-dasharray="{DASHES[index % 6]}"/>')
        parts += [f'<circle cx="{x(point):.1f}" cy="{y(ms):.1f}" r="3" class="dot"/>' for point, ms in line]
    return svg(width, height, f"Latency of each arm against {unit}", parts)


def _p50(arm: ArmSummary) -> Estimate | None:
    return arm.latency_p50_s


def _p99(arm: ArmSummary) -> Estimate | None:
    return arm.latency_p99_s
