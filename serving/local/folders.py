"""Which folders does Tandem use on this machine, and which does one run of `tandem up` get?

Cache: may be deleted at any time, which costs time only. State: logs and the settings of each run; the oldest runs are removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from serving.errors import EnvironmentFault


def cache_dir() -> Path:
    """Triton's environments and measured speeds."""
    return _place("TANDEM_CACHE", "XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Logs and written settings of `tandem up`."""
    return _place("TANDEM_STATE", "XDG_STATE_HOME", ".local/state")


def _place(own: str, shared: str, under_home: str) -> Path:
    if named := os.environ.get(own):
        return Path(named).expanduser().absolute()
    if base := os.environ.get(shared):
        return Path(base).absolute() / "tandem"
    return Path.home() / under_home / "tandem"


MAX_KEPT_RUNS = 20  # folders of logs; a few hundred kB each (guess, not measured)


def run_folder() -> Path:
    """A new folder for this run's logs and settings; the oldest ones go."""
    runs = state_dir() / "runs"
    folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write logs to {folder}: {error.strerror}; set TANDEM_STATE to another folder"
        ) from None
    for old in sorted(runs.iterdir())[:-MAX_KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def last_line(log: Path) -> str | None:
    """The last thing a child said, without the program's name before it."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1].removeprefix("tandem triton: ").removeprefix("tandem: ")
    return None
