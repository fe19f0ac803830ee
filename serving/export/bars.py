"""Shows progress as bars on a terminal, as plain lines elsewhere.

Apart from `progress.py`, because the package that draws is not in images that verify models.
"""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from serving.export.progress import lines


class Bars:
    def __init__(self) -> None:
        self._bars: RichProgress | None = None
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> Bars:
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
