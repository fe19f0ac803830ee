"""Who may ask what: keys out of a request's headers become a `Caller`, and a caller says what it may.

Which path needs which scope is decided where the path is served. Without keys everybody may everything, which the gateway only allows
on a loopback bind or when told so (`serve.py`). Rule: what a refused caller is told says nothing of what there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving import errors
from serving.scheduling.admission import HIGHEST

INFER = "infer"
ADMIN = "admin"
METRICS = "metrics"
SCOPES = (INFER, ADMIN, METRICS)


@dataclass(frozen=True, slots=True)
class Caller:
    """`models` are public names, None: all. `highest_priority`: the best `Tandem-Priority` that counts; a better one is lowered to it."""

    name: str
    scopes: frozenset[str]
    models: frozenset[str] | None = None
    highest_priority: int = HIGHEST

    def require(self, scope: str) -> None:
        """Raises Forbidden."""
        if scope not in self.scopes:
            raise errors.Forbidden(f"this key has no scope '{scope}'; ask whoever gave it out for one that has")

    def may_ask(self, model: str) -> bool:
        """`model`: a public name, also for the name of one of its variants."""
        return self.models is None or model in self.models

    def require_model(self, model: str, asked: str) -> None:
        """Raises Forbidden. `asked` is the name that the client used."""
        if not self.may_ask(model):
            raise errors.Forbidden(f"this key may not ask '{asked}'")


ANYBODY = Caller("anybody", frozenset(SCOPES))


class Access:
    """Without keys: anybody, everything."""

    def caller(self, authorization: bytes | None, x_api_key: bytes | None) -> Caller:
        """The values of the headers `authorization` and `x-api-key`, None where absent. Raises Unauthenticated."""
        del authorization, x_api_key
        return ANYBODY

    def caller_of(self, headers: dict[bytes, bytes]) -> Caller:
        """By a request's headers, names in lower case. Raises Unauthenticated."""
        return self.caller(headers.get(b"authorization"), headers.get(b"x-api-key"))
