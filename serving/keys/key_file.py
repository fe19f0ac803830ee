"""What does a file of API keys hold?

JSON, `{"version": 1, "keys": [{…}]}`. Reading is strict: an unknown field, a missing one, or one that stands twice is an error with
its place, because a misspelt `expires` would be a key for ever. Who changes the file is `changes.py`. Rule: no value of a field is
put into a message unless it cannot be a secret.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.keys.key import DIGEST, ID, SCOPES, Key, hidden
from serving.keys.permissions import require_ours_alone
from serving.repository import check_model_name
from serving.scheduling.admission import HIGHEST, LOWEST

VERSION = 1
MAX_NAME = 100  # letters of a name, so that a line of a table stays one; a guess
FIELDS = ("id", "name", "sha256", "scopes", "models", "highest_priority", "created", "expires", "revoked")
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
        raw = json.loads(text.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        place = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        why = error.msg if isinstance(error, json.JSONDecodeError) else "not JSON in UTF-8"
        if isinstance(error, _Twice):
            why = str(error)
        raise UserError(f"{where}{place}: not a file of API keys: {why}; {WAY_OUT}") from None
    if not isinstance(raw, dict) or "version" not in raw:
        raise UserError(f"{where}: not a file of API keys: expected an object with 'version' and 'keys'; {WAY_OUT}")
    version = raw["version"]
    if type(version) is not int or version < 1:
        raise UserError(f"{where}: 'version' must be {VERSION}; {WAY_OUT}")
    if version > VERSION:
        raise UserError(f"{where} has version {version} and this Tandem reads {VERSION}; use a newer Tandem")
    try:
        _require_fields(raw, ("version", "keys"))
    except UserError as error:
        raise UserError(f"{where}{error}") from None
    if not isinstance(raw["keys"], list):
        raise UserError(f"{where}: 'keys' must be a list; {WAY_OUT}")
    keys: dict[str, Key] = {}
    for number, entry in enumerate(raw["keys"]):
        try:
            key = _key(entry)
            if key.id in keys:
                raise UserError(f".id: '{key.id}' stands there twice; remove one")
        except UserError as error:
            raise UserError(f"{where}: keys[{number}]{error}") from None
        keys[key.id] = key
    return tuple(keys.values())


def render(keys: Iterable[Key]) -> bytes:
    """The file. What `parse` reads again is the same."""
    return (
        json.dumps(
            {"version": VERSION, "keys": [{**without_digest(key), "sha256": key.digest.hex()} for key in keys]},
            indent=1,
        )
        + "\n"
    ).encode()


def time_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def check_name(name: str) -> str:
    """Raises UserError where it does not fit into a line of a table."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        raise UserError(f"a key's name is 1 to {MAX_NAME} printable characters, with no space at either end")
    return name


class _Twice(ValueError):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Twice(f"the field '{twice[:40]}' stands twice in one object")
    return made


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _require_fields(raw: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raises UserError, whose message goes behind a place."""
    if len(raw) == len(known) and all(name in raw for name in known):
        return
    if unknown := next((name for name in raw if name not in known), None):
        raise UserError(f": unknown field '{unknown[:40]}'{nearest(unknown[:40], known)}")
    missing = next(name for name in known if name not in raw)
    raise UserError(f": '{missing}' is missing; {WAY_OUT}")


def _key(raw: Any) -> Key:
    """Raises UserError, whose message goes behind the place of the key."""
    if not isinstance(raw, dict):
        raise UserError(f": expected an object; {WAY_OUT}")
    _require_fields(raw, FIELDS)
    identity, name, digest, priority = raw["id"], raw["name"], raw["sha256"], raw["highest_priority"]
    if not isinstance(identity, str) or ID.fullmatch(identity) is None:
        raise UserError(".id: must be 12 lower-case hexadecimal digits")
    if not isinstance(digest, str) or DIGEST.fullmatch(digest) is None:
        raise UserError(".sha256: must be 64 lower-case hexadecimal digits")
    if not isinstance(name, str):
        raise UserError(".name: must be a text")
    if type(priority) is not int or not HIGHEST <= priority <= LOWEST:
        raise UserError(f".highest_priority: must be a number from {HIGHEST} to {LOWEST}")
    created = _time(raw, "created")
    if created is None:
        raise UserError(f".created: must be {A_TIME}")
    scopes = _names(raw, "scopes")
    if unknown := next((scope for scope in scopes if scope not in SCOPES), None):
        raise UserError(f".scopes: unknown scope '{unknown[:40]}'{nearest(unknown[:40], SCOPES)}")
    models = None if raw["models"] is None else _names(raw, "models")
    try:
        for model in models or ():
            check_model_name(model)
        check_name(name)
    except UserError as error:
        raise UserError(f": {error}") from None
    return Key(
        id=identity,
        name=name,
        digest=bytes.fromhex(digest),
        scopes=frozenset(scopes),
        created=created,
        models=None if models is None else frozenset(models),
        highest_priority=priority,
        expires=_time(raw, "expires"),
        revoked=_time(raw, "revoked"),
    )


def _names(raw: dict[str, Any], field: str) -> list[str]:
    """At least one: a key that may do nothing is a mistake."""
    names = raw[field]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f".{field}: must be a list of at least one name")
    return names


def _time(raw: dict[str, Any], field: str) -> datetime | None:
    if raw[field] is None:
        return None
    try:
        at = datetime.fromisoformat(raw[field])
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f".{field}: must be {A_TIME}")


def without_digest(key: Key) -> dict[str, Any]:
    """What may be shown of a key."""
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "models": None if key.models is None else sorted(key.models),
        "highest_priority": key.highest_priority,
        "created": time_text(key.created),
        "expires": None if key.expires is None else time_text(key.expires),
        "revoked": None if key.revoked is None else time_text(key.revoked),
    }
