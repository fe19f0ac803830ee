"""Temporary folders for handing files to another Python; a full disk is reported with the way out.

SIGKILL leaves such a folder behind: whoever makes the next one removes it. A folder in use is locked (flock on the folder
itself, which systemd's cleaning of /tmp heeds too), so that nothing depends on process numbers, which containers that share a
disk give out twice. Rule: what cannot be locked, or is another user's, is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.errors import EnvironmentFault

PREFIX = "tandem-scratch-"


_own: set[Path] = set()  # of this process, in use


def remove_own() -> None:
    """Removes this process's folders, when it ends without unwinding."""
    for folder in list(_own):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Makes a folder for the block. Raises EnvironmentFault where there is no room for one."""
    try:
        _remove_left_behind(Path(tempfile.gettempdir()))
        folder, lock = _made(name)
    except OSError as error:
        raise _fault(Path(tempfile.tempdir or "/tmp"), error) from None
    try:
        with folder as path:
            _own.add(Path(path))
            yield Path(path)
    finally:
        _own.discard(Path(folder.name))
        os.close(lock)


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Turns every OSError in the block into an EnvironmentFault; wrap nothing but the writing."""
    try:
        yield
    except OSError as error:
        raise _fault(folder, error) from None


def _made(name: str) -> tuple[tempfile.TemporaryDirectory[str], int]:
    """Makes a folder; returns it with the descriptor that keeps it locked."""
    while True:
        folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{name}-")
        with contextlib.suppress(FileNotFoundError):
            lock = _opened(Path(folder.name))
            if _is_ours(Path(folder.name), lock):
                return folder, lock
            os.close(lock)
        folder.cleanup()  # another process took it for one left behind, between our making it and our locking it


def _is_ours(folder: Path, lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where nobody removes anything either
        return True
    return _is_there(folder, lock)


def _remove_left_behind(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove_if_left_behind(folder)


def _remove_if_left_behind(folder: Path) -> None:
    """Raises OSError where it is in use, no folder, or a link to one."""
    lock = _opened(folder)
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(folder, lock):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_there(folder: Path, lock: int) -> bool:
    """Whether the folder of that name is the one that was opened."""
    try:
        return os.path.samestat(os.fstat(lock), folder.lstat())
    except FileNotFoundError:
        return False


def _fault(folder: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(f"cannot write into {folder}: {error.strerror or error}; set TMPDIR to a disk with room")
