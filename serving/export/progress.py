"""What a user sees of an export while it runs: how far a step is, and what was passed over. Not the chatter of libraries.

The caller decides what progress looks like: a bar on a terminal, lines elsewhere. Rule: every step ends with done == total, so
that a bar can be closed.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[str, int, int], None]  # step, done, total
Warn = Callable[[str], None]


def silent(step: str, done: int, total: int) -> None:
    """Says nothing."""


def lines(step: str, done: int, total: int) -> None:
    """Prints a line on stderr when a step ends."""
    if done == total:
        print(f"{step}: done", file=sys.stderr)


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class Bars:
    """Shows progress as bars on a terminal, as plain lines elsewhere."""

    def __init__(self) -> None:
        self._bars: RichProgress | None = None
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bars = RichProgress(*columns, console=console)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._bars is None:
            lines(step, done, total)
            return
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(step, total=total)
        self._bars.update(self._bars.task_ids[self._tasks[step]], completed=done, total=total)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallows what libraries print, log and warn of in the block; whatever fails comes as an exception."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
