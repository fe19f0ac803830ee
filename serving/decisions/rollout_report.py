"""Says on what evidence a candidate was promoted, held or rolled back: a sentence, a table, and a page of both with a figure.

Every number is the judgement's. Rule: an interval stands beside its limit, in the same unit.
"""

from __future__ import annotations

import math
from pathlib import Path

from serving.decisions.rollout import (
    COST,
    ERRORS,
    FALSE_PROMOTION_RATIO,
    FALSE_ROLLBACK_RATIO,
    LATENCY,
    TAIL,
    Evidence,
    Judgement,
    Outcome,
)
from serving.documents.figures import BAR, ROW, Drawing, Figure, LegendEntry, Plot, Scale, figure
from serving.documents.pages import Pages
from serving.documents.tables import Cell, Table, Value, columns

PAGES = Pages(Path(__file__).parent)
NAMES = {
    "agreement": "answers that differ",
    "cosine": "distance of vectors (1 - cosine)",
    "recall": "neighbours lost",
    "error": "relative error",
    LATENCY: "latency, times the primary's",
    TAIL: "requests beyond the primary's p95, more than its own",
    ERRORS: "errors, more than the primary's",
    COST: "cost of a request, times the primary's",
}
WORDS: dict[Outcome, str] = {"promoted": "promote", "held": "hold", "rolled_back": "roll back"}
FINDINGS = {"worse": "worse", "fine": "within its limit", "open": "not shown yet"}
HEADS = ("Measure", "Seen", "Holds the truth", "Limit", "Rests on", "Finding")
TIMES = (LATENCY, COST)  # of the primary's; the others are shares
WORSE, FINE, OPEN = 1, 0, 4  # series of documents/figures.py


def headline(found: Judgement) -> str:
    names = ", ".join(_named(it) for it in found.evidence if it.finding == "worse")
    if found.outcome == "rolled_back":
        return f"Roll back: {names}"
    if found.outcome == "promoted":
        return "Promote: within all limits"
    return f"Hold: not shown yet that it is within its limits ({', '.join(NAMES.get(it, it) for it in found.because)})"


def sentence(found: Judgement, candidate: str, primary: str) -> str:
    """`candidate`, `primary`: what they are called."""
    worse = [it for it in found.evidence if it.finding == "worse"]
    reasons = "; ".join(
        f"{_named(it)} {_amount(it, it.value)}, at most {_amount(it, it.limit)} is allowed" for it in worse
    )
    return (
        f"{candidate} beside {primary}: {found.num_candidate:,} and {found.num_primary:,} requests, {found.num_compared:,} answers compared"
        f"{'; ' if reasons else ''}{reasons}."
    )


def table(found: Judgement) -> Table:
    return Table("Evidence", HEADS, tuple(_row(it) for it in found.evidence), ends_in_words=True)


def copies_text(device_s: float, dollars: float | None) -> str:
    """What comparing took of servers, at one gateway."""
    price = "" if dollars is None else f", {dollars:.4f} dollars at their prices"
    return f"Copies of requests took {device_s:.1f} s of servers{price}."


def as_text(found: Judgement, candidate: str, primary: str) -> str:
    """For a terminal."""
    rows = [HEADS, *(tuple(map(str, row)) for row in table(found).rows)]
    return "\n\n".join(
        [
            f"{headline(found)}. {sentence(found, candidate, primary)}",
            columns(rows, align="<>>><<", ruled=True),
            PROMISE,
        ]
    )


def render(found: Judgement, candidate: str, primary: str, copies: str) -> str:
    """One HTML file. `copies`: as `copies_text` says it."""
    return PAGES.render(
        "rollout.html",
        title=f"{candidate}: {WORDS[found.outcome]}",
        headline=headline(found),
        sentence=f"{sentence(found, candidate, primary)} {copies}",
        promise=PROMISE,
        evidence=table(found),
        limits=_limits(found),
    )


PROMISE = (
    f"Intervals hold at all times at once, so it does not matter how often they were looked at. A candidate that is within its limits is "
    f"rolled back in at most {FALSE_ROLLBACK_RATIO:.0%} of rollouts; one that is beyond any of them is promoted in at most "
    f"{FALSE_PROMOTION_RATIO:.0%}."
)


def _row(it: Evidence) -> tuple[Value, ...]:
    name = NAMES.get(it.measure, it.measure)
    first = Cell(name, (f"replica {it.replica}",)) if it.replica else name
    finding = Cell(FINDINGS[it.finding], kind="strong" if it.finding == "worse" else "")
    if not it.num or math.isnan(it.value):
        return first, Cell("nothing", kind="missing"), "", _amount(it, it.limit), f"0 {it.of}", finding
    between = f"{_amount(it, it.low)} to {_amount(it, it.high)}"
    return first, _amount(it, it.value), between, _amount(it, it.limit), f"{it.num:,} {it.of}", finding


def _named(it: Evidence) -> str:
    return NAMES.get(it.measure, it.measure) + (f" of {it.replica}" if it.replica else "")


def _amount(it: Evidence, value: float) -> str:
    if it.measure in TIMES:
        return "any" if not 0.011 < value < 90 else f"{value:.3f}"
    return f"{value:.2%}"


# -- figure ------------------------------------------------------------------------------------------------------------

_EDGE = 4.0  # limits from the primary's value; what reaches further ends there


def _limits(found: Judgement) -> Figure | None:
    shown = [it for it in found.evidence if it.num and not math.isnan(it.value)]
    if not shown:
        return None

    def draw(width: int) -> Drawing:
        drawing = Drawing("Evidence beside the limits", width, 6 + ROW * len(shown) + 42)
        plot = Plot(drawing, Scale(-_EDGE, _EDGE, is_log=False), left=8, top=6)
        for at, kind in ((0.0, "rule"), (1.0, "limit")):
            plot.upright(at, kind)
        for index, it in enumerate(shown):
            top = plot.row(index, _named(it))
            series = {"worse": WORSE, "fine": FINE, "open": OPEN}[it.finding]
            low, value, high = (plot.x(_beyond(it, end)) for end in (it.low, it.value, it.high))
            plot.bar(top, low, high, series, f"{_amount(it, it.low)} to {_amount(it, it.high)}")
            drawing.add("path", d=f"M{value:.1f} {top - 3}v{BAR + 6}", class_="axis")
        plot.x_axis("0: as the primary; 1: as much worse as is allowed", [-4, -2, 0, 1, 2, 4], has_rules=False)
        return drawing

    keys = [LegendEntry(series, text, is_area=True) for series, text in ((FINE, "within"), (OPEN, "open"), (WORSE, "worse"))]  # fmt: skip
    caption = "What each interval holds, in units of its own limit; the stroke is what was seen. Further than 4 is drawn at the edge."
    return figure("Evidence beside the limits", caption, draw, keys)


def _beyond(it: Evidence, value: float) -> float:
    return (value - 1) / (it.limit - 1) if it.measure in TIMES else value / it.limit
