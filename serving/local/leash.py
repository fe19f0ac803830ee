"""Becomes a command that dies with its parent: `python -I -S leash.py PARENT_PID SIGNAL COMMAND ARGUMENT…`

Answers: how does a child notice that its supervisor was killed? The kernel sends it SIGNAL then (PR_SET_PDEATHSIG), which
stays set across exec. A script of its own, because the setting belongs to the process that execs, and code between fork
and exec in a process with threads (gRPC has some) can hang. It also starts a new session, so that Ctrl-C in a terminal
reaches the supervisor alone, which stops its children in order. Imports nothing but the standard library.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.setsid()
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0):
        sys.exit(f"leash: prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the line above
        sys.exit("leash: the parent has gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
