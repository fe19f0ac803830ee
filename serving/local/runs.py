"""Which `tandem up` of this machine serve a repository, and at which address are they asked?

Each writes it into its run's folder and holds a lock on that file as long as it lives, so that one that was killed serves nothing. Other
machines and users, and a Triton or a gateway that was started alone, are not seen here. Rule: no secret is written.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from serving.errors import EnvironmentFault
from serving.local.folders import state_dir

FILE = "serves.json"


@dataclass(frozen=True, slots=True)
class Run:
    """`url` is of the listener that tells the gateway's status."""

    repository: str
    url: str


def announce(folder: Path, run: Run) -> TextIO:
    """Says what is served; it is so until the file is closed, or this process ends."""
    try:
        file = (folder / FILE).open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(asdict(run)))
        file.flush()
    except OSError as error:
        raise EnvironmentFault(f"cannot write {folder / FILE}: {error.strerror}") from None
    return file


def serving(repository: Path) -> list[Run]:
    """The runs that serve this repository now, the oldest first."""
    return [run for run in _alive() if Path(run.repository).resolve() == repository.resolve()]


def _alive() -> Iterator[Run]:
    for path in sorted((state_dir() / "runs").glob(f"*/{FILE}")):
        try:
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield Run(**json.loads(path.read_text()))
        except OSError:  # its folder was removed at this moment
            continue
