"""The file that `--ready-file` names: made when all is there that is to be served, for whoever waits for that.

Rule: a full disk is no reason not to serve; a path at which no file can be made is told before anything is started.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from serving.errors import UserError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def forget(path: Path | None) -> None:
    """What an earlier run wrote is not true of this one. Raises UserError where no file can be made there."""
    if path is None:
        return
    try:
        path.unlink(missing_ok=True)
        unfinished = _unfinished(path)
        unfinished.touch()
        unfinished.unlink()
    except OSError as error:
        if error.errno not in FULL:
            raise UserError(f"{cannot_write(path)}{error.strerror}; name another file with --ready-file") from None


def write(path: Path, text: str, say: Callable[[str], object]) -> None:
    """Whoever reads it sees all of it or nothing."""
    unfinished = _unfinished(path)
    try:
        unfinished.write_text(text)
        unfinished.replace(path)
    except OSError as error:
        say(f"{cannot_write(path)}{error.strerror}; whoever waits for it is not told, requests are answered")


def cannot_write(path: Path) -> str:
    """What a line says before the cause."""
    return f"cannot write {path}: "


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}")
