"""Children that one thread waits for, in a process whose loop reaps all others (`serving.local.processes.Nursery`); and signals that
wait while something is begun that must not be cut in two.

Keep: nobody else takes such a child's exit code. Python reads one that is gone as 0, so that a command that failed would count as done.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STARTING = threading.Lock()  # held while one is started, and by whoever reaps: none ends before it is known
_own: weakref.WeakSet[OwnChild] = weakref.WeakSet()


class OwnChild(subprocess.Popen[bytes]):
    """`subprocess.Popen`, whose exit code is told to its own thread alone."""

    def __init__(self, command: list[str], **options: Any) -> None:
        with STARTING:
            super().__init__(command, **options)
            _own.add(self)


def own() -> set[int]:
    """The numbers of those that run, or have ended and are not waited for yet. Hold STARTING."""
    return {child.pid for child in _own if child.returncode is None}


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C and SIGTERM in the block are handled at its end, each once, where Python has handlers for them: a library that is interrupted
    while it is imported fails in ways of its own, and a process that was just started would be lost. Not for an event loop that handles
    signals.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    ours: dict[int, Any] = {number: handler for number, handler in handlers.items() if callable(handler)}
    came: list[int] = []
    is_over = False

    def note(number: int, frame: FrameType | None) -> None:
        if is_over:  # another signal interrupted the putting back of this one's handler
            ours[number](number, frame)
        else:
            came.append(number)

    try:
        for number in ours:
            signal.signal(number, note)
        yield
    finally:
        is_over = True
        for number, handler in ours.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)
