"""How long does one execution of so many rows take?

A curve has a point per measured batch size and is straight between two; below the smallest an execution costs what the smallest did,
beyond the largest the last rate goes on. Where the points come from is not here. Rule: asked for millions of times a second by nobody
but thousands of times by everybody, so all that can be computed beforehand is.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite


@dataclass(frozen=True, slots=True)
class Curve:
    """`points` are (rows, seconds) of one execution, rows ascending. Raises ValueError for points that are none."""

    points: tuple[tuple[float, float], ...]
    best_rate_rows_per_s: float = field(init=False)  # over the points
    _rows: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _slopes: tuple[float, ...] = field(init=False, repr=False, compare=False)  # seconds a row, up to each point

    def __post_init__(self) -> None:
        points = tuple((float(rows), float(seconds)) for rows, seconds in self.points)
        _check(points)
        slopes = [0.0]
        for (rows, seconds), (more_rows, more_seconds) in pairwise(points):
            slopes.append((more_seconds - seconds) / (more_rows - rows))
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "best_rate_rows_per_s", max(rows / seconds for rows, seconds in points))
        object.__setattr__(self, "_rows", tuple(rows for rows, _ in points))
        object.__setattr__(self, "_slopes", tuple(slopes))

    def seconds(self, rows: float) -> float:
        points = self.points
        last_rows, last_seconds = points[-1]
        if rows >= last_rows:
            return last_seconds * rows / last_rows
        at = bisect_left(self._rows, rows)
        point_rows, point_seconds = points[at]
        return point_seconds - self._slopes[at] * (point_rows - rows)

    def rate_rows_per_s(self, max_rows: float) -> float:
        """The best rate of executions of at most so many rows."""
        within = (rows / seconds for rows, seconds in self.points if rows <= max_rows)
        return max(max_rows / self.seconds(max_rows), *within, 0.0)

    def scaled(self, factor: float) -> Curve:
        return Curve(tuple((rows, seconds * factor) for rows, seconds in self.points))


def _check(points: tuple[tuple[float, float], ...]) -> None:
    if not points:
        raise ValueError("a curve needs at least one point (rows, seconds)")
    for rows, seconds in points:
        if not (isfinite(rows) and isfinite(seconds) and rows > 0 and seconds > 0):
            raise ValueError(f"a curve's points are positive numbers, not ({rows:g}, {seconds:g})")
    for (rows, _), (more_rows, _) in pairwise(points):
        if more_rows <= rows:
            raise ValueError(f"a curve's rows ascend, but {more_rows:g} follows {rows:g}")
