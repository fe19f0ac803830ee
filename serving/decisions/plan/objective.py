"""What is wanted, as it is said on a command line or in a file of rates: times with their unit, and hours of a day with their rate.

Rule: a day has 24 hours; a file whose hours do not add up to them is an error, never stretched.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from serving.errors import UserError

_TIME = re.compile(r"(\d+\.?\d*|\.\d+)\s*(us|µs|ms|s)?")
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0}
MAX_S = 3600.0  # what takes longer is no request
DAY_HOURS = 24.0
MAX_RATE_RPS = 1e7  # more than any one model gets; beyond, numbers of servers mean nothing
ROUNDING_HOURS = 0.01  # 24 thirds of an hour with two digits


def seconds(text: str, option: str) -> float:
    """`20ms`, `0.02s` and `0.02` are the same."""
    match = _TIME.fullmatch(text.strip())
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < value <= MAX_S:
        raise UserError(f"{option} {text}: not a time above 0 and up to an hour; write 20ms, 0.02s or 0.02")
    return value


def constant(rate_rps: float) -> tuple[tuple[float, float], ...]:
    return ((DAY_HOURS, rate_rps),)


def read_rates(path: Path) -> tuple[tuple[float, float], ...]:
    """Lines of `hours,rate`: how many hours a day, and requests per second in them. A first line of words and lines with # do not count."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the rates {path}: {getattr(error, 'strerror', None) or error}") from None
    pairs = []
    for number, cells in enumerate(csv.reader(text.splitlines()), 1):
        if not cells or cells[0].lstrip().startswith("#") or (number == 1 and _is_heading(cells)):
            continue
        pairs.append(_pair(cells, f"{path}, line {number}"))
    if not pairs or not any(rate for _, rate in pairs):
        raise UserError(f"{path}: no rate above 0; write lines of hours a day and requests per second, such as 8,200")
    total = sum(hours for hours, _ in pairs)
    if abs(total - DAY_HOURS) > ROUNDING_HOURS:
        way_out = (
            f"add the rest at no load: {DAY_HOURS - total:g},0" if total < DAY_HOURS else "take away what is too much"
        )
        raise UserError(f"{path}: the hours add up to {total:g}, a day has 24; {way_out}")
    return tuple(pairs)


def _is_heading(cells: list[str]) -> bool:
    return [cell.strip().lower() for cell in cells[:2]] in (["hours", "rate"], ["hours", "rate_rps"])


def _pair(cells: list[str], where: str) -> tuple[float, float]:
    try:
        hours, rate = (float(cell) for cell in cells)
    except ValueError:
        raise UserError(f"{where}: '{','.join(cells)}' is not hours,rate such as 8,200") from None
    if not (0 < hours <= DAY_HOURS and 0.0 <= rate <= MAX_RATE_RPS):
        raise UserError(
            f"{where}: hours are above 0 and at most 24, a rate is 0 or more and at most {MAX_RATE_RPS:,.0f}, not '{','.join(cells)}'"
        )
    return hours, rate
