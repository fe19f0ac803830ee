"""Text files as UTF-8, line by line, and tables in them as CSV. What the rows mean is for `tables` and `folders`.

Rule: a byte that is no UTF-8 is named by line and position, never replaced.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path

from serving.errors import UserError

_BOM = b"\xef\xbb\xbf"  # spreadsheets put it in front


def read_lines(path: Path) -> Iterator[str]:
    """Lines with their ends, as `csv` wants them. The file is closed before the first: who stops in the middle leaves nothing open."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(io.BytesIO(content.removeprefix(_BOM)), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} line {number}: byte {error.start + 1} is no UTF-8; save the file as UTF-8"
            ) from None


def csv_rows(path: Path, check_header: Callable[[str, list[str]], None]) -> Iterator[tuple[str, dict[str, str]]]:
    """(place, column -> value) of each line after the header. `check_header` raises what is wrong about that."""
    reader = csv.reader(read_lines(path), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        check_header(f"{path} line 1", header)
        for row in reader:
            where = f"{path} line {reader.line_num}"
            if row and len(row) != len(header):
                raise UserError(f"{where}: want {len(header)} values as in the header, got {len(row)}")
            if row:
                yield where, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num}: {error}") from None
