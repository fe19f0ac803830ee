"""Reads and writes the file of API keys.

JSON, `{"version": 1, "keys": [{…}]}`. Reading is strict: an unknown field, a missing one, or one that stands twice is an error with its
place, because a misspelt `expires` would be a key for ever. A file that anybody but root and this process's user could change is refused,
with every folder and link on the way, because whoever may replace one of them decides what is read; a sticky folder keeps others from
that, so /tmp passes, and so does a Secret as Kubernetes mounts it. `changes.py` changes the file. Rule: no value of a field is put into a
message unless it cannot be a secret.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from serving.documents.nearest import nearest
from serving.documents.reader import parse_document
from serving.errors import UserError
from serving.keys.key import DIGEST, ID, ROLLOUT, SCOPES, Key, hidden
from serving.repository import check_model_name
from serving.scheduling.admission import HIGHEST, LOWEST

VERSION = 1
MAX_NAME = 100  # letters of a name, so that a line of a table stays one; a guess
A_TIME = "a time with its zone, as 2027-01-31T00:00:00Z"
WAY_OUT = "put a copy back, or make a new file with `tandem keys add`"


class Stamp(NamedTuple):
    """Two equal ones mean that the path leads to the same file, unchanged; a link that was turned leads to another."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class Reading(NamedTuple):
    keys: tuple[Key, ...]
    stamp: Stamp


class Broken(UserError):
    """The file was read and is wrong: as long as it stays as `stamp` says, it stays wrong."""

    def __init__(self, message: str, stamp: Stamp) -> None:
        super().__init__(message)
        self.stamp = stamp


def look(path: Path) -> Stamp:
    """Raises OSError."""
    return _stamp(path.stat())


def read(path: Path) -> Reading:
    """Raises UserError with the place and the way out, also where others could change the file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would keep us waiting
            raise UserError(f"the API keys {path} are no regular file; {WAY_OUT}")
        require_ours_alone(path)
        with path.open("rb") as file:
            stamp = _stamp(os.fstat(file.fileno()))
            text = file.read()
    except OSError as error:
        raise UserError(f"cannot read the API keys {path}: {error.strerror or error}; {WAY_OUT}") from None
    try:
        return Reading(parse(text, str(path)), stamp)
    except UserError as error:
        raise Broken(hidden(str(error)), stamp) from None


def parse(text: bytes, where: str) -> tuple[Key, ...]:
    """`where` the text is from, for messages. Raises UserError."""
    try:
        document = parse_document(text.decode(), where, is_json=True, error=_error)
    except UnicodeDecodeError:
        raise _error(f"{where}: not valid JSON: it is not in UTF-8") from None
    version = document.data.get("version") if isinstance(document.data, dict) else None
    if type(version) is int and version > VERSION:
        raise UserError(f"{where} has version {version} and this Tandem reads {VERSION}; use a newer Tandem")
    document.version(VERSION, "a file of API keys", "it is an object with 'version' and 'keys'")
    keys: dict[str, Key] = {}
    for number, entry in enumerate(document.values(_File, quote=False).keys):
        try:
            key = _key(entry)
            if key.id in keys:
                raise _Problem("id", f"'{key.id}' stands there twice; remove one")
        except _Problem as problem:
            place: tuple[str | int, ...] = ("keys", number, problem.field) if problem.field else ("keys", number)
            raise document.wrong(place, str(problem)) from None
        keys[key.id] = key
    return tuple(keys.values())


def _error(message: str) -> UserError:
    return UserError(message if message.endswith("?") else f"{message}; {WAY_OUT}")


def render(keys: Iterable[Key]) -> bytes:
    """The file. What `parse` reads again is the same."""
    entries = [{**without_digest(key), "tenant": key.tenant, "sha256": key.digest.hex()} for key in keys]
    for entry in entries:
        if entry["tenant"] is None:  # so that the Tandem of before there were tenants reads it, too
            del entry["tenant"]
    return (json.dumps({"version": VERSION, "keys": entries}, indent=1) + "\n").encode()


def time_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def check_name(name: str, what: str = "a key's name") -> str:
    """Raises UserError where it does not fit into a line of a table, or has that line already."""
    if name == ROLLOUT:
        raise UserError(f"{what} cannot be {ROLLOUT}: what copies of requests for rollouts cost is billed to that")
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise UserError(f"{what} is 1 to {MAX_NAME} printable characters, with no space at either end")
    return name


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key as it stands in the file."""

    id: str
    name: str
    sha256: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None
    highest_priority: int
    created: str
    expires: str | None
    revoked: str | None
    tenant: str | None = None  # files of before there were tenants have none


