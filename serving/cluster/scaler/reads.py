"""What the scaler needs of whoever asks an API server for it: `service_account`, or `kubeconfig` outside a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from serving.errors import EnvironmentFault

Object = Mapping[str, Any]  # the plain JSON that the server sends


class NotForUs(EnvironmentFault):
    """Asking again will not help."""


class Trouble(EnvironmentFault):
    """No answer that could be used, this time."""


class Reads(Protocol):
    """Both raise TandemError; NotForUs where the account is not, or no longer, known."""

    @property
    def namespace(self) -> str: ...

    def items(self, path: str, what: str, query: Mapping[str, str] | None = None) -> tuple[Object, ...] | None:
        """All objects of a list; None where this account may not see them, nothing where the API is not served."""
        ...

    def one(self, path: str, what: str) -> Object | None:
        """None where it may not be seen, or is not there."""
        ...
