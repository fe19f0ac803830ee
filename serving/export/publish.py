"""How a variant gets into a repository: whole or not at all, whatever interrupts it.

It is built in a hidden sibling, flushed to disk, and then changes places with the old one in one step; the old one is
removed afterwards. A lock keeps a second writer out. Gates are not here. Rule: nothing outside a hidden name is ever
written to, only renamed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from serving.errors import EnvironmentFault, UserError
from serving.repository import RECORD_FILE, Record, Repository, Variant
from serving.repository.layout import config_files

LOCK_FILE = ".tandem-lock"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h: swap two names atomically


@contextmanager
def writing(repository: Path) -> Iterator[None]:
    """The only writer of this repository, for as long as the block runs. Finishes what a killed writer left."""
    try:
        repository.mkdir(parents=True, exist_ok=True)
        lock = (repository / LOCK_FILE).open("w")
    except OSError as error:
        raise UserError(f"cannot write to the repository {repository}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is writing to {repository}; wait for it, then run this again") from None
        _recover(repository)
        yield


def publish(repository: Path, record: Record, files: Mapping[str, bytes]) -> Variant:
    """Write one variant. `files`: path inside it -> content, without configurations and record; `record.files` is filled in.

    Call it inside `writing`.
    """
    record, contents = complete(record, files)
    target, new = repository / record.name, repository / f".{record.name}.new"
    try:
        _write(new, contents)
        _replace(target, new)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {target}: {error.strerror}; the repository is as it was") from None
    finally:
        if new.exists():
            shutil.rmtree(new, ignore_errors=True)
    return Repository(repository).variant(record.name)


def complete(record: Record, files: Mapping[str, bytes]) -> tuple[Record, dict[str, bytes]]:
    """The record with every digest, and every file of the variant with the generated ones among them."""
    contents = dict(files)
    record = replace(record, files=_digests(contents))  # the configurations state the model's digest
    contents |= {path: text.encode() for path, text in config_files(record).items()}
    record = replace(record, files=_digests(contents))
    return record, {**contents, RECORD_FILE: record.to_json().encode()}


def _digests(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {path: sha256(content).hexdigest() for path, content in sorted(contents.items())}


def _write(directory: Path, contents: Mapping[str, bytes]) -> None:
    directory.mkdir()
    for path, content in contents.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    for folder in [directory, *(path for path in directory.rglob("*") if path.is_dir())]:
        _sync(folder)


def _replace(target: Path, new: Path) -> None:
    if not target.exists():
        new.rename(target)
    elif not _exchange(target, new):
        # A file system without the exchange (some network ones): a reader can find neither for a moment, and
        # `_recover` brings the old one back if we die just then.
        old = target.with_name(f".{target.name}.old")
        target.rename(old)
        new.rename(target)
        _sync(target.parent)
        shutil.rmtree(old)
    _sync(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directories in one step; False where kernel, C library or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    result = libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(first))


def _recover(repository: Path) -> None:
    """Undo what a killed writer left: its new variant is dropped, an old one that was set aside comes back."""
    for old in repository.glob(".*.old"):
        target = repository / old.name.removeprefix(".").removesuffix(".old")
        if target.exists():
            shutil.rmtree(old)
        else:
            old.rename(target)
    for new in repository.glob(".*.new"):
        shutil.rmtree(new)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
