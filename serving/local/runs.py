"""The folders of `tandem up`'s runs: logs of its children and the settings that the gateway got."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from serving.errors import EnvironmentFault
from serving.local.places import state_dir

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
