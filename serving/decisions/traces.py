"""When requests came, from a file: Azure's LLM inference traces (a column TIMESTAMP), a CSV whose first column is seconds, or lines of JSON
(`.json`, `.jsonl`): a gateway's access log (`at` and `rows`), or its traces as an OpenTelemetry collector's file exporter writes them.

Times are told from the first arrival, rising; a column `rows` says how many rows each had. Nothing else is read: what a request asked for
is the scenario's. Rule: a row that is no time is an error with its number, never skipped, and never taken for a header.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import Any

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


def read_trace(path: Path, rows: float = 1.0, model: str | None = None) -> list[tuple[float, float]]:
    """Seconds, and rows: so many where the file does not say. `model`: of this name alone, where the file has names. Raises UserError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix in (".json", ".jsonl"):
                named = list(_logged(file, path, rows))
                arrivals = [(at, number) for at, number, name in named if model in (None, name)]
                if named and not arrivals:
                    others = ", ".join(sorted({name for _, _, name in named})[:5])
                    raise UserError(f"{path} holds no request of the model '{model}', but of {others}")
            else:
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


def _logged(lines: Iterable[str], path: Path, rows: float) -> Iterator[tuple[float, float, str]]:
    """Seconds, rows and models."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            found = (
                list(_traced(entry, rows))
                if "resourceSpans" in entry
                else [(float(entry["at"]), float(entry["rows"]), str(entry.get("model", "")))]
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UserError(
                f"{path}: line {number} is none of an access log, which has `at` and `rows` in JSON, and none of OpenTelemetry's "
                "traces, which have `resourceSpans`"
            ) from None
        for at, so_many, _ in found:
            if not isfinite(at) or not 0 < so_many < inf:
                raise UserError(f"{path}: line {number}: `at` and `rows` are no time and number above 0")
        yield from found


def _traced(message: dict[str, Any], rows: float) -> Iterator[tuple[float, float, str]]:
    """Of a gateway's spans those of whole requests, but for what was kept only because it failed or was mispredicted."""
    for of_resource in message["resourceSpans"]:
        for of_scope in of_resource.get("scopeSpans", ()):
            for span in of_scope.get("spans", ()):
                known = {pair["key"]: next(iter(pair["value"].values())) for pair in span.get("attributes", ())}
                if known.get("tandem.kept_by") == "sampled":
                    at = int(span["startTimeUnixNano"]) / 1e9
                    yield at, float(known.get("tandem.rows", rows)), str(known.get("tandem.model", ""))


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
