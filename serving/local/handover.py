"""One command goes on as another: the same terminal, folder and signals, and its exit code is ours.

Not exec, because a caller may have things to put away. Keep: while the other runs, this process only passes signals on.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType

from serving.errors import EnvironmentFault

# Ctrl-C and Ctrl-\ in a terminal go to its whole foreground group, so that the other process has them already.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def hand_over(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Its exit code, 128 + n where signal n ended it. Call it from the main thread: signals are that thread's."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise EnvironmentFault(f"cannot run {command[0]}: {error.strerror}") from None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if not (number in _FROM_TERMINAL and _is_in_foreground()):
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (*_PASSED_ON, *_FROM_TERMINAL)}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _is_in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # no terminal: whoever sent it sent it to this process alone
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
