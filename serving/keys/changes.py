"""Adds a key to the file of API keys, or revokes one.

Under a lock, so that two changes at once lose nothing, and with a new file that replaces the old one (`documents/replacement.py`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from serving.documents.nearest import closest
from serving.documents.replacement import Replaced
from serving.errors import UserError
from serving.keys.key import Key, digest_of, id_of, make_text
from serving.keys.key_file import check_name, read, render
from serving.repository import check_model_name
from serving.scheduling.admission import DEFAULT

WAY_OUT = "(in a cluster: change the Secret)"


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
    tenant: str | None = None,
) -> NewKey:
    """Makes the file where there is none. Raises UserError."""
    check_name(name)
    if tenant is not None:
        check_name(tenant, "a tenant's name")
    for model in models or ():
        check_model_name(model)
    with (file := Replaced(path, "the API keys", WAY_OUT)):
        keys = read(path).keys if path.exists() else ()
        added = new_key(
            name,
            scopes,
            now,
            models=models,
            expires=expires,
            highest_priority=highest_priority,
            taken=frozenset(key.id for key in keys),
            tenant=tenant,
        )
        file.replace(render([*keys, added.key]))
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
    tenant: str | None = None,
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
        tenant=tenant,
    )
    return NewKey(text, key)


def revoke(path: Path, which: str, now: datetime) -> Key:
    """By id, or by the key itself. It stays in the file, so that a list tells of it. Raises UserError where there is none."""
    sought = id_of(which) or which
    with (file := Replaced(path, "the API keys", WAY_OUT)):
        keys = read(path).keys
        key = next((key for key in keys if key.id == sought), None)
        if key is None:
            close = closest(sought[:40], [key.id for key in keys])
            way = f"did you mean '{close}'?" if close else "`tandem keys list` shows the ids"
            raise UserError(f"{path}: no key has this id; {way}")
        if key.revoked is not None:
            return key
        revoked = replace(key, revoked=now.replace(microsecond=0))
        file.replace(render(revoked if one is key else one for one in keys))
    return revoked
