"""Where do the words of child processes go? Through a pipe and a thread of ours: into files that rotate by size, or on to standard error.

The folder of a run of `tandem up` is made here as well; what runs before left is bounded in number and in bytes. A line that repeats is
counted. A child never meets a full disk, which is told once with the path, and never waits for one, but where a write hangs for longer than
the pipe takes. Keep: the thread that reads raises nothing, or children stop at a full pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import logging.handlers
import os
import re
import select
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from serving.errors import EnvironmentFault
from serving.local.folders import state_dir
from serving.local.processes import stat
from serving.local.venvs import Say

MAX_KEPT_RUNS = 20  # folders of logs (guess, not measured)
MAX_KEPT_BYTES = 200_000_000  # of all runs that are over (guess, not measured)
MAX_LOG_BYTES = 5_000_000  # of one file; a request that fails writes some hundred bytes (guess, not measured)
NUM_OLDER = 2  # files beside it, so that a child's log takes 15 MB at most
MAX_LINE_BYTES = 16_384  # a longer line is cut into several
REPEAT_S = 60.0  # how often a line that goes on repeating is told, with how often it came
FEW = 3  # times a minute that it is written
MAX_REPEATING = 64  # lines that are looked out for at a time
NUM_LAST = 40  # lines that are kept to tell why a child ended: tritonserver prints a table after its error
PIPE_BYTES = 2**20  # Linux's own limit for users without rights
SETTLE_S = 2.0  # a thread reads what is in a pipe in milliseconds

# How lines of tritonserver and of ONNX Runtime begin: the time, and the number of the process or thread.
STAMP = re.compile(r"^(?:\x1b\[[\d;]*m)*(?:[IWEF]\d{4} [\d:.]+ \d+ |\d{4}-\d\d-\d\d[T ][\d:.,]+Z? (?:[IWEFV] \d+ )?)")
OURS = ("tandem", "WARNING", "ERROR")


def run_folder() -> Path:
    """A new folder for this run's logs and settings; the oldest ones go, but for those of runs that go on."""
    runs = state_dir() / "runs"
    folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write logs to {folder}: {error.strerror}; set TANDEM_STATE to another folder"
        ) from None
    num_bytes = 0
    for number, old in enumerate(sorted(runs.iterdir(), reverse=True)):
        num_bytes += sum(_size(file) for file in old.glob("*"))
        pid = old.name.rpartition("-")[2]  # in a container every run has the same
        is_ours = pid == str(os.getpid())
        is_over = old != folder and (is_ours or not pid.isdigit() or stat(int(pid)) is None)
        if is_over and (number >= MAX_KEPT_RUNS or num_bytes > MAX_KEPT_BYTES):
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


