"""Long work on a terminal: a bar, or plain lines, that say how far it is; SIGTERM ends it as Ctrl-C does, so that it keeps what it has.

All of it goes to stderr, so that stdout holds the result alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

POLL_S = 0.1


class Progress:
    """Says lines, and shows a bar while a process runs for a known time."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=self._console, transient=True) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, line: str) -> None:
        if self._bar:
            self._console.print(escape(line))
        else:
            print(line, file=sys.stderr, flush=True)

    def wait(self, process: subprocess.Popen[bytes], title: str, length_s: float, grace_s: float) -> None:
        """Raises subprocess.TimeoutExpired when the process outlives its length by `grace_s`."""
        start = time.monotonic()
        task = self._bar.add_task(escape(title), total=length_s) if self._bar else None
        try:
            while process.poll() is None:
                elapsed_s = time.monotonic() - start
                if elapsed_s > length_s + grace_s:
                    raise subprocess.TimeoutExpired(process.args, length_s + grace_s)
                if self._bar and task is not None:
                    self._bar.update(task, completed=min(elapsed_s, length_s))
                time.sleep(POLL_S)
        finally:
            if self._bar and task is not None:
                self._bar.remove_task(task)


INTERRUPTED = 130  # the exit code: what a shell reports after Ctrl-C


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the block; in another thread than the main one nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
