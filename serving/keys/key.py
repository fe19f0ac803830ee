"""What is an API key, and what does one allow?

`tdm_<id>_<secret>`: 12 and 64 lower-case hexadecimal digits, 6 and 32 random bytes. Hexadecimal, so that a double click selects all
of it and no secret begins with a dash. The id is no secret: it finds the key, and `tandem keys revoke` takes it. Rule: a text that may
be a key is put into no message.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from serving.errors import UserError
from serving.scheduling.admission import DEFAULT

INFER = "infer"
ADMIN = "admin"
METRICS = "metrics"
SCOPES = (INFER, ADMIN, METRICS)

PREFIX = "tdm_"
ID_BYTES = 6  # 2^48 ids: of 100,000 keys two have the same with one chance in 56,000, and `changes.add` looks
SECRET_BYTES = 32  # as many as SHA-256 has: nobody finds it by trying, so a slow hash would gain nothing
ID = re.compile(r"[0-9a-f]{12}")
DIGEST = re.compile(r"[0-9a-f]{64}")
TEXT = re.compile(r"tdm_([0-9a-f]{12})_[0-9a-f]{64}")
ID_END = len(PREFIX) + 2 * ID_BYTES  # where the id ends in the text
LENGTH = ID_END + 1 + 2 * SECRET_BYTES

ROLLOUT = "(rollout)"  # stands in the place of a tenant for what copies of requests take
VALID, EXPIRED, REVOKED = "valid", "expired", "revoked"


@dataclass(frozen=True, slots=True)
class Key:
    """One key, without its secret.

    `digest`: SHA-256 of the whole text. `models` are public names, None: all. `highest_priority`: the best `Tandem-Priority` that counts.
    Times have a zone. `tenant`: whose share, quota and bill its requests count to, None: one of the key's own name.
    """

    id: str
    name: str
    digest: bytes
    scopes: frozenset[str]
    created: datetime
    models: frozenset[str] | None = None
    highest_priority: int = DEFAULT
    expires: datetime | None = None
    revoked: datetime | None = None
    tenant: str | None = None

    @property
    def owner(self) -> str:
        """Its tenant."""
        return self.name if self.tenant is None else self.tenant

    def state(self, now: datetime) -> str:
        """It has expired at the very moment of `expires`, no later."""
        if self.revoked is not None:
            return REVOKED
        return EXPIRED if self.expires is not None and self.expires <= now else VALID


def make_text() -> str:
    """A new key as its user gets it."""
    return f"{PREFIX}{secrets.token_hex(ID_BYTES)}_{secrets.token_hex(SECRET_BYTES)}"


def id_of(text: str) -> str | None:
    """The id in the text of a key; None where it is none."""
    match = TEXT.fullmatch(text)
    return match[1] if match else None


def hidden(message: str) -> str:
    """The message, without secrets of keys that someone has put where they do not belong, or their beginnings."""
    return re.sub(r"(tdm_[0-9a-f]{12}_)[0-9a-f]+", r"\1…", message)


def digest_of(text: str) -> bytes:
    return sha256(text.encode()).digest()


OWN_KEY = "TANDEM_OWN_KEY"


def make_own() -> tuple[str, str]:
    """A key for the program that starts a gateway (`tandem up`), valid while that gateway runs: its text, and what the gateway's
    environment gets, which is id and digest and never the key."""
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