class Repeats:
    """Which lines are written: each a few times a minute, and then how often it came besides. The time is an argument.

    What has no time before it, as the lines of a traceback, is left out only where it follows upon itself.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, int, str]] = {}  # what repeats: since when, how often, and the line
        self._last = ""

    def take(self, line: str, now_s: float) -> list[str]:
        """What to write when this line came."""
        written = self.due(now_s)
        key = STAMP.sub("", line)
        is_entry = key != line or line.startswith(OURS)
        repeats = key in self._known and (is_entry or key == self._last)
        self._last = key
        if repeats:
            since_s, count, _ = self._known[key]
            self._known[key] = since_s, count + 1, line
            return [*written, line] if count + 1 < FEW else written
        if len(self._known) >= MAX_REPEATING:
            written += self._end(next(iter(self._known)))
        self._known[key] = now_s, 0, line
        return [*written, line]

    def due(self, now_s: float) -> list[str]:
        """What to write by now, whatever came."""
        over = [key for key, (since_s, *_) in self._known.items() if now_s - since_s >= REPEAT_S]
        return [line for key in over for line in self._end(key)]

    def rest(self) -> list[str]:
        return [line for key in list(self._known) for line in self._end(key)]

    @property
    def is_counting(self) -> bool:
        return any(count >= FEW for _, count, _ in self._known.values())

    def _end(self, key: str) -> list[str]:
        _, count, line = self._known.pop(key)
        return [f"{line} (came {count + 1 - FEW} times more)"] if count >= FEW else []


class LogFile(logging.handlers.RotatingFileHandler):
    """A file that rotates by size. What cannot be written is lost, and told: when that begins and when it is over."""

    def __init__(self, path: Path, say: Say) -> None:
        super().__init__(path, maxBytes=MAX_LOG_BYTES, backupCount=NUM_OLDER, delay=True, errors="replace")
        self._path = path
        self._say = say
        self._num_lost = 0

    def write(self, line: str) -> None:
        before = self._num_lost
        broken = "\n" if before else ""  # the last line may have been written in part
        self.handle(logging.makeLogRecord({"msg": f"{broken}{line}"}))
        if before and self._num_lost == before:
            self._num_lost = 0
            self._say(f"{self._path} is written again; {before} lines were lost")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - logging's name, called where writing failed
        error = sys.exc_info()[1]
        if not self._num_lost:
            why = error.strerror if isinstance(error, OSError) else error
            self._say(f"cannot write {self._path}: {why}; its lines are lost until that is mended, requests are not")
        self._num_lost += 1
        stream, self.stream = self.stream, None  # it is opened again for the next line
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()


class Output:
    """What a child and all below it say: they write to `end`, each line is given to `write`, and the last ones are kept.

    The pipe stays the same when a child is started again. Close it when none is left: what then still writes is not heard.
    """

    def __init__(self, write: Say, *, at_end: Callable[[], None] = lambda: None) -> None:
        self._write, self._at_end = write, at_end
        self._reading, self.end = os.pipe()
        with contextlib.suppress(OSError, AttributeError):  # the latter where this is not Linux
            fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        # For ourselves, who must not wait at a full pipe as children may.
        try:
            self._own_end = os.open(f"/proc/self/fd/{self.end}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._own_end = os.dup(self.end)
        self._last: deque[str] = deque(maxlen=NUM_LAST)
        self._settled = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    @staticmethod
    def into(path: Path, say: Say, *, name: str = "", marks: Iterable[str] = ()) -> Output:
        """A line that holds one of `marks` is also said, from there on, after the child's name."""
        with contextlib.suppress(OSError):
            path.touch()  # whoever looks finds that nothing was said
        log = LogFile(path, say)

        def write(line: str) -> None:
            log.write(line)
            for mark in marks:
                if mark in line:
                    say(f"{name}: {line[line.index(mark) :]}")

        return Output(write, at_end=log.close)

    def last(self) -> list[str]:
        """The last lines of all that was said before this moment."""
        self._settled.clear()
        with contextlib.suppress(OSError):
            os.write(self._own_end, b"\n\0\n")
            self._settled.wait(SETTLE_S)
        return list(self._last)

    def forget(self) -> None:
        """For a child that is about to be started: what is said from here on is its own."""
        self.last()
        self._last.clear()

    def close(self) -> None:
        """Returns when all that was said has been written."""
        if not self._closed:
            self.last()
            self._closed = True
            with contextlib.suppress(OSError):
                os.write(self._own_end, b"\n\0\n")
            self._thread.join(SETTLE_S)
            os.close(self.end)
            os.close(self._own_end)

    def _read(self) -> None:
        repeats, rest = Repeats(), b""
        while not self._closed:
            if repeats.is_counting and not select.select([self._reading], [], [], REPEAT_S)[0]:
                self._pass_on(repeats.due(time.monotonic()))
                continue
            *lines, rest = (rest + os.read(self._reading, 65_536)).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                if line == b"\0":
                    self._settled.set()
                elif text := line.decode(errors="replace").rstrip():
                    self._last.append(text)
                    self._pass_on(repeats.take(text, time.monotonic()))
        self._pass_on(repeats.rest())
        os.close(self._reading)
        self._at_end()

    def _pass_on(self, lines: list[str]) -> None:
        for line in lines:
            self._write(line)


def to_stderr(line: str) -> None:
    """Where nobody reads it or there is no room, it is lost."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
