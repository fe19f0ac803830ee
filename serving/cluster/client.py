"""Reads objects and lists from an API server, and says what goes wrong. `ServiceAccount` does it from inside a pod.

`api` does it with a kubeconfig. A pod has a service account's token and Python's standard library: the package `kubernetes` would add 74 MB
to the gateway's image, for kubeconfigs that no pod has. Rule: nothing here imports it, and the token is read anew for each request, because
it is renewed while a process runs.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from serving.cluster.objects.fields import Object, at, one_line
from serving.errors import EnvironmentFault

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML, too
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"  # lists of objects are merged by their key
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


class AnotherRefuses(Unreachable):
    """A 403 that is none of Kubernetes': an API server says who may not do what, as an object of its kind Status."""

    def __init__(self, server: str) -> None:
        problem = "is not reached: something before it answers 403 in its place"
        super().__init__(
            server, problem, "a proxy or a gateway? Check HTTPS_PROXY and NO_PROXY, and `server:` in the kubeconfig"
        )


def refuse_for_another(server: str, status: int, body: bytes) -> None:
    """Raises AnotherRefuses."""
    if status != 403:
        return
    try:
        is_status = json.loads(body)["kind"] == "Status"
    except (ValueError, TypeError, LookupError):
        is_status = False
    if not is_status:
        raise AnotherRefuses(server)


class ApiError(EnvironmentFault):
    """The server answered with an error; `status` is HTTP's."""

    def __init__(self, server: str, status: int, what: str, way_out: str = "") -> None:
        way_out = way_out or _WAYS_OUT.get(status, "try again, and if it stays so read the API server's log")
        super().__init__(f"the API server {server} answers {status} when asked for {what}; {way_out}")
        self.status = status


class WriteError(EnvironmentFault):
    """The server refused to make, change or take away an object; the text holds its words. `status` is HTTP's."""

    def __init__(self, what: str, status: int, body: bytes) -> None:
        try:
            words = one_line(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            words = f"status {status}"
        super().__init__(f"the API server refuses {what}: {words}")
        self.status = status


_WAYS_OUT = {
    401: "sign in again: the kubeconfig's token or certificate is not, or no longer, accepted",
    403: "this user may not ask that: sign in as another, or have an administrator grant it",
    404: "is this a Kubernetes API server? Check `server:` in the kubeconfig",
}


class Client(ABC):
    """A subclass has `namespace`, `server`, `get` and `write`. All raise ApiError and Unreachable; `what` completes "asked for …"."""

    __slots__ = ()
    namespace: str
    server: str

    @abstractmethod
    def get(self, path: str, what: str, query: Query | None = None, *, accept: str = JSON) -> Object:
        """The object at `path`."""

    @abstractmethod
    def write(self, method: str, path: str, what: str, body: Object, kind: str = JSON) -> Object:
        """The object as it is then. `kind`: of a patch. `what` completes "refuses …": to scale a deployment. Raises WriteError too."""

    @abstractmethod
    def lines(self, path: str, what: str, query: Query) -> Generator[bytes]:
        """Of an answer that goes on, as they come, until the server ends it. To be closed where it is left before."""

    def now_s(self) -> float:
        """Seconds since 1970 by the server's clock, which all who ask it share."""
        return time.time()

    def watch(self, path: str, what: str, query: Query) -> Iterator[tuple[str, Object]]:
        """Kind of event (ADDED, MODIFIED, DELETED, ERROR) and object, until the server ends it (`timeoutSeconds`)."""
        with closing(self.lines(path, what, {**query, "watch": "true"})) as lines:
            for line in lines:
                with self.reading(what):
                    event = as_object(json.loads(line))
                    found = str(event["type"]), as_object(event["object"])
                yield found

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


def date_s(header: str | None) -> float:
    """Of an answer's `Date`, seconds since 1970; now by this machine's clock where there is none."""
    try:
        return parsedate_to_datetime(header or "").timestamp()
    except ValueError:
        return time.time()


def as_object(it: object) -> Object:
    """Raises TypeError."""
    if not isinstance(it, Mapping):
        raise TypeError(f"{type(it).__name__} in place of an object")
    return it


ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where every pod finds its token
TIMEOUT_S = 10.0  # as `tandem cluster` waits for an answer


class UnusableAccount(EnvironmentFault):
    """This pod's service account, or the address of its API server, is not there."""


@dataclass(frozen=True, slots=True)
class ServiceAccount(Client):
    """Nothing is kept open between two questions: they are minutes apart, or two seconds for a short while."""

    host: str
    port: int
    account: Path
    namespace: str

    @classmethod
    def of_this_pod(
        cls, namespace: str | None, account: Path, environment: Mapping[str, str] = os.environ
    ) -> ServiceAccount:
        """Raises UnusableAccount."""
        try:
            host, port = environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])
            return cls(host, port, account, namespace or (account / "namespace").read_text().strip())
        except (KeyError, ValueError, OSError) as error:
            problem = f"this pod's service account cannot be used ({type(error).__name__}: {error})"
            raise UnusableAccount(problem) from None

    @property
    def server(self) -> str:  # type: ignore[override]
        return self.host

    def get(self, path: str, what: str, query: Query | None = None, *, accept: str = JSON) -> Object:
        status, body = self._ask("GET", path + (f"?{urlencode(query)}" if query else ""), f"for {what}", accept)
        refuse_for_another(self.host, status, body)
        if status != 200:
            way_out = "this pod's token is not, or no longer, accepted" if status == 401 else ""
            raise ApiError(self.host, status, what, way_out)
        with self.reading(what):
            return as_object(json.loads(body))

    def write(self, method: str, path: str, what: str, body: Object, kind: str = JSON) -> Object:
        status, answer = self._ask(method, path, what, JSON, json.dumps(body), kind)
        refuse_for_another(self.host, status, answer)
        if status >= 400:
            raise WriteError(what, status, answer)
        with self.reading(what):
            return as_object(json.loads(answer))

    def now_s(self) -> float:
        with self._answer("GET", "/version", "for its version", JSON) as answer:
            return date_s(answer.headers.get("Date"))

    def lines(self, path: str, what: str, query: Query) -> Generator[bytes]:
        with self._answer("GET", f"{path}?{urlencode(query)}", f"for {what}", JSON) as answer:
            if answer.status != 200:
                refuse_for_another(self.host, answer.status, answer.read())
                raise ApiError(self.host, answer.status, what)
            yield from answer

    def _ask(
        self, method: str, path: str, what: str, accept: str, body: str | None = None, kind: str = JSON
    ) -> tuple[int, bytes]:
        """Status and body."""
        with self._answer(method, path, what, accept, body, kind) as answer:
            return answer.status, answer.read()

    @contextmanager
    def _answer(
        self, method: str, path: str, what: str, accept: str, body: str | None = None, kind: str = JSON
    ) -> Iterator[HTTPResponse]:
        """To be read in its block."""
        try:
            connection = self._connection()
            try:
                token = (self.account / "token").read_text().strip()
                headers = {"Accept": accept, "Authorization": f"Bearer {token}", "User-Agent": "tandem"}
                connection.request(method, path, body, headers | ({} if body is None else {"Content-Type": kind}))
                yield connection.getresponse()
            finally:
                connection.close()
        except (OSError, HTTPException) as error:  # ssl's errors are OSErrors
            problem = f"cannot be asked {what} ({str(error) or type(error).__name__})"
            raise Unreachable(self.host, problem, "is it up, and may this pod reach it?") from None

    def _connection(self) -> HTTPConnection:
        trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        return HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=trusted)
