"""Does a claim hold? The answer word from its numbers and its own threshold, and nothing else.

Pure. Rule: a number counts for one side only with its whole interval; otherwise nobody knows, and that is an answer too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadtest.claims.values import (
    DEPENDS,
    DOES_NOT_HOLD,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED_HERE,
    NOT_RUN,
    Cell,
    Reading,
    Side,
)


def side_of(reading: Reading, at_least: float | None, at_most: float | None) -> Side | None:
    """None where there is no number."""
    if reading.value is None:
        return None
    if reading.low is None or reading.high is None:
        return "unclear"
    low = float("-inf") if at_least is None else at_least
    high = float("inf") if at_most is None else at_most
    if low <= reading.low and reading.high <= high:
        return "holds"
    return "fails" if reading.high < low or reading.low > high else "unclear"


def judged(cells: Sequence[Cell], at_least: float | None, at_most: float | None) -> tuple[Cell, ...]:
    """The same cells with their sides."""
    return tuple(
        replace(cell, side=side_of(cell.reading, at_least, at_most)) if cell.is_judged else cell for cell in cells
    )


def answer(cells: Sequence[Cell]) -> str:
    """Of cells that have their sides. What is not judged, or has too few rounds for an interval, has no part in it."""
    judged_cells = [cell for cell in cells if cell.is_judged]
    found = [cell for cell in judged_cells if cell.side is not None]
    sides = {cell.side for cell in found if cell.reading.low is not None and cell.reading.high is not None}
    if found and not sides:
        return INCONCLUSIVE
    if not sides:
        ran_elsewhere = any(cell.reading.absent == NOT_MEASURED_HERE for cell in judged_cells)
        return NOT_MEASURED_HERE if ran_elsewhere else NOT_RUN
    if {"holds", "fails"} <= sides:
        return DEPENDS
    if "unclear" in sides:
        return INCONCLUSIVE
    return HOLDS if sides == {"holds"} else DOES_NOT_HOLD


def numbers(cells: Sequence[Cell]) -> str:
    """In words: what was found, on which side, and what is missing."""
    judged_cells = [cell for cell in cells if cell.is_judged]
    found = [cell for cell in judged_cells if cell.reading.value is not None]
    if not found:
        reasons = dict.fromkeys(cell.reading.reason for cell in judged_cells if cell.reading.reason)
        return "; ".join(reasons) or "nothing was asked for"
    unit = found[0].unit
    parts = [_range([cell.reading.value for cell in found if cell.reading.value is not None], unit)]
    sides = {"holds": "so for", "fails": "not for", "unclear": "not to be told for"}
    alone = {"holds": "in all", "fails": "in none of", "unclear": "not to be told for any of"}
    here = {side: [c for c in found if c.side == side] for side in sides}
    if sum(bool(some) for some in here.values()) > 1:
        parts += [f"{words} {_where(here[side])}" for side, words in sides.items() if here[side]]
    elif len(found) == 1:
        parts.append(_where(found))
    else:
        parts += [f"{words} {len(found)}" for side, words in alone.items() if here[side]]
    missing = len(judged_cells) - len(found)
    if missing:
        parts.append(f"{missing} not measured")
    return "; ".join(parts)


def _where(cells: Sequence[Cell]) -> str:
    models: dict[str, list[str]] = {}
    for cell in cells:
        models.setdefault(cell.model, []).append(cell.at)
    return ", ".join(f"{model}{_ats(at)}" for model, at in models.items())


def _ats(at: Sequence[str]) -> str:
    """`["batch 1", "batch 2"]` -> ` (batch 1, 2)`"""
    words = [one.removeprefix("batch ") if index else one for index, one in enumerate(filter(None, at))]
    return f" ({', '.join(words)})" if words else ""


def _range(values: Sequence[float], unit: str) -> str:
    low, high = show(min(values), unit), show(max(values), unit)
    return low if low == high else f"{low} to {high}"


def show(value: float, unit: str) -> str:
    """One number for people."""
    if unit == "times":
        return f"{value:.2f}×" if value < 100 else f"{value:.0f}×"
    if unit == "share":
        return f"{value:.0%}"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
