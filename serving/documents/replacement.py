"""Changes a file of ours while others read it: under a lock, and with a new file that replaces the old one.

So two changes at once lose nothing, and a reader sees the old file or the new one. Rule: a link stays a link, and whoever could read the
old file can read the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from serving.errors import UserError


class Replaced:
    """Holds the lock in its `with` block. `what` the file is, for messages; `way_out`: what more to say where it cannot be written.

    The lock is a file beside it, because the file itself is another one after each change. It stays: removing it would race.
    """

    def __init__(self, path: Path, what: str, way_out: str = "") -> None:
        self._path = path
        self._what = what
        self._way_out = way_out
        self._lock = -1

    def __enter__(self) -> Replaced:
        """Raises UserError."""
        try:
            real = self._path.resolve()
        except RuntimeError:  # so does pathlib call it
            raise UserError(f"{self._what} {self._path} are a link that leads to itself; remove it") from None
        try:
            self._lock = os.open(real.with_name(f".{real.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._cannot_write(error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        os.close(self._lock)

    def replace(self, text: bytes) -> None:
        """Raises UserError."""
        real = self._path.resolve()
        fresh = real.with_name(f".{real.name}.new")  # one name is enough: the lock is held
        try:
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()  # of one that was killed
            number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(number, "wb") as stream:
                _same_readers(real, number)
                stream.write(text)
                stream.flush()
                os.fsync(number)
            fresh.replace(real)
            folder = os.open(real.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise self._cannot_write(error) from None

    def _cannot_write(self, error: OSError) -> UserError:
        way_out = f"name a file in a folder that exists and that you may write to {self._way_out}".rstrip()
        return UserError(f"cannot write {self._what} {self._path}: {error.strerror or error}; {way_out}")


@contextlib.contextmanager
def undisturbed(path: Path) -> Iterator[None]:
    """While nobody replaces the file: to read it together with another that changes with it.

    Whoever may not use the lock reads all the same.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, RuntimeError):
            real = path.resolve()
            lock = os.open(real.with_name(f".{real.name}.lock"), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _same_readers(old: Path, number: int) -> None:
    """Owner, group and mode of the file that is replaced, as far as we may; a new file is its owner's alone."""
    with contextlib.suppress(FileNotFoundError):
        found = old.stat()
        with contextlib.suppress(PermissionError):
            os.fchown(number, found.st_uid, found.st_gid)
        os.fchmod(number, found.st_mode & 0o777)
