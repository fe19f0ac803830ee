"""Children that one thread waits for, in a process whose loop reaps all others (`serving.local.processes.Nursery`).

And how one is started without being lost to Ctrl-C (`held`).

Keep: nobody else takes such a child's exit code. Python reads one that is gone as 0, so that a command that failed would count as done.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Ctrl-C and SIGTERM in the block are handled at its end: a library that is interrupted while it is imported fails in ways of its
    own, and a process that was just started would be lost.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    came: list[int] = []
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
