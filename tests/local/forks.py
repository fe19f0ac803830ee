"""Programs as forks of a process that has imported them: half a second of CPU less for each of the many gateways that tests start.

For `tandem up`, `tandem gateway`, `tandem triton`, `tandem cluster …` and `serve.py`. How a command line starts is tested elsewhere, by programs that are started as users start them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERBS = {"cluster", "gateway", "triton", "up"}
PID_BYTES = 16  # as it is told, so that an exit code that comes at once is not read with it


class Fork:
    """`main` of a module with these words, and what tests use of a `subprocess.Popen`. What it writes goes to `output`, a file descriptor."""

    def __init__(self, module: str, words: list[str], output: int, cwd: Path, environment: Mapping[str, str]) -> None:
        self.args = words
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._end, told = os.pipe()  # says its number, and when it has ended its exit code
        request = json.dumps({"module": module, "words": words, "cwd": str(cwd), "environment": dict(environment)})
        try:
            socket.send_fds(_parent(), [request.encode()], [output, told])
        except BrokenPipeError:  # it has ended; its forks go on
            _parent.cache_clear()
            socket.send_fds(_parent(), [request.encode()], [output, told])
        os.close(told)
        self.pid = int(os.read(self._end, PID_BYTES))

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and that is told at any moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, limit_s: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._end, select.POLLIN)
            has_ended = bool(poll.poll(None if limit_s is None else limit_s * 1000))
            with self._lock:
                if has_ended and self.returncode is None:
                    self.returncode = int(os.read(self._end, 32))
                    os.close(self._end)
        return self.returncode


@functools.cache
def _parent() -> socket.socket:
    """Of all forks of this process; it ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-m", "tests.local.forks", str(its.fileno())]
        # What a test sends to its own group of processes is not meant for it.
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[its.fileno()], start_new_session=True)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _end_with_reader(pid: int, told: int) -> None:
    """Until it has ended; asks it to end where nobody is left to be told, because the tests were interrupted."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(told, 0)  # POLLERR is told without being asked for
    if all(descriptor != ended for descriptor, _ in poll.poll()):
        os.kill(pid, signal.SIGTERM)  # not waited for yet, so that the number is its own still


def _serve(requests: socket.socket) -> None:
    """Forks for each request. A child of each waits for the fork and tells how it ended; returns in the forks, and when there are no more requests."""
    for name in (
        "numpy.random",
        "pydantic.v1",  # FastAPI looks for it in each route
        "serving.cli.serve",
        "serving.gateway.grpc.server",
        "serving.gateway.serve",
        "serving.local.supervisor",
        "serving.local.triton",
        "serving.local.up",
    ):
        importlib.import_module(name)

    # `kubernetes`, which a scaler imports for a kubeconfig, brings what compiles a grammar of IRIs for two seconds (tests/conftest.py).
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    gc.collect()
    gc.freeze()  # no fork looks through all this for garbage, half of what its start would cost
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for those who wait
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when it is not asked any more
    while True:
        request, (*given,), _, _ = socket.recv_fds(requests, 2**20, 2)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            output, told = given
            if (pid := os.fork()) == 0:
                os.close(told)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                return _become(output, **json.loads(request))
            os.write(told, b"%*d" % (PID_BYTES, pid))
            _end_with_reader(pid, told)
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(BrokenPipeError):  # the tests were interrupted
                os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
        for descriptor in given:
            os.close(descriptor)


def _become(output: int, module: str, words: list[str], cwd: str, environment: Mapping[str, str]) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *words]
    sys.exit(importlib.import_module(module).main())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
