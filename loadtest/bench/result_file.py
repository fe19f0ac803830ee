"""May a bench write its result there? Asked before it measures for minutes, and not after."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path


def result_file(text: str) -> Path:
    """For argparse. Raises ArgumentTypeError."""
    path = Path(text)
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder")
    return path
