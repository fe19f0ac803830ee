"""A text file, line by line, as UTF-8. What the lines mean is for `tables` and `folders`.

Rule: a byte that is no UTF-8 is named by line and position, never replaced.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
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
