"""`module:PKG.MOD:CALLABLE`, or `module:FILE.py:CALLABLE`: any torch.nn.Module of the user's own.

CALLABLE is a Module, or returns one, or returns (module, example): a tensor, a tuple or a dictionary of tensors with a batch
first. Its `labels`, where it has such, name the classes. Rule: this runs the user's code, so trust is asked for before
anything is imported, and what fails in there is told with their line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from serving.errors import UserError
from serving.export.exported import Exported, SourceOptions
from serving.export.progress import Progress
from serving.export.sources import applies
from serving.repository.record import TASKS, nearest

SPELLING = "module:PKG.MOD:CALLABLE or module:FILE.py:CALLABLE"


def check(rest: str, options: SourceOptions) -> None:
    """What is wrong without running anything. Raises UserError."""
    place, colon, name = rest.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise UserError(f"'module:{rest}' names no callable; want {SPELLING}")
    if place.endswith(".py") and not Path(place).is_file():
        raise UserError(f"there is no file {place}")
    if not place.endswith(".py") and not all(part.isidentifier() for part in place.split(".")):
        raise UserError(f"'{place}' is no name of a Python module; want {SPELLING}")
    if not options.is_trusted:
        raise UserError(f"module:{rest} runs the code in {place}: add --trust if you trust who wrote it")
    if options.task is not None and options.task not in TASKS:
        raise UserError(f"unknown task {options.task!r}{nearest(options.task, TASKS)}")
    applies.refuse("module", options)


def load(rest: str, options: SourceOptions, progress: Progress) -> Exported:
    """UserError names --trust, the user's line, or the operator that does not export."""
    check(rest, options)
    place, _, name = rest.rpartition(":")
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: F401

        from serving.export.sources.pytorch import module_call, module_code
    except ImportError as error:
        raise UserError(
            f"module: needs {error.name}, which is not installed here: pip install 'tandem-serving[export]'"
        ) from None
    made: Any = module_code.made(place, name)
    return module_call.exported(made, f"module: {Path(place).name}:{name}", options, progress)
