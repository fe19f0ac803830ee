"""What is asked of an API server, whoever carries the question, and what goes wrong with it.

`api` asks with a kubeconfig, `service_account` from inside a pod. Nothing here imports `kubernetes`, which the scaler's image lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from serving.cluster.objects.fields import Object
from serving.errors import EnvironmentFault

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


class Client(Protocol):
    """Both raise ApiError and Unreachable. `what` completes "asked for …"."""

    @property
    def namespace(self) -> str: ...

    def items(
        self, path: str, what: str, parse: Callable[[Object], Value], query: Mapping[str, str] | None = None
    ) -> tuple[Value, ...] | None:
        """All objects of a list; None where this user may not see them, nothing where the API is not served."""
        ...

    def one(self, path: str, what: str, parse: Callable[[Object], Value]) -> Value | None:
        """None where it may not be seen, or is not there."""
        ...


def parsed(it: object, parse: Callable[[Object], Value]) -> Value:
    """Raises TypeError for what is no object, and whatever `parse` raises for one of another shape (MALFORMED)."""
    if not isinstance(it, Mapping):
        raise TypeError(f"{type(it).__name__} in place of an object")
    return parse(it)


MALFORMED = (ValueError, TypeError, AttributeError, LookupError)  # of JSON of another shape, or of none
