"""Has a process that was started here begun to listen?"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time

START_S = 120.0  # gateways and rclone listen within a second; ten, where a machine is busy


def wait_for(port: int, process: subprocess.Popen[str]) -> None:
    """Returns when somebody listens on the port of loopback; AssertionError with what the process said where it ends before."""
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        assert process.poll() is None, process.stderr and process.stderr.read()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"{process.args} did not listen")
