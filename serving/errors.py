"""All errors: who has to act on each, its HTTP status and its exit code. Statuses of gRPC are in `gateway/grpc/status.py`.

Every error carries its facts as fields and builds its message from them. Two tables turn a class into what the outside sees:
`HTTP` (status and the value of the `Tandem-Error` header) and `exit_code`. Foreign exceptions become ours in one place per room.
"""

from __future__ import annotations

import math
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class TandemError(Exception):
    """The root. Its message is one line that says what happened and the way out."""


# -- the user at a command line ---------------------------------------------------------------------------------------


class UserError(TandemError):
    """The user can mend it: a wrong option, a taken port, a broken repository. Exit code 2."""


class EnvironmentFault(TandemError):
    """The machine or a program that Tandem starts is at fault. Exit code 3."""


class GateRefused(TandemError):
    """A gate or a verdict failed. Exit code 1."""


def exit_code(error: TandemError) -> int:
    """0 good, 1 a verdict or gate failed, 2 the user's to fix, 3 the environment's."""
    if isinstance(error, GateRefused):
        return 1
    if isinstance(error, EnvironmentFault):
        return 3
    return 2


# -- a client of the gateway ------------------------------------------------------------------------------------------


class RequestError(TandemError):
    """A request that gets no inference result. `retry_after_s` is None where trying again would not help.

    `receipt` are the response headers that say what worked on it, where something did. `param` is the field of the body that is wrong,
    where a protocol tells it apart from the message. `model` and `version` are what was asked for, where the error is about them.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        param: str | None = None,
        model: str = "",
        version: str = "",
    ) -> None:
        super().__init__(message)
        self.model = model
        self.version = version
        self.retry_after_s = retry_after_s
        self.param = param
        self.receipt: list[tuple[bytes, bytes]] = []


class BadRequest(RequestError):
    pass


class TooSlow(BadRequest):
    """The client's sending, not the model."""


class ExpectationFailed(BadRequest):
    pass


class Conflict(BadRequest):
    """What is asked for does not go with what is in force now."""


class TooLarge(RequestError):
    pass


class TargetTooLong(TooLarge):
    pass


class HeadTooLarge(TooLarge):
    pass


class Unauthenticated(RequestError):
    pass


class Forbidden(RequestError):
    pass


class LoadRefused(Forbidden):
    """What a request to load would change is not the network's to change."""


class NotFound(RequestError):
    pass


class NoSuchPath(NotFound):
    pass


class NoSuchModel(NotFound):
    pass


class NoSuchVersion(NotFound):
    pass


class NothingToLoad(NoSuchModel):
    """No server that answers has it in its repository."""


class MethodNotAllowed(BadRequest):
    pass


class RateLimited(RequestError):
    pass


class QuotaExceeded(RateLimited):
    """Of the caller's tenant; without a time where it never passes."""


class Overloaded(RequestError):
    """It always says when to come again, or is a NeverInTime."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0, model: str = "", version: str = "") -> None:
        super().__init__(message, retry_after_s=retry_after_s, model=model, version=version)


class NeverInTime(Overloaded):
    """However little there is to do: coming again with the same deadline does not help, which clients are told."""

    def __init__(self, message: str, *, model: str = "", version: str = "") -> None:
        super().__init__(message, model=model, version=version)
        self.retry_after_s = None


class NotReady(RequestError):
    pass


class UpstreamLost(RequestError):
    pass


class DeadlineExpired(RequestError):
    pass


class Unsupported(RequestError):
    pass


class VersionNotSupported(Unsupported):
    """Of HTTP."""


class Internal(RequestError):
    pass


def without_frames(error: E) -> E:
    """The same error, which forgets where it came from.

    Frames hold what they worked on, whole bodies too. Where one of them knows the error, or anything that the error is kept in, both
    would stay until garbage is looked for. So whoever has caught an error for good calls this.
    """
    cause: BaseException | None = error
    while cause is not None:
        following = cause.__cause__ or cause.__context__
        cause.__traceback__ = cause.__cause__ = cause.__context__ = None
        cause = following
    return error


# class -> (HTTP status, value of Tandem-Error)
HTTP: dict[type[RequestError], tuple[int, str]] = {
    BadRequest: (400, "bad_request"),
    MethodNotAllowed: (405, "bad_request"),
    TooSlow: (408, "bad_request"),
    Conflict: (409, "bad_request"),
    ExpectationFailed: (417, "bad_request"),
    TooLarge: (413, "too_large"),
    TargetTooLong: (414, "too_large"),
    HeadTooLarge: (431, "too_large"),
    Unauthenticated: (401, "unauthenticated"),
    Forbidden: (403, "forbidden"),
    LoadRefused: (403, "forbidden"),
    NotFound: (404, "not_found"),
    NoSuchPath: (404, "not_found"),
    NoSuchModel: (404, "not_found"),
    NoSuchVersion: (404, "not_found"),
    NothingToLoad: (404, "not_found"),
    RateLimited: (429, "rate_limited"),
    QuotaExceeded: (429, "quota_exceeded"),
    Overloaded: (503, "overloaded"),
    NeverInTime: (503, "overloaded"),
    NotReady: (503, "not_ready"),
    UpstreamLost: (503, "upstream_lost"),
    DeadlineExpired: (504, "deadline_expired"),
    Unsupported: (501, "unsupported"),
    VersionNotSupported: (505, "unsupported"),
    Internal: (500, "internal"),
}


def retry_after(wait_s: float) -> tuple[int, int]:
    """`Retry-After` in whole seconds, rounded up, and `Retry-After-Ms`, the exact value in milliseconds; at least 1 of each."""
    return max(1, math.ceil(wait_s)), max(1, math.ceil(wait_s * 1000))
