"""Two logarithmic axes of a figure: where a value lies, the rules and their numbers. Only drawing."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.report.plots import NARROW, ticks

LEFT, RIGHT, TOP, BOTTOM = 58, 14, 18, 42


@dataclass(frozen=True, slots=True)
class Axes:
    """Spans are of values above 0; a value outside is drawn at the edge."""

    width: int
    height: int
    x_span: tuple[float, float]
    y_span: tuple[float, float]

    def x(self, value: float) -> float:
        return LEFT + (self.width - LEFT - RIGHT) * _share(value, self.x_span)

    def y(self, value: float) -> float:
        return TOP + (self.height - TOP - BOTTOM) * (1 - _share(value, self.y_span))

    @property
    def right(self) -> float:
        return self.width - RIGHT

    @property
    def bottom(self) -> float:
        return self.height - BOTTOM

    def frame(self, title: str, y_text: Callable[[float], str]) -> list[str]:
        """Rules and numbers of both axes."""
        parts = []
        for tick in ticks(*self.y_span, 6):
            at = self.y(tick)
            parts.append(f'<path d="M{LEFT} {at:.1f}H{self.right}" class="rule"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" class="end">{html.escape(y_text(tick))}</text>')
        return parts + self.uprights(title)

    def uprights(self, title: str) -> list[str]:
        """Of the lower axis alone."""
        parts = []
        for tick in ticks(*self.x_span, 4 if self.width <= NARROW else 8):
            at = self.x(tick)
            parts.append(f'<path d="M{at:.1f} {TOP}V{self.bottom}" class="rule"/>')
            parts.append(f'<text x="{at:.1f}" y="{self.bottom + 16}" class="middle">{tick:,.6g}</text>')
        middle = (LEFT + self.right) / 2
        parts.append(f'<text x="{middle:.0f}" y="{self.height - 6}" class="middle">{html.escape(title)}</text>')
        return parts


def span(values: list[float], around: float = 1.15) -> tuple[float, float]:
    """With some room on both sides."""
    low, high = min(values) / around, max(values) * around
    return low, max(high, low * 2)


def _share(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return math.log(min(max(value, low), high) / low) / math.log(high / low)
