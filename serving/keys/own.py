"""The key of a program that starts a gateway, for itself alone and for as long as it runs: `tandem up` asks its own gateway's status.

The gateway gets id and digest by an environment variable, never the key. Nothing of it is written to a file.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from serving.errors import UserError
from serving.keys.key import ADMIN, ID, INFER, Key, digest_of, id_of, make_text
from serving.keys.key_file import DIGEST

OWN_KEY = "TANDEM_OWN_KEY"


def make_own() -> tuple[str, str]:
    """The text of a new key, and what the gateway's environment gets."""
    text = make_text()
    return text, f"{id_of(text)}:{digest_of(text).hex()}"


def own_key() -> Key | None:
    """Out of the environment. Raises UserError where it is not what `make_own` made."""
    value = os.environ.get(OWN_KEY)
    if value is None:
        return None
    identity, _, digest = value.partition(":")
    if ID.fullmatch(identity) is None or DIGEST.fullmatch(digest) is None:
        raise UserError(f"{OWN_KEY} is not what `tandem up` sets; take it out of the environment")
    scopes = frozenset({INFER, ADMIN})
    return Key(identity, "tandem up", bytes.fromhex(digest), scopes, datetime.now(UTC))
