"""Which `tandem up` run on this machine, where are they asked, and how is one ended?

Each writes it into its run's folder and holds a lock on that file as long as it lives: one that was killed serves nothing, and left its
record behind, as one that ended has not. Other machines and users, and a Triton or a gateway that was started alone, are not seen here.
Rule: no secret is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from serving.errors import EnvironmentFault
from serving.local.folders import state_dir
from serving.local.processes import stat

FILE = "serves.json"
POLL_S = 0.05
STOP_S = 60.0  # the gateway's drain, each pool's end and the kills after them (`up.py`), on a busy machine (guess, not measured)


@dataclass(frozen=True, slots=True)
class Process:
    """By number and start time together, because numbers are used again, in other containers at the same time."""

    pid: int
    started_ticks: int

    @staticmethod
    def this() -> Process:
        found = stat(os.getpid())
        return Process(os.getpid(), found.started_ticks if found else 0)

    @property
    def is_alive(self) -> bool:
        now = stat(self.pid)
        return now is not None and now.is_alive and now.started_ticks == self.started_ticks


@dataclass(frozen=True, slots=True)
class Run:
    """`url` is of the listener that tells the gateway's status, `public_url` of the one for clients.

    `gateway_urls` are those of the listeners that tell the status of each, where several gateways share the clients.
    """

    repository: str
    url: str
    public_url: str
    began_s: float = field(default_factory=time.time)  # since 1970
    process: Process = field(default_factory=Process.this)
    gateway_urls: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        """Of the listener of each gateway that tells its status."""
        return self.gateway_urls or (self.url,)

    @property
    def port(self) -> int | None:
        return urlsplit(self.public_url).port


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run and the folder of its logs. `is_alive`: False where it was killed."""

    folder: Path
    run: Run
    is_alive: bool


@contextlib.contextmanager
def announce(folder: Path, run: Run) -> Iterator[None]:
    """Says what is served, until the block or this process ends."""
    path = folder / FILE
    try:
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(run)))
        file.flush()
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}") from None
    with file:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def serving(repository: Path) -> list[Run]:
    """The runs that serve this repository now, the oldest first."""
    return [it.run for it in found() if it.is_alive and Path(it.run.repository).resolve() == repository.resolve()]


def found() -> list[LoggedRun]:
    """All runs of this user that go on, and those that were killed, the oldest first."""
    return [it for path in sorted((state_dir() / "runs").glob(f"*/{FILE}")) if (it := _read(path)) is not None]


def latest_folder() -> Path | None:
    """Of the logs of the run that was started last, whether it goes on or not."""
    folders = [path for path in (state_dir() / "runs").glob("*") if path.is_dir()]
    return max(folders, key=lambda path: path.name, default=None)


def _read(path: Path) -> LoggedRun | None:
    """None where its folder went at this moment, or another version of Tandem wrote it."""
    is_alive = False
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                is_alive = True
            said = json.loads(file.read())
        urls = tuple(said.get("gateway_urls", ()))
        run = Run(**{**said, "process": Process(**said["process"]), "gateway_urls": urls})
    except (OSError, ValueError, TypeError, LookupError):
        return None
    return LoggedRun(path.parent, run, is_alive)


def forget(run: LoggedRun) -> None:
    """Removes what one that was killed left behind of its record; its logs stay."""
    with contextlib.suppress(OSError):
        (run.folder / FILE).unlink()


def stop(run: LoggedRun, tick: Callable[[], None] = lambda: None) -> None:
    """Ends a run with all that it started, as Ctrl-C does, and returns when it is gone. `tick` is called while that lasts.

    Raises EnvironmentFault where that is not allowed, or takes too long.
    """
    process, began_s = run.run.process, time.monotonic()
    if not process.is_alive:
        raise EnvironmentFault(
            f"the process {process.pid} that serves {run.run.public_url} is not seen from here: it runs in another container"
        )
    try:
        os.kill(process.pid, signal.SIGTERM)
    except PermissionError:
        raise EnvironmentFault(f"process {process.pid} is another user's, who can end it") from None
    except ProcessLookupError:
        return
    while process.is_alive:
        if time.monotonic() - began_s > STOP_S:
            raise EnvironmentFault(
                f"process {process.pid} still ends its work after {STOP_S:.0f} s (logs: {run.folder}); "
                f"a second `tandem stop` drops what is in flight"
            )
        tick()
        time.sleep(POLL_S)
