"""How does a part live and die? One process, its log, and the certainty that it does not outlive who started it.

A process leads a group of its own, so that Ctrl-C reaches only the tests, which then stop it. If they are killed, the kernel kills it:
see controlplane/orphan.go and metrics.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.cluster.bed.parts import Part

READY_S = (
    180.0  # the slowest, the API server, takes 3 to 5 s on two free cores, and a minute has been seen on busy ones
)
STOP_S = 20.0
TOLD_LINES = 15


class Broken(Exception):
    """A part does not run; the message ends with the last lines that it wrote."""


class Process:
    def __init__(self, part: Part, log: Path) -> None:
        self.part, self.log = part, log
        environment = {**os.environ, **part.environment, "BED_PARENT_PID": str(os.getpid())}
        with log.open("ab") as into:
            self._process = subprocess.Popen(
                part.command,
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=into,
                start_new_session=True,
                env=environment,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, context: ssl.SSLContext) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        tls = context if self.part.ready.startswith("https") else None
        error: OSError | None = None
        while time.monotonic() - began < READY_S:
            if self._process.poll() is not None:
                raise Broken(f"{self.part.name} ended with {self._process.returncode}:\n{self.last_lines()}")
            try:
                with urllib.request.urlopen(self.part.ready, timeout=2, context=tls):
                    return time.monotonic() - began
            except urllib.error.HTTPError as refusal:
                refusal.close()
                error = refusal
            except OSError as refusal:
                error = refusal
            time.sleep(0.05)
        raise Broken(f"{self.part.name} was not ready after {READY_S:.0f} s ({error}):\n{self.last_lines()}")

    def stop(self, *, kindly: bool = True) -> None:
        if kindly:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TOLD_LINES:])
