"""Folders for files that another Python reads, gone afterwards; a full disk is told with the way out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.errors import EnvironmentFault


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Raises EnvironmentFault where there is no place for one."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=f"tandem-{name}-")
    except OSError as error:
        raise _fault(Path(tempfile.gettempdir() if tempfile.tempdir else "/tmp"), error) from None
    with folder as path:
        yield Path(path)


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """For nothing but the writing: every OSError in the block becomes an EnvironmentFault."""
    try:
        yield
    except OSError as error:
        raise _fault(folder, error) from None


def _fault(folder: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(f"cannot write into {folder}: {error.strerror or error}; set TMPDIR to a disk with room")
