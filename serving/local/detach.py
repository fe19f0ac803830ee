"""How does `tandem up --detach` go on when the terminal has its prompt back?

The process is split before anything heavy is imported and no thread runs. Its child leaves the terminal's session, says there what it
says until it serves, and then lets go of the terminal; only then does the parent end. Imports nothing but the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import dataclass

ASK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Parent:
    """The end of a pipe to the process that waits until this one serves."""

    pipe: int

    def let_go(self, exit_code: int) -> None:
        """The parent ends with this code; what is said from here on goes nowhere but into logs."""
        sys.stdout.flush()
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.close(nowhere)
        os.write(self.pipe, bytes([exit_code]))
        os.close(self.pipe)


def split() -> Parent | int:
    """In the child: its parent. In the parent: the exit code, when the child serves or has ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        return Parent(writing)
    os.close(writing)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    # Neither read nor wait: a signal that comes just before would be handled only after it.
    while not select.select([reading], [], [], ASK_AGAIN_S)[0]:
        pass
    if told := os.read(reading, 1):
        return told[0]
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(ASK_AGAIN_S)
    _, status = ended
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
