"""A trained model that `make models` made, in a repository of its own: FP32 alone, so that both sides compute the same file.

Linked and not copied. Where it is missing, the line that would have its figures says which command makes it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from loadtest.errors import CannotMeasure


def alone(models: Path, model: str, folder: Path) -> Path:
    """The repository. Raises CannotMeasure."""
    found = models / f"{model}-fp32"
    if not (found / "tandem.json").is_file():
        raise CannotMeasure(
            f'{model} is not in {models}: make models ARGS="--only {model}" makes it (installs torch, 6.2 GB)'
        )
    repository = folder / "repository"
    shutil.copytree(found, repository / found.name, copy_function=_link)
    return repository


def _link(source: str, target: str) -> str:
    try:
        Path(target).hardlink_to(source)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target
