"""Draws the figures of all reports as SVG: curves, steps and bars over linear or logarithmic axes.

Colours and letters are those of `templates/figures.css`, in light and dark. Every text is escaped. Rule: series differ by dashes and by
their keys as well as by colour, and each figure is drawn for a desk and for a phone, so that letters keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

WIDE, NARROW = 760, 340  # pixels of a column on a desk, and on a phone
NUM_SERIES = 6  # colours and dashes that there are
DASHES = ("", "7 4", "2 3", "10 3 2 3", "14 5", "4 2")
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 18, 42  # around a plot with axes
ROW, BAR = 56, 22  # a named bar, and its own height
CSS = Path(__file__).parent / "templates" / "figures.css"


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to 0..1; a value outside lies at the edge. A logarithmic one is of values above 0."""

    low: float
    high: float
    is_log: bool = True

    @classmethod
    def around(cls, values: Iterable[float], room: float = 1.15) -> Scale:
        """Logarithmic, with some room on both sides."""
        known = list(values)
        low = min(known) / room
        return cls(low, max(max(known) * room, low * 2))

    def at(self, value: float) -> float:
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    def ticks(self, most: int) -> list[float]:
        """Round numbers of a logarithmic axis, with as many kinds of digits as fit."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            every = [round(digit * 10.0**decade, 9) for decade in decades for digit in digits]
            inside = [tick for tick in every if self.low <= tick <= self.high]
            if len(inside) <= most:
                return inside
        return inside[:: math.ceil(len(inside) / most)]


class Drawing:
    """One SVG of `width` × `height` pixels; `name` is read aloud instead of it."""

    def __init__(self, name: str, width: int, height: int) -> None:
        self.name, self.width, self.height = name, width, height
        self._marks: list[Markup] = []

    def add(self, tag: str, text: str = "", **attributes: object) -> None:
        """`class_` and `stroke_dasharray` become `class` and `stroke-dasharray`; an empty attribute is left out."""
        self._marks.append(_element(tag, escape(text), attributes))

    def text(self, x: float, y: float, text: str, class_: str = "") -> None:
        self.add("text", text, x=x, y=y, class_=class_)

    def line(self, path: str, series: int, kind: str = "line") -> None:
        self.add("path", d=path, class_=f"{kind} c{series % NUM_SERIES}", stroke_dasharray=DASHES[series % NUM_SERIES])

    def svg(self) -> Markup:
        """As it stands in a page."""
        return self._svg(Markup().join(self._marks))

    def file(self) -> str:
        """As a file of its own."""
        style = Markup("<style>{}</style>").format(Markup(CSS.read_text(encoding="utf-8")))
        page = _element("rect", Markup(), {"width": self.width, "height": self.height, "class_": "page"})
        return f"{self._svg(Markup().join([style, page, *self._marks]), xmlns='http://www.w3.org/2000/svg')}\n"

    def _svg(self, content: Markup, **more: object) -> Markup:
        size = {"viewBox": f"0 0 {self.width} {self.height}", "width": self.width, "height": self.height}
        return _element("svg", content, {**more, **size, "role": "img", "aria_label": self.name})


def _element(tag: str, content: Markup, attributes: dict[str, object]) -> Markup:
    parts = [
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _number(value))
        for name, value in attributes.items()
        if value != ""
    ]
    return Markup("<{0}{1}>{2}</{0}>").format(tag, Markup().join(parts), content)


def _number(value: object) -> object:
    return f"{value:.1f}" if isinstance(value, float) else value


class Plot:
    """A part of a drawing in which values have a place; without a `y` scale its rows are named bars."""

    def __init__(
        self,
        drawing: Drawing,
        x: Scale,
        y: Scale | None = None,
        *,
        left: float = LEFT,
        right: float = RIGHT,
        top: float = TOP,
        bottom: float = BOTTOM,
    ) -> None:
        """`left`, `right`, `top`, `bottom`: what is left free of the drawing."""
        self.drawing, self._x, self._y = drawing, x, y or Scale(0, 1, is_log=False)
        self.left, self.right, self.top, self.bottom = left, drawing.width - right, top, drawing.height - bottom

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * self._x.at(value)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * self._y.at(value)

    def x_axis(self, title: str, ticks: Sequence[float] | None = None, *, has_rules: bool = True) -> None:
        is_narrow = self.drawing.width <= NARROW
        for tick in self._x.ticks(4 if is_narrow else 8) if ticks is None else ticks:
            if has_rules:
                self.upright(tick, "rule")
            self.drawing.text(self.x(tick), self.bottom + 16, f"{tick:,.6g}", "middle")
        self.drawing.text((self.left + self.right) / 2, self.drawing.height - 6, title, "middle")

    def y_axis(self, title: str, write: Callable[[float], str], ticks: Sequence[float] | None = None) -> None:
        self.drawing.text(0, self.top - 6, title)
        for tick in self._y.ticks(6) if ticks is None else ticks:
            self.level(tick, "rule")
            self.drawing.text(self.left - 6, self.y(tick) + 4, write(tick), "end")

    def upright(self, x: float, kind: str) -> None:
        self.drawing.add("path", d=f"M{self.x(x):.1f} {self.top}V{self.bottom}", class_=kind)

    def level(self, y: float, kind: str) -> None:
        self.drawing.add("path", d=f"M{self.left} {self.y(y):.1f}H{self.right}", class_=kind)

    def curve(self, points: Iterable[tuple[float, float]], series: int) -> None:
        placed = [f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points]
        if placed:
            self.drawing.line(f"M{'L'.join(placed)}", series)

    def steps(
        self,
        points: Iterable[tuple[float, float | None]],
        series: int,
        *,
        holds_until: bool = False,
        kind: str = "line",
    ) -> None:
        """Each value holds from its place to the next one, or with `holds_until` up to its place. None: there is no value."""
        path, before = "", None
        for x, y in points:
            at, level = f"{self.x(x):.1f}", "" if y is None else f"{self.y(y):.1f}"
            if y is None:
                path += f"H{at}" if before is not None and not holds_until else ""
            elif before is None:
                path += f"M{at} {level}"
            else:
                path += f"V{level}H{at}" if holds_until else f"H{at}V{level}"
            before = y
        if path:
            self.drawing.line(path, series, kind)

    def row(self, index: int, name: str) -> float:
        """The upper edge of the bar with this name."""
        top = 6 + index * ROW
        self.drawing.text(0, top + 13, name, "name")
        return top + 20

    def bar(self, top: float, start: float, end: float, series: int, title: str = "") -> None:
        """From `start` to `end` in pixels; `title` is shown under the pointer."""
        box = {
            "x": start,
            "y": top,
            "width": max(end - start, 0.5),
            "height": BAR,
            "rx": 2,
            "class_": f"fill c{series % NUM_SERIES}",
        }
        self.drawing.add("rect", Markup("<title>{}</title>").format(title) if title else "", **box)


# -- a panel over time ---------------------------------------------------------------------------------------------------

Values = Sequence[tuple[float, float | None]]  # seconds, and what holds from then on; None: nothing is known
PANEL, BESIDE = 86, 170  # height of a panel, and what its keys take beside it


def timeline(
    drawing: Drawing, top: float, title: str, lines: Sequence[tuple[int, str, Values]], end: tuple[float, str]
) -> Plot:
    """From 0 upwards, with a key of each line beside it. `lines`: series, name, values; `end`: the last second, and in words."""
    highest = max((value or 0.0 for *_, values in lines for _, value in values), default=0.0) or 1.0
    x, y = Scale(0, end[0], is_log=False), Scale(0, highest, is_log=False)
    plot = Plot(drawing, x, y, left=LEFT, right=BESIDE, top=top, bottom=drawing.height - top - PANEL)
    drawing.text(plot.left, top - 6, title, "name")
    drawing.add("path", d=f"M{plot.left} {plot.top}V{plot.bottom}H{plot.right}", class_="axis")
    drawing.text(plot.left - 6, top + 10, f"{highest:,.3g}", "end")
    drawing.text(plot.left - 6, plot.bottom, "0", "end")
    drawing.text(plot.right, plot.bottom + 14, end[1], "end")
    for index, (series, name, values) in enumerate(lines):
        at = top + 14 + 16 * index
        plot.steps([*values, (end[0], None)], series, kind="line thin")
        drawing.line(f"M{plot.right + 8} {at - 4}h18", series, "line thin")
        drawing.text(plot.right + 30, at, name)
    return plot


# -- a figure of a page ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """What a line, or with `is_area` a bar, of a series stands for."""

    series: int
    text: str
    is_area: bool = False

    @property
    def sample(self) -> Markup:
        if self.is_area:
            box = Markup('<rect width="14" height="14" rx="2" class="fill c{}"/>').format(self.series % NUM_SERIES)
            return Markup('<svg width="14" height="14" aria-hidden="true">{}</svg>').format(box)
        dashes = DASHES[self.series % NUM_SERIES]
        line = Markup('<path d="M1 5H33" class="line c{}" stroke-dasharray="{}"/>').format(
            self.series % NUM_SERIES, dashes
        )
        return Markup('<svg width="34" height="10" aria-hidden="true">{}</svg>').format(line)


@dataclass(frozen=True, slots=True)
class Figure:
    """The same drawing for a desk and for a phone, with its keys and a sentence on how to read it."""

    title: str
    caption: str
    wide: Markup
    narrow: Markup
    keys: tuple[LegendEntry, ...] = ()


def figure(title: str, caption: str, draw: Callable[[int], Drawing], keys: Iterable[LegendEntry] = ()) -> Figure:
    """`draw` gets the width in pixels."""
    return Figure(title, caption, draw(WIDE).svg(), draw(NARROW).svg(), tuple(keys))
