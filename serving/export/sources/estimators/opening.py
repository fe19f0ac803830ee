"""What is wrong about a pickle before scikit-learn is there to open it, and before anything of it runs."""

from __future__ import annotations

from pathlib import Path

from serving.errors import UserError
from serving.export.exported import SourceOptions
from serving.export.sources import applies


def check(path: Path, options: SourceOptions) -> None:
    """Raises UserError."""
    if not options.is_trusted:
        raise UserError(
            f"{path} is a pickle, and opening one runs what its maker put into it: say --trust if you trust them"
        )
    applies.refuse("sklearn", options)
    if not path.is_file():
        raise UserError(f"there is no file {path}")
