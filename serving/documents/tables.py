"""A table of values that is shown in a terminal, in Markdown and on a page.

Whoever has the numbers makes the cells; how they look is decided here and in `templates/macros.html`. Rule: no HTML in a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, and under it in small letters what belongs to it: an interval, a source. A page breaks lines at newlines."""

    text: str
    notes: tuple[str, ...] = ()
    tag: str = ""
    kind: Literal["", "strong", "code", "missing"] = ""

    def __str__(self) -> str:
        return " ".join(" ".join((self.text, *self.notes)).split())


Value = str | Cell


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row names it. In a row that is shorter than the heading, the last cell reaches to the end."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    lead: str = ""  # a sentence above it
    ends_in_words: bool = False  # the last column is text, not a number


def columns(rows: Sequence[Sequence[str]], *, align: str = "", ruled: bool = False) -> str:
    """For a terminal; the first row is the heading. `align`: one of `<` and `>` for each column; without it the first and the
    last stand left, numbers between them right. `ruled`: dashes under the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    align = align or f"<{'>' * (len(widths) - 2)}<"
    lines = [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align[: len(widths)], widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    if ruled:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def marked(value: Value) -> str:
    """In Markdown."""
    mark = {"strong": "**", "code": "`"}.get(value.kind, "") if isinstance(value, Cell) else ""
    return f"{mark}{value}{mark}"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[Value]]) -> str:
    """A `|` in a cell would end it, and becomes `/`."""
    lines = [heads, ["---"] * len(heads), *([marked(value).replace("|", "/") for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
