"""Adds a key to the file of API keys, or revokes one.

Under a lock, so that two changes at once lose nothing, and with a new file that replaces the old one, so that a reader sees one or the
other. Rule: a link stays a link, and whoever could read the old file can read the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from serving.documents.nearest import closest
from serving.errors import UserError
from serving.keys.key import Key, digest_of, id_of, make_text
from serving.keys.key_file import check_name, read, render
from serving.repository import check_model_name
from serving.scheduling.admission import DEFAULT


class NewKey(NamedTuple):
    """`text` is what its user gets; nothing keeps it."""

    text: str
    key: Key


def add(
    path: Path,
    name: str,
    scopes: frozenset[str],
    now: datetime,
    *,
    models: frozenset[str] | None = None,
    expires: datetime | None = None,
    highest_priority: int = DEFAULT,
) -> NewKey:
    """Makes the file where there is none. Raises UserError."""
    check_name(name)
    for model in models or ():
        check_model_name(model)
    with _locked(path):
        keys = read(path).keys if path.exists() else ()
        added = new_key(
            name,
            scopes,
            now,
            models=models,
            expires=expires,
            highest_priority=highest_priority,
            taken=frozenset(key.id for key in keys),
        )
        _replace(path, render([*keys, added.key]))
    return added


def new_key(
    name: str,
    scopes: frozenset[str],
    now: datetime,
    *,
    models: frozenset[str] | None = None,
    expires: datetime | None = None,
    highest_priority: int = DEFAULT,
    taken: frozenset[str] = frozenset(),
) -> NewKey:
    """A key that stands in no file yet. `taken`: ids that are others'."""
    text = make_text()
    while id_of(text) in taken:
        text = make_text()
    key = Key(
        id=id_of(text) or "",
        name=name,
        digest=digest_of(text),
        scopes=scopes,
        created=now.replace(microsecond=0),
        models=models,
        highest_priority=highest_priority,
        expires=expires,
    )
    return NewKey(text, key)


def revoke(path: Path, which: str, now: datetime) -> Key:
    """By id, or by the key itself. It stays in the file, so that a list tells of it. Raises UserError where there is none."""
    sought = id_of(which) or which
    with _locked(path):
        keys = read(path).keys
        key = next((key for key in keys if key.id == sought), None)
        if key is None:
            close = closest(sought[:40], [key.id for key in keys])
            way = f"did you mean '{close}'?" if close else "`tandem keys list` shows the ids"
            raise UserError(f"{path}: no key has this id; {way}")
        if key.revoked is not None:
            return key
        revoked = replace(key, revoked=now.replace(microsecond=0))
        _replace(path, render(revoked if one is key else one for one in keys))
    return revoked


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock is a file beside it, because the file itself is another one after each change. It stays: removing it would race."""
    try:
        real = path.resolve()
    except RuntimeError:  # so does pathlib call it
        raise UserError(f"the API keys {path} are a link that leads to itself; remove it") from None
    try:
        lock = os.open(real.with_name(f".{real.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _cannot_write(path, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, text: bytes) -> None:
    real = path.resolve()
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
        raise _cannot_write(path, error) from None


def _same_readers(old: Path, number: int) -> None:
    """Owner, group and mode of the file that is replaced, as far as we may; a new file is its owner's alone."""
    with contextlib.suppress(FileNotFoundError):
        found = old.stat()
        with contextlib.suppress(PermissionError):
            os.fchown(number, found.st_uid, found.st_gid)
        os.fchmod(number, found.st_mode & 0o777)


def _cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write the API keys {path}: {error.strerror or error}; name a file in a folder that exists and that you may write to "
        "(in a cluster: change the Secret)"
    )
