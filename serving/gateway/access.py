"""Turns the key in a request's headers into a `Caller`, and says what a caller may do.

Which endpoint needs which scope is in `endpoints.py`, and for gRPC in `grpc/service.py`. Without keys everybody may do everything, which
the gateway allows only on loopback or with --insecure-no-auth (`serve.py`). Rules: handlers see the `Caller` and never a key; a refusal
reveals neither which models there are nor which keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from itertools import islice
from math import inf
from sys import intern
from typing import NamedTuple

from serving import errors
from serving.documents.nearest import closest
from serving.keys.key import ADMIN, ID_END, INFER, LENGTH, METRICS, PREFIX, SCOPES, Key
from serving.scheduling.admission import HIGHEST
from serving.scheduling.routing import Fleet

__all__ = ["ADMIN", "ANYBODY", "INFER", "METRICS", "SCOPES", "Access", "Caller", "is_allowed", "meant", "require_name"]

ASK = "ask whoever runs this gateway for one"
NO_KEY = f"this gateway wants an API key, as 'Authorization: Bearer tdm_…' or 'X-API-Key: tdm_…'; {ASK}"
NO_BEARER = "Authorization must be 'Bearer tdm_…'"
NO_FORM = "this is not an API key of Tandem: these are tdm_, an id, _ and 64 hexadecimal digits"
NOT_VALID = f"this API key is not valid; {ASK}"
HAS_EXPIRED = f"this API key has expired; {ASK}"
IS_REVOKED = f"this API key was revoked; {ASK}"
NOT_THIS_MODEL = "this key may not ask '{}'"
TWO_KEYS = "Authorization and X-API-Key hold two different keys; send one of them"

START = PREFIX.encode()
BEARER = b"Bearer "
MOST_COMPARED = 16  # models, with an unknown name: a guess that bounds the CPU of a 404
MAX_PROVEN = 4096  # of some 200 bytes; a guess, not measured
LONGEST_COMPARED = 64  # characters of such a name; likewise


@dataclass(frozen=True, slots=True)
class Caller:
    """`models` are public names, None: all. `highest_priority`: the best `Tandem-Priority` that counts; a better one is lowered to it.

    `tenant`: whose share of the pools its requests take; empty without keys.
    """

    name: str
    scopes: frozenset[str]
    models: frozenset[str] | None = None
    highest_priority: int = HIGHEST
    tenant: str = ""

    def require(self, scope: str) -> None:
        """Raises Forbidden."""
        if scope not in self.scopes:
            raise errors.Forbidden(f"this key has no scope '{scope}'; ask whoever gave it out for one that has")

    def may_ask(self, model: str) -> bool:
        """`model`: a public name, also for the name of one of its variants."""
        return self.models is None or model in self.models

    def require_model(self, model: str, requested: str) -> None:
        """Raises Forbidden. `requested` is the name that the client used."""
        if not self.may_ask(model):
            raise errors.Forbidden(NOT_THIS_MODEL.format(requested))


ANYBODY = Caller("anybody", frozenset(SCOPES))


def require_name(caller: Caller, name: str, fleet: Fleet) -> None:
    """`Caller.require_model` for a name that may not exist: an unknown model is refused like one that others may ask. Raises Forbidden.

    Until the gateway has seen any model only public names can be judged, so the check is left to whoever looks the name up.
    """
    if fleet.can_deny and not is_allowed(caller, name, fleet):
        raise errors.Forbidden(NOT_THIS_MODEL.format(name))


def is_allowed(caller: Caller, name: str, fleet: Fleet) -> bool:
    """Whether the caller may ask a public name, or the name of a variant."""
    return caller.models is None or name in caller.models or public_name(fleet, name) in caller.models


def meant(caller: Caller, name: str, fleet: Fleet) -> str:
    """`; did you mean 'x'?` where a model that the caller may ask is near, else nothing.

    A few that are alike at first sight are compared, so that whoever asks for unknown names among 500 models costs little.
    """
    first, length = name[:1].lower(), len(name)
    near = (
        v.model
        for pool in fleet.pools
        for v in pool.variants
        if abs(len(v.model) - length) <= 2 and v.model[:1].lower() == first and caller.may_ask(v.model)
    )
    found = closest(name, islice(dict.fromkeys(near), MOST_COMPARED)) if length <= LONGEST_COMPARED else None
    return f"; did you mean '{found}'?" if found else ""


def public_name(fleet: Fleet, name: str) -> str | None:
    """The model that a name belongs to, which may be a variant's; None for one that was never seen."""
    return next((names[0] for pool in fleet.pools for names in pool.names if name in names), None)


