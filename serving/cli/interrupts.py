"""Ctrl-C ends long work within about a second, even while a library computes and does not come back to Python.

Python raises KeyboardInterrupt when the main thread next runs Python: after minutes, where ONNX Runtime is in one run. A second
thread therefore waits for the signal too, and ends the process where the main thread has not come back in time. Rule: what the
work leaves behind is what it would leave behind on SIGKILL, which every writer here is prepared for, and `clean_up` is called.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE_S = 0.7  # for the main thread to unwind by itself, removing what it made (guess)
CODE = 130  # of a process that Ctrl-C ended, as shells have it


@contextmanager
def ending_at_once(clean_up: Callable[[], None]) -> Iterator[None]:
    """For the main thread. `clean_up` is called, in another thread, only where the block did not end by itself."""
    is_over = threading.Event()
    theirs, ours = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        while number := ours.recv(1):
            if number[0] == signal.SIGINT and not is_over.wait(GRACE_S):
                clean_up()
                sys.stderr.flush()
                os._exit(CODE)

    watcher = threading.Thread(target=watch, name="ctrl-c", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        signal.set_wakeup_fd(before)
        theirs.close()
        watcher.join()
        ours.close()
