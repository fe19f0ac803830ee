"""Draws the figures of a verdict: latency and cost against rate, what assumptions move, where the time of a request goes.

Only drawing; every number is `report.py`'s. What is void or missed differs from the rest by its shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.profile.parts import HasLadder, PartName, Split, batch_sizes, split
from loadtest.profile.wording import ms, rows
from loadtest.report.summaries import milliseconds
from loadtest.verdict.report import ServerReport, VerdictReport
from serving.decisions.plan.result import CostPoint
from serving.decisions.profile import LoadPoint
from serving.decisions.sensitivity import Sensitivity
from serving.decisions.wording import assumption, money, rate
from serving.documents.figures import (
    BAR,
    BOTTOM,
    NARROW,
    NUM_SERIES,
    ROW,
    TOP,
    Drawing,
    Figure,
    LegendEntry,
    Plot,
    Scale,
    figure,
)

VISIBLE = 1.005  # a shorter bar is thinner than the line beside it
MAX_CURVES = 4  # more in one picture cannot be followed; all points stand in the table
KINDS = ("cpu", "gpu")
SERIES: dict[PartName, int] = {"compute": 0, "queue": 4, "transfer": 1, "json": 2, "gateway": 3}
PARTS: dict[PartName, str] = {
    "compute": "net",
    "queue": "waiting in Triton",
    "transfer": "HTTP, copies, Triton",
    "json": "JSON",
    "gateway": "gateway",
}
LETTER = 7.2  # pixels of a figure at 13 px, with room
GAP = 1.5  # between parts, so that they stay apart in grey


def _height(width: int) -> int:
    return 280 if width == NARROW else 320


# -- latency against rate ----------------------------------------------------------------------------------------------


def latency(servers: Sequence[ServerReport], objective_s: float) -> Figure | None:
    """Of the first servers with runs under load."""
    drawn = [s for s in servers if s.load][:MAX_CURVES]
    caption = (
        "Open-loop runs: p99 of latency from when a request was due, against requests due per second, both on logarithmic scales. "
        "Filled: within the objective; hollow: missed. A cross on the upper edge: void. A square on the lower edge: too few answers "
        "to tell a p99, met or missed by their count. The line joins the medians of each rate."
    )
    keys = [LegendEntry(index, f"{s.label}, {s.device_name}") for index, s in enumerate(drawn)]
    return (
        figure("Latency against rate", caption, lambda width: _latency(drawn, objective_s, width), keys)
        if drawn
        else None
    )


def _latency(servers: Sequence[ServerReport], objective_s: float, width: int) -> Drawing:
    drawing = Drawing("Latency at p99 against requests per second", width, _height(width))
    points = [p for s in servers for p in s.load]
    limit_ms = objective_s * 1000
    known = [p.latency_p99_s * 1000 for p in points if p.latency_p99_s]
    plot = Plot(drawing, Scale.around(p.rate_rps for p in points), Scale.around([*known, limit_ms]))
    plot.y_axis("p99 of latency, ms", "{:g}".format)
    plot.x_axis("requests per second")
    plot.level(limit_ms, "limit")
    at = plot.y(limit_ms)
    beside = at + 16 if at < TOP + 24 else at - 6  # not into the crosses on the upper edge
    drawing.text(plot.right - 4, beside, f"objective {limit_ms:g} ms", "end name")
    for index, server in enumerate(servers):
        plot.curve(_medians(server.load), index)
        for point in server.load:
            _mark(plot, point, index)
    return drawing


def _medians(points: Sequence[LoadPoint]) -> list[tuple[float, float]]:
    """(requests per second, p99 in ms) of the runs that count, in rising order of the rate."""
    valid: dict[float, list[float]] = {}
    for point in points:
        if point.void is None and point.latency_p99_s:
            valid.setdefault(point.rate_rps, []).append(point.latency_p99_s * 1000)
    return [(at, sorted(values)[len(values) // 2]) for at, values in sorted(valid.items())]


def _mark(plot: Plot, point: LoadPoint, index: int) -> None:
    x, series = plot.x(point.rate_rps), f"c{index % NUM_SERIES}"
    shape = f"fill {series}" if point.is_met else f"hollow line {series}"
    if point.void is not None:
        plot.drawing.add("path", d=f"M{x - 4:.1f} {TOP - 4}l8 8m0 -8l-8 8", class_=f"line thin {series}")
    elif not point.latency_p99_s:
        plot.drawing.add("rect", x=x - 4, y=plot.bottom - 4, width=8, height=8, class_=shape)
    else:
        plot.drawing.add("circle", cx=x, cy=plot.y(point.latency_p99_s * 1000), r=4, class_=shape)


# -- cost against rate -------------------------------------------------------------------------------------------------


def cost(report: VerdictReport, names: dict[str, str]) -> Figure | None:
    """`names`: what the keys say of `cpu` and `gpu`."""
    kinds = [kind for kind in KINDS if any(_price(p, kind) for p in report.curve)]
    if not kinds:
        return None
    caption = (
        "What an hour costs with whole servers of each kind, the cheapest that carry the rate, both on logarithmic scales. "
        "Dotted upright: the rate asked for."
    )
    if report.verdict.break_even_rps:
        caption += " The mark: from there on the GPU is cheaper for good."
    keys = [LegendEntry(KINDS.index(kind), names[kind]) for kind in kinds]
    return figure("Cost against rate", caption, lambda width: _cost(report, width), keys)


def _price(point: CostPoint, kind: str) -> float | None:
    return point.cpu_per_hour if kind == "cpu" else point.gpu_per_hour


def _cost(report: VerdictReport, width: int) -> Drawing:
    drawing = Drawing("Price an hour of both kinds against requests per second", width, _height(width))
    points = sorted((p for p in report.curve if p.rate_rps > 0), key=lambda p: p.rate_rps)
    wanted = [rate_rps for _, rate_rps in report.objective.rates if rate_rps > 0]
    prices = [price for p in points for kind in KINDS if (price := _price(p, kind))]
    rates = Scale.around([points[0].rate_rps, points[-1].rate_rps, *wanted], 1.0)
    plot = Plot(drawing, rates, Scale.around(prices, 1.3))
    plot.y_axis("price an hour", lambda value: money(value, report.currency))
    plot.x_axis("requests per second")
    for rate_rps in wanted:
        plot.upright(rate_rps, "asked")
    for index, kind in enumerate(KINDS):  # whole servers: level up to a rate, then up at once
        plot.steps([(p.rate_rps, _price(p, kind)) for p in points], index, holds_until=True)
    at = report.verdict.break_even_rps
    if at and rates.low <= at <= rates.high:
        _crossing(plot, at, next((p.gpu_per_hour for p in points if p.rate_rps >= at and p.gpu_per_hour), None))
    return drawing


def _crossing(plot: Plot, at: float, price: float | None) -> None:
    """A mark where the lines cross, and its rate beside it, on the side that has room."""
    x = plot.x(at)
    plot.upright(at, "crossing")
    plot.drawing.add("circle", cx=x, cy=plot.y(price) if price else (TOP + plot.bottom) / 2, r=6, class_="dot")
    is_left = x > (plot.left + plot.right) / 2
    place, class_ = (x - 10, "end name") if is_left else (x + 10, "name")
    plot.drawing.text(place, TOP + 10, f"break-even {rate(at)}", class_)


# -- what assumptions move ---------------------------------------------------------------------------------------------


def tornado(answers: Sequence[Sensitivity], break_even_rps: float | None) -> Figure | None:
    """The break-even between the lowest and the highest value of each assumption, the widest span first."""
    bars = []
    for what in dict.fromkeys(one.what for one in answers):
        known = [(one, one.break_even_rps) for one in answers if one.what == what and one.break_even_rps]
        ends = [end for _, end in known]
        if len(known) > 1 and max(ends) > min(ends) * VISIBLE:
            name = f"{assumption(known[0][0])} to {assumption(known[-1][0]).rpartition(' ')[2]}"
            bars.append((name, min(ends), max(ends)))
    if not bars or not break_even_rps:
        return None
    bars.sort(key=lambda bar: bar[1] / bar[2])
    caption = (
        "From where on the GPU is cheaper, between both ends of each assumption, all else as it is; where it never is at one end, "
        "as far as it is. The upright is the plan's own break-even."
    )
    return figure("What moves the break-even", caption, lambda width: _tornado(bars, break_even_rps, width))


def _tornado(bars: Sequence[tuple[str, float, float]], break_even_rps: float, width: int) -> Drawing:
    drawing = Drawing("What moves the break-even", width, 6 + ROW * len(bars) + BOTTOM)
    ends = [end for _, low, high in bars for end in (low, high)]
    plot = Plot(drawing, Scale.around([*ends, break_even_rps], 1.25))
    plot.x_axis("break-even, requests per second")
    for index, (name, low, high) in enumerate(bars):
        top = plot.row(index, name)
        plot.bar(top, plot.x(low), max(plot.x(high), plot.x(low) + 2), 0)
        drawing.add("path", d=f"M{plot.x(break_even_rps):.1f} {top - 3}v{BAR + 6}", class_="crossing")
    return drawing


# -- where the time goes -----------------------------------------------------------------------------------------------


def ladder(servers: Sequence[HasLadder]) -> Figure | None:
    """Stacked bars of each server and batch size; None where no ladder can be split."""
    bars = [
        (server.label, found)
        for server in servers
        for size in batch_sizes(server)
        if (found := split(server.ladder, size))
    ]
    used = [name for name in SERIES if any(part.name == name for _, found in bars for part in found.parts)]
    caption = (
        "Milliseconds of one request alone, medians, from the net to what a client of the gateway sees. "
        "Parts are differences between ways of asking; one without a number is too short to write into, or within noise."
    )
    keys = [LegendEntry(SERIES[name], PARTS[name], is_area=True) for name in used]
    return figure("Where the time goes", caption, lambda width: _ladder(bars, width), keys) if bars else None


def _ladder(bars: Sequence[tuple[str, Split]], width: int) -> Drawing:
    drawing = Drawing("Where the time of a request goes", width, 6 + ROW * len(bars))
    most_s = max(max(found.total_s, sum(part.seconds for part in found.parts)) for _, found in bars) or 1.0
    plot = Plot(drawing, Scale(0, most_s, is_log=False), left=0, right=84)
    for index, (label, found) in enumerate(bars):
        top, end_s = plot.row(index, f"{label}, {rows(found.batch_size)}"), 0.0
        for part in found.parts:
            if part.seconds <= 0:
                continue
            start, end_s = plot.x(end_s), end_s + part.seconds
            end = plot.x(end_s) - GAP
            title = f"{PARTS[part.name]}: {ms(part.seconds)}{', within noise' if part.is_noise else ''}"
            plot.bar(top, start, end, SERIES[part.name], title)
            written = milliseconds(part.seconds)
            if not part.is_noise and end - start > LETTER * len(written) + 5:
                drawing.text((start + end) / 2, top + 16, written, "middle inside")
        drawing.text(plot.x(end_s) + 8, top + 16, ms(found.total_s))
    return drawing