class _Known(NamedTuple):
    digest: bytes
    caller: Caller
    expires_s: float  # seconds of 1970
    is_revoked: bool


Table = Mapping[bytes, _Known]
NOBODY = _Known(bytes(32), Caller("", frozenset()), inf, False)  # no text that anybody can find has this digest


def table_of(keys: Iterable[Key]) -> Table:
    return {
        key.id.encode(): _Known(
            key.digest,
            Caller(key.name, key.scopes, key.models, key.highest_priority, intern(key.owner)),
            inf if key.expires is None else key.expires.timestamp(),
            key.revoked is not None,
        )
        for key in keys
    }


class Access:
    """`table` None: without keys, so anybody may everything. It is replaced as a whole when the keys change."""

    __slots__ = ("_now", "_proven", "_proven_by", "table")

    def __init__(self, table: Table | None = None, now: Callable[[], float] = time.time) -> None:
        self.table = table
        self._now = now
        self._proven: dict[bytes, _Known] = {}  # of `Authorization`, whose key was compared
        self._proven_by: Table | None = None  # the table that has them

    def caller(self, authorization: bytes | None, x_api_key: bytes | None) -> Caller:
        """The values of the headers `authorization` and `x-api-key`, None where absent. Raises Unauthenticated, or BadRequest for two keys.

        Authorization that holds no key of ours is somebody else's, such as a proxy's, where X-API-Key is sent as well.

        One look-up, one SHA-256 and one comparison whose time does not depend on where texts differ, for an id that nobody has too. Good
        ones are not compared again until the keys change.
        """
        table = self.table
        if table is None:
            return ANYBODY
        if self._proven_by is not table:
            self._proven, self._proven_by = {}, table
        known = None if authorization is None or x_api_key is not None else self._proven.get(authorization)
        if known is None:
            known = self._prove(table, authorization, x_api_key)
        if known.is_revoked:
            raise errors.Unauthenticated(IS_REVOKED)
        if known.expires_s <= self._now():
            raise errors.Unauthenticated(HAS_EXPIRED)
        return known.caller

    def _prove(self, table: Table, authorization: bytes | None, x_api_key: bytes | None) -> _Known:
        text = _sent(authorization, x_api_key)
        if not _has_form(text):
            raise errors.Unauthenticated(NO_FORM)
        known = table.get(text[4:ID_END], NOBODY)
        if not compare_digest(sha256(text).digest(), known.digest):
            raise errors.Unauthenticated(NOT_VALID)
        # None with more spaces than it needs, which would fill the memory.
        if authorization is not None and x_api_key is None and len(authorization) == LENGTH + len(BEARER):
            if len(self._proven) >= MAX_PROVEN:
                self._proven.clear()
            self._proven[authorization] = known
        return known

    def caller_of(self, headers: dict[bytes, bytes]) -> Caller:
        """By a request's headers, names in lower case, none of ours twice. Raises as `caller`."""
        return self.caller(headers.get(b"authorization"), headers.get(b"x-api-key"))


def _sent(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    """The text of the key."""
    if authorization is None:
        if x_api_key is None:
            raise errors.Unauthenticated(NO_KEY)
        return x_api_key
    if x_api_key is None and authorization[:7] == BEARER and len(authorization) == LENGTH + 7:
        return authorization[7:]  # as nearly all do
    scheme, _, text = authorization.partition(b" ")
    is_bearer, text = scheme.lower() == b"bearer", text.strip(b" ")
    if x_api_key is not None:
        if is_bearer and _has_form(text) and x_api_key != text:
            raise errors.BadRequest(TWO_KEYS)
        return x_api_key
    if not is_bearer:
        raise errors.Unauthenticated(NO_BEARER)
    return text


def _has_form(text: bytes) -> bool:
    return len(text) == LENGTH and text[:4] == START
