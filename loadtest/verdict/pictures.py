"""The figures of a verdict: latency against rate, what both kinds cost at each rate, the check's answers, what assumptions do.

Only drawing, as SVG, each for a desk and for a phone; every number is `report.py`'s. Curves differ by dash and by their key as well as by
colour; what is void or missed differs by shape.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from loadtest.report.plots import DASHES, NARROW, WIDE, figure, svg
from loadtest.verdict.amounts import money, rate
from loadtest.verdict.axes import BOTTOM, LEFT, TOP, Axes, span
from loadtest.verdict.report import ServerReport
from loadtest.verdict.wording import assumption
from serving.decisions.plan.result import CostPoint
from serving.decisions.plan.sensitivity import Sensitivity
from serving.decisions.profile import LoadPoint

VISIBLE = 1.005  # a shorter bar is thinner than the line beside it
MAX_CURVES = 4  # more in one picture cannot be followed; all points stand in the table


def _key(index: int, name: str) -> str:
    path = f'<path d="M1 5H33" class="line c{index % 6}" stroke-dasharray="{DASHES[index % 6]}"/>'
    line = f'<svg width="34" height="10" aria-hidden="true">{path}</svg>'
    return f'<span class="key">{line} {html.escape(name)}</span>'


def _both(title: str, caption: str, draw: Callable[[int, int], str]) -> str:
    return figure(title, caption, draw(WIDE, 320), draw(NARROW, 280))


# -- latency against rate ----------------------------------------------------------------------------------------------


def latency(servers: Sequence[ServerReport], objective_s: float) -> str:
    """Of the first servers with runs under load."""
    drawn = [s for s in servers if s.load][:MAX_CURVES]
    if not drawn:
        return ""
    keys = "".join(_key(i, f"{s.label}, {s.device_name}") for i, s in enumerate(drawn))
    words = (
        "Open-loop runs: p99 of latency from when a request was due, against requests due per second, both on logarithmic scales. "
        "Filled: within the objective; hollow: missed. A cross on the upper edge: void. A square on the lower edge: too few answers "
        "to tell a p99, met or missed by their count. The line joins the medians of each rate."
    )
    caption = f'<span class="keys">{keys}</span>{words}'
    return _both("Latency against rate", caption, lambda w, h: _draw_latency(drawn, objective_s, w, h))


def _draw_latency(servers: Sequence[ServerReport], objective_s: float, width: int, height: int) -> str:
    points = [p for s in servers for p in s.load]
    told = [p.latency_p99_s * 1000 for p in points if p.latency_p99_s]
    axes = Axes(width, height, span([p.rate_rps for p in points]), span([*told, objective_s * 1000]))
    parts = axes.frame("requests per second; latency in ms", lambda ms: f"{ms:g}")
    at = axes.y(objective_s * 1000)
    parts.append(f'<path d="M{LEFT} {at:.1f}H{axes.right}" class="limit"/>')
    beside = at + 16 if at < TOP + 24 else at - 6  # not into the crosses on the upper edge
    said = f"objective {objective_s * 1000:g} ms"
    parts.append(f'<text x="{axes.right - 4}" y="{beside:.1f}" class="end name">{said}</text>')
    for index, server in enumerate(servers):
        parts += _curve(index, server.load, axes)
    return svg(width, height, "Latency at p99 against requests per second", parts)


def _curve(index: int, points: Sequence[LoadPoint], axes: Axes) -> list[str]:
    good: dict[float, list[float]] = {}
    for point in points:
        if point.void is None and point.latency_p99_s:
            good.setdefault(point.rate_rps, []).append(point.latency_p99_s * 1000)
    middles = [(at, sorted(values)[len(values) // 2]) for at, values in sorted(good.items())]
    joined = " ".join(f"{axes.x(at):.1f},{axes.y(ms):.1f}" for at, ms in middles)
    line = f'<polyline points="{joined}" class="line c{index}" stroke-dasharray="{DASHES[index]}"/>'
    return [line, *(_mark(index, point, axes) for point in points)]


def _mark(index: int, point: LoadPoint, axes: Axes) -> str:
    x = axes.x(point.rate_rps)
    if point.void is not None:
        return f'<path d="M{x - 4:.1f} {TOP - 4}l8 8m0 -8l-8 8" class="line thin c{index}"/>'
    filled = "fill" if point.is_met else "hollow line"
    if not point.latency_p99_s:
        return f'<rect x="{x - 4:.1f}" y="{axes.bottom - 4:.1f}" width="8" height="8" class="{filled} c{index}"/>'
    return f'<circle cx="{x:.1f}" cy="{axes.y(point.latency_p99_s * 1000):.1f}" r="4" class="{filled} c{index}"/>'


# -- cost against rate -------------------------------------------------------------------------------------------------


def cost(
    curve: Sequence[CostPoint],
    currency: str,
    asked: Sequence[float],
    break_even_rps: float | None,
    names: dict[str, str],
) -> str:
    """`names`: what the keys say of `cpu` and `gpu`."""
    if not any(p.cpu_per_hour or p.gpu_per_hour for p in curve):
        return ""
    kinds = [k for k in ("cpu", "gpu") if any(_price(p, k) for p in curve)]
    keys = "".join(_key(("cpu", "gpu").index(k), names.get(k, k)) for k in kinds)
    words = (
        "What an hour costs with whole servers of each kind, the cheapest that carry the rate, both on logarithmic scales. "
        "Dotted upright: the rate asked for."
    )
    if break_even_rps:
        words += " The mark: from there on the GPU is the cheaper one for good."
    caption = f'<span class="keys">{keys}</span>{words}'
    return _both("Cost against rate", caption, lambda w, h: _draw_cost(curve, currency, asked, break_even_rps, w, h))


def _price(point: CostPoint, kind: str) -> float | None:
    return point.cpu_per_hour if kind == "cpu" else point.gpu_per_hour


def _draw_cost(
    curve: Sequence[CostPoint],
    currency: str,
    asked: Sequence[float],
    break_even_rps: float | None,
    width: int,
    height: int,
) -> str:
    points = sorted((p for p in curve if p.rate_rps > 0), key=lambda p: p.rate_rps)
    prices = [price for p in points for kind in ("cpu", "gpu") if (price := _price(p, kind))]
    ends = [points[0].rate_rps, points[-1].rate_rps, *(r for r in asked if r > 0)]
    axes = Axes(width, height, span(ends, 1.0), span(prices, 1.3))
    parts = axes.frame("requests per second; price an hour", lambda value: money(value, currency))
    for wanted in asked:
        if wanted > 0:
            x = axes.x(wanted)
            parts.append(f'<path d="M{x:.1f} {TOP}V{axes.bottom}" class="asked"/>')
    for index, kind in enumerate(("cpu", "gpu")):
        if line := _steps([(p.rate_rps, _price(p, kind)) for p in points], axes):
            parts.append(f'<path d="{line}" class="line c{index}" stroke-dasharray="{DASHES[index]}"/>')
    if break_even_rps and axes.x_span[0] <= break_even_rps <= axes.x_span[1]:
        parts += _crossing(break_even_rps, points, axes)
    return svg(width, height, "Price an hour of both kinds against requests per second", parts)


def _steps(points: Sequence[tuple[float, float | None]], axes: Axes) -> str:
    """Whole servers: level up to a rate, then up at once."""
    said: list[str] = []
    before: float | None = None
    for at, price in points:
        if price is None:
            before = None
            continue
        y = f"{axes.y(price):.1f}"
        said.append(f"M{axes.x(at):.1f} {y}" if before is None else f"V{y}H{axes.x(at):.1f}")
        before = price
    return "".join(said)


def _crossing(at: float, points: Sequence[CostPoint], axes: Axes) -> list[str]:
    """A mark where the lines cross, and its rate beside it, on the side that has room."""
    x = axes.x(at)
    beyond = next((p for p in points if p.rate_rps >= at and p.gpu_per_hour), None)
    y = axes.y(beyond.gpu_per_hour) if beyond and beyond.gpu_per_hour else (TOP + axes.bottom) / 2
    is_left = x > (LEFT + axes.right) / 2
    place = f'x="{x - 10:.1f}" class="end name"' if is_left else f'x="{x + 10:.1f}" class="name"'
    return [
        f'<path d="M{x:.1f} {TOP}V{axes.bottom}" class="crossing"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" class="dot"/>',
        f'<text {place} y="{TOP + 10}">break-even {html.escape(rate(at))}</text>',
    ]


# -- the check's answers -----------------------------------------------------------------------------------------------


def distribution(curve: Sequence[tuple[float, float]], objective_s: float, name: str) -> str:
    if not curve:
        return ""
    words = "Share of answers of the check within a time, on a logarithmic scale, without the fastest and the slowest 0.1 %."
    caption = f'<span class="keys">{_key(0, name)}</span>{words}'
    return _both("Latency at the rate asked for", caption, lambda w, h: _draw_distribution(curve, objective_s, w, h))


def _draw_distribution(curve: Sequence[tuple[float, float]], objective_s: float, width: int, height: int) -> str:
    kept = [(s * 1000, share) for s, share in curve if 0.001 <= share <= 0.999 and s > 0] or [(objective_s * 1000, 1.0)]
    axes = Axes(width, height, span([*(ms for ms, _ in kept), objective_s * 1000], 1.05), (1.0, 10.0))
    flat = height - BOTTOM - TOP

    def y(share: float) -> float:
        return TOP + flat * (1 - share)

    parts = axes.uprights("latency, ms")
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{LEFT} {y(share):.1f}H{axes.right}" class="rule"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(share) + 4:.1f}" class="end">{share:.0%}</text>')
    x = axes.x(objective_s * 1000)
    parts.append(f'<path d="M{x:.1f} {TOP}V{axes.bottom}" class="limit"/>')
    parts.append(f'<text x="{x - 6:.1f}" y="{axes.bottom - 8}" class="end name">objective</text>')
    joined = " ".join(f"{axes.x(ms):.1f},{y(share):.1f}" for ms, share in kept)
    parts.append(f'<polyline points="{joined}" class="line c0"/>')
    return svg(width, height, "Distribution of the latency of the check", parts)


# -- what assumptions do -----------------------------------------------------------------------------------------------


def tornado(answers: Sequence[Sensitivity], break_even_rps: float | None) -> str:
    """The break-even between the lowest and the highest value of each assumption, the widest span first."""
    if not break_even_rps:
        return ""
    bars = []
    for what in dict.fromkeys(one.what for one in answers):
        told = [one for one in answers if one.what == what and one.break_even_rps]
        ends = [one.break_even_rps or break_even_rps for one in told]
        if len(told) > 1 and max(ends) > min(ends) * VISIBLE:
            bars.append((f"{assumption(told[0])} to {assumption(told[-1]).rpartition(' ')[2]}", min(ends), max(ends)))
    if not bars:
        return ""
    bars.sort(key=lambda bar: bar[1] / bar[2])
    words = (
        "From where on the GPU is the cheaper one, between both ends of each assumption, all else as it is; where it never is at one end, "
        "as far as it is. The upright is the plan's own break-even."
    )
    wide, narrow = (_draw_tornado(bars, break_even_rps, width) for width in (WIDE, NARROW))
    return figure("What moves the break-even", words, wide, narrow)


def _draw_tornado(bars: Sequence[tuple[str, float, float]], middle: float, width: int) -> str:
    step, top = 50, 6
    ends = [end for _, low, high in bars for end in (low, high)]
    axes = Axes(width, top + step * len(bars) + BOTTOM, span([*ends, middle], 1.25), (1.0, 10.0))
    parts = axes.uprights("break-even, requests per second")
    for index, (said, low, high) in enumerate(bars):
        y, left, right = top + index * step, axes.x(low), axes.x(high)
        parts.append(f'<text x="0" y="{y + 13}" class="name">{html.escape(said)}</text>')
        wide = max(right - left, 2)
        parts.append(f'<rect x="{left:.1f}" y="{y + 20}" width="{wide:.1f}" height="18" rx="2" class="fill c0"/>')
        parts.append(f'<path d="M{axes.x(middle):.1f} {y + 17}v24" class="crossing"/>')
    return svg(width, axes.height, "What moves the break-even", parts)
