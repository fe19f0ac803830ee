"""What is wrong about FILE.onnx before onnx is there to open it."""

from __future__ import annotations

from pathlib import Path

from serving.errors import UserError
from serving.export.exported import SourceOptions
from serving.export.sources import applies


def check(path: Path, options: SourceOptions) -> None:
    """Raises UserError."""
    applies.refuse("onnx", options)
    if not path.exists():
        raise UserError(f"there is no file {path}")
