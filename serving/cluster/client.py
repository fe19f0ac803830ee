"""Reads objects and lists from an API server, whoever carries the question, and says what goes wrong.

`api` asks with a kubeconfig, `service_account` from inside a pod. Nothing here imports `kubernetes`, which the scaler's image lacks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from serving.cluster.objects.fields import Object, at
from serving.errors import EnvironmentFault

JSON = "application/json"
PAGE_SIZE = "500"  # kubectl's own chunk
Query = Mapping[str, str]
Value = TypeVar("Value")


class Unreachable(EnvironmentFault):
    """No answer that could be used. `server` is the API server's URL."""

    def __init__(self, server: str, problem: str, way_out: str) -> None:
        super().__init__(f"the API server {server} {problem}; {way_out}")
        self.server = server


class UnknownAnswer(Unreachable):
    """An answer of another shape than Kubernetes gives."""

    def __init__(self, server: str, what: str) -> None:
        problem = f"does not answer as Kubernetes when asked for {what}"
        super().__init__(server, problem, "check `server:` in the kubeconfig")


class ApiError(EnvironmentFault):
    """The server answered with an error; `status` is HTTP's."""

    def __init__(self, server: str, status: int, what: str, way_out: str = "") -> None:
        way_out = way_out or _WAYS_OUT.get(status, "try again, and if it stays so read the API server's log")
        super().__init__(f"the API server {server} answers {status} when asked for {what}; {way_out}")
        self.status = status


_WAYS_OUT = {
    401: "sign in again: the kubeconfig's token or certificate is not, or no longer, accepted",
    403: "this user may not ask that: sign in as another, or have an administrator grant it",
    404: "is this a Kubernetes API server? Check `server:` in the kubeconfig",
}


class Client(ABC):
    """A subclass has `namespace`, `server` and `get`. Everything raises ApiError and Unreachable; `what` completes "asked for …"."""

    __slots__ = ()
    namespace: str
    server: str

    @abstractmethod
    def get(self, path: str, what: str, query: Query | None = None, *, accept: str = JSON) -> Object:
        """The object at `path`."""

    def items(
        self, path: str, what: str, parse: Callable[[Object], Value], query: Query | None = None, accept: str = JSON
    ) -> tuple[Value, ...] | None:
        """All objects of a list, in pages; None where this user may not see them, nothing where the API is not served."""
        found: list[Value] = []
        pages: dict[str, str] = {"limit": PAGE_SIZE}
        try:
            while True:
                page = self.get(path, what, {**(query or {}), **pages}, accept=accept)
                with self.reading(what):
                    found.extend(parse(as_object(it)) for it in page["items"] or ())
                    pages["continue"] = at(page, "metadata", "continue", default="")
                if not pages["continue"]:
                    return tuple(found)
        except ApiError as error:
            if error.status in (403, 404):
                return None if error.status == 403 else ()
            raise

    def find(
        self, path: str, what: str, parse: Callable[[Object], Value], none_for: tuple[int, ...] = (404,)
    ) -> Value | None:
        """None where there is no such object; `none_for`: the statuses that say so."""
        try:
            found = self.get(path, what)
        except ApiError as error:
            if error.status in none_for:
                return None
            raise
        with self.reading(what):
            return parse(found)

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Around what reads an answer: raises UnknownAnswer for JSON of another shape, or for none."""
        try:
            yield
        except (ValueError, TypeError, AttributeError, LookupError):
            raise UnknownAnswer(self.server, what) from None


def as_object(it: object) -> Object:
    """Raises TypeError."""
    if not isinstance(it, Mapping):
        raise TypeError(f"{type(it).__name__} in place of an object")
    return it