@dataclass(frozen=True, slots=True)
class _File:
    version: int
    keys: tuple[_Entry, ...]


class _Problem(Exception):
    """What is wrong with a field of a key; with the whole key where `field` is empty."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _key(entry: _Entry) -> Key:
    """Raises _Problem."""
    if ID.fullmatch(entry.id) is None:
        raise _Problem("id", "must be 12 lower-case hexadecimal digits")
    if DIGEST.fullmatch(entry.sha256) is None:
        raise _Problem("sha256", "must be 64 lower-case hexadecimal digits")
    if not HIGHEST <= entry.highest_priority <= LOWEST:
        raise _Problem("highest_priority", f"must be a number from {HIGHEST} to {LOWEST}")
    for field, names in (("scopes", entry.scopes), ("models", entry.models)):
        if names is not None and not names:
            raise _Problem(field, "must be a list of at least one name")  # a key that may do nothing is a mistake
    if unknown := next((scope for scope in entry.scopes if scope not in SCOPES), None):
        raise _Problem("scopes", f"unknown scope '{unknown[:40]}'{nearest(unknown[:40], SCOPES)}")
    try:
        for model in entry.models or ():
            check_model_name(model)
        check_name(entry.name)
        if entry.tenant is not None:
            check_name(entry.tenant, "a tenant's name")
    except UserError as error:
        raise _Problem("", str(error)) from None
    return Key(
        id=entry.id,
        name=entry.name,
        digest=bytes.fromhex(entry.sha256),
        scopes=frozenset(entry.scopes),
        created=_time("created", entry.created),
        models=None if entry.models is None else frozenset(entry.models),
        highest_priority=entry.highest_priority,
        expires=None if entry.expires is None else _time("expires", entry.expires),
        revoked=None if entry.revoked is None else _time("revoked", entry.revoked),
        tenant=entry.tenant,
    )


def _time(field: str, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise _Problem(field, f"must be {A_TIME}")


def without_digest(key: Key) -> dict[str, Any]:
    """What may be shown of a key."""
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.owner,
        "scopes": sorted(key.scopes),
        "models": None if key.models is None else sorted(key.models),
        "highest_priority": key.highest_priority,
        "created": time_text(key.created),
        "expires": None if key.expires is None else time_text(key.expires),
        "revoked": None if key.revoked is None else time_text(key.revoked),
    }


OTHERS, GROUP = stat.S_IWOTH, stat.S_IWGRP
MAX_LINKS = 40  # Linux's own limit


def require_ours_alone(path: Path) -> None:
    """Raises UserError with what to do about it, OSError where the path leads nowhere."""
    waiting = list(reversed(path.absolute().parts[1:]))
    at, num_links = Path("/"), 0
    _check(at, at.lstat(), path)
    while waiting:
        part = waiting.pop()
        if part == "..":  # of what is no link any more
            at = at.parent
            continue
        place = at / part
        found = place.lstat()
        _check(place, found, path)
        if not stat.S_ISLNK(found.st_mode):
            at = place
            continue
        num_links += 1
        if num_links > MAX_LINKS:
            raise UserError(f"the API keys {path} are a link that leads to itself; remove it")
        target = place.readlink()
        at = Path("/") if target.is_absolute() else at
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _check(place: Path, found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise UserError(
            f"{place} belongs to user {found.st_uid}, who could change the API keys {path}: `chown` it to root or to user {os.geteuid()}, "
            "who runs this, or keep the keys elsewhere"
        )
    if stat.S_ISLNK(found.st_mode):
        return
    mode = found.st_mode
    if stat.S_ISDIR(mode):
        # A group that has this process, too, is most often its user's own; root's is the one of arbitrary users on OpenShift.
        groups = 0 if found.st_gid in (0, os.getegid()) else GROUP
        if not mode & stat.S_ISVTX and mode & (OTHERS | groups):
            raise UserError(
                f"others may write into the folder {place}, and so change the API keys {path}: `chmod {_without(mode, groups)} {place}`"
            )
    elif mode & (OTHERS | GROUP):
        raise UserError(
            f"others may write to the API keys {place}: `chmod go-w {place}`, and look whether all keys are yours"
        )


def _without(mode: int, groups: int) -> str:
    return f"{'g' if mode & groups else ''}{'o' if mode & OTHERS else ''}-w"
