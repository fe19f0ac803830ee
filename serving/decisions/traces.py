"""When requests came, from a file: Azure's LLM inference traces (a column TIMESTAMP), or a CSV whose first column is seconds.

Times are told from the first arrival, rising; a column `rows` says how many rows each had. Nothing else is read: what a request asked for
is the scenario's. Rule: a row that is no time is an error with its number, never skipped, and never taken for a header.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from serving.errors import UserError

TIMESTAMP = "TIMESTAMP"
ROWS = "rows"
NOTHING = (
    "null",
    "none",
    "nil",
    "na",
    "nat",
    "true",
    "false",
)  # what programs write where no time is: never a column's name
MAX_LASTING_S = 366 * 86_400.0  # beyond, one of the times is a mistake, and every second of it would be simulated
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_trace(path: Path, rows: float = 1.0) -> list[tuple[float, float]]:
    """Seconds, and rows: so many where the file does not say. Raises UserError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            arrivals = list(_arrivals(csv.reader(file), path, rows))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read the trace {path}: {getattr(error, 'strerror', None) or error}") from None
    if not arrivals:
        raise UserError(f"{path} holds no arrival")
    arrivals.sort()
    first, last = arrivals[0][0], arrivals[-1][0]
    if last - first > MAX_LASTING_S:
        days = (last - first) / 86_400
        raise UserError(
            f"{path}: {days:,.0f} days from the first arrival to the last, and a year is the most: one of them is wrong"
        )
    return [(at - first, rows) for at, rows in arrivals]


def _arrivals(lines: Iterator[list[str]], path: Path, rows: float) -> Iterator[tuple[float, float]]:
    column, rows_column, is_stamp, is_first = 0, None, False, True
    for number, line in enumerate(lines, start=1):
        if not line or not any(cell.strip() for cell in line):
            continue
        was_first, is_first = is_first, False
        if was_first and _is_header(header := [cell.strip() for cell in line]):
            is_stamp = TIMESTAMP in header
            column = header.index(TIMESTAMP) if is_stamp else 0
            rows_column = header.index(ROWS) if ROWS in header else None
            continue
        text = _cell(line, column)
        try:
            at = _stamp_s(text) if is_stamp else _seconds(text)
        except ValueError:
            what = "2023-11-16 18:17:03.97" if is_stamp else "12.5"
            raise UserError(f"{path}: row {number}: {text[:40]!r} is no time such as {what}") from None
        yield at, rows if rows_column is None else _rows(_cell(line, rows_column), f"{path}: row {number}")


def _is_header(cells: list[str]) -> bool:
    """Names, and no number among them: what has a number, or nothing where the time is to be, is a row."""
    is_name = cells[0][:1].isalpha() and cells[0].lower().replace("/", "") not in NOTHING
    return TIMESTAMP in cells or (is_name and not any(_has_number(cell) for cell in cells))


def _has_number(text: str) -> bool:
    """`nan` and `inf`, too: no time, and no name either."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cell(line: list[str], column: int) -> str:
    return line[column].strip() if column < len(line) else ""


def _rows(text: str, where: str) -> float:
    if not _is_number(text) or not float(text) > 0:
        raise UserError(f"{where}: rows {text[:40]!r} is no number above 0")
    return float(text)


def _is_number(text: str) -> bool:
    return _has_number(text) and isfinite(float(text))


def _seconds(text: str) -> float:
    seconds = float(text)
    if not isfinite(seconds):
        raise ValueError(text)
    return seconds


def _stamp_s(text: str) -> float:
    """Azure writes seven digits of a second; one without an offset is UTC."""
    stamp = datetime.fromisoformat(text)
    return (stamp.replace(tzinfo=stamp.tzinfo or UTC) - EPOCH).total_seconds()
