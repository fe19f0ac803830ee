"""When requests came, from a file: Azure's LLM inference traces (a column TIMESTAMP), or a CSV whose first column is seconds.

Times are told from the first arrival, rising. Only they are used: what a request asked for is the scenario's. Rule: a row that is no time
is an error with its number, never skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from math import isfinite
from pathlib import Path

from serving.errors import UserError

TIMESTAMP = "TIMESTAMP"


def read_trace(path: Path) -> list[float]:
    """Seconds. Raises UserError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            times = list(_times(csv.reader(file), path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read the trace {path}: {getattr(error, 'strerror', None) or error}") from None
    if not times:
        raise UserError(f"{path} holds no arrival")
    times.sort()
    return [at - times[0] for at in times]


def _times(rows: Iterator[list[str]], path: Path) -> Iterator[float]:
    column, is_stamp = 0, False
    for number, row in enumerate(rows, start=1):
        if not row or not any(cell.strip() for cell in row):
            continue
        if number == 1 and not _is_number(row[0]):
            header = [cell.strip() for cell in row]
            is_stamp = TIMESTAMP in header
            column = header.index(TIMESTAMP) if is_stamp else 0
            continue
        text = row[column].strip() if column < len(row) else ""
        try:
            yield _stamp_s(text) if is_stamp else _seconds(text)
        except ValueError:
            what = "2023-11-16 18:17:03.97" if is_stamp else "12.5"
            raise UserError(f"{path}: row {number}: {text[:40]!r} is no time such as {what}") from None


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def _seconds(text: str) -> float:
    seconds = float(text)
    if not isfinite(seconds):
        raise ValueError(text)
    return seconds


def _stamp_s(text: str) -> float:
    """Azure writes seven digits of a second; without a time zone it is UTC, which does not matter here."""
    stamp = datetime.fromisoformat(text)
    return (stamp - datetime(1970, 1, 1, tzinfo=stamp.tzinfo)).total_seconds()
