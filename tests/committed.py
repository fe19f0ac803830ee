"""The models that are part of the project, without what somebody has exported beside them since: the README's own examples, say."""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "model_repo"
VARIANTS = ("digits-fp16", "digits-fp32", "digits-int8")


def copy_committed(to: Path) -> Path:
    """Into a folder that may be there."""
    for name in VARIANTS:
        shutil.copytree(FOLDER / name, to / name)
    return to
