"""Connects to the API server of a kubeconfig's context, as kubectl does; reads, creates, deletes, follows a log. JSON in and out.

Objects are read with `parse`, because the client's own models of 800 kinds differ between its versions and check what we do not read. The
exceptions of the generated client, its kubeconfig loader and urllib3 become ours here and nowhere else. Rule: one attempt per request, each
with a time limit, because somebody waits at a terminal; a caller that wants another attempt makes it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.config import load_kube_config
from kubernetes.config.kube_config import ENV_KUBECONFIG_PATH_SEPARATOR, KubeConfigMerger
from urllib3 import BaseHTTPResponse, Timeout, disable_warnings
from urllib3 import exceptions as http

from serving.cluster.client import (
    JSON,
    ApiError,
    Client,
    Query,
    Unreachable,
    WriteError,
    as_object,
    date_s,
    refuse_for_another,
)
from serving.cluster.objects.fields import Object, at, one_line, there_are
from serving.errors import EnvironmentFault, UserError

CONNECT_TIMEOUT_S = 5.0  # TLS handshake included; guess: one across an ocean takes under 1 s
READ_TIMEOUT_S = 10.0  # guess: a page of 500 nodes (some 5 MB) over a slow line
TIMEOUT_S = Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)
LOG_SILENCE_S = 15.0  # of a log, after which the state of the pod is looked at; a guess
# Names and labels without the object itself: what a secret holds never leaves the server.
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Right:
    """What a user may or may not do: create deployments of apps. `part` is a subresource: the log of pods."""

    group: str
    resource: str
    verb: str = "create"
    part: str = ""
    is_namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'/{self.part}' if self.part else ''}"


@dataclass(frozen=True, slots=True)
class Connection(Client):
    """One context of a kubeconfig."""

    context: str
    server: str
    namespace: str
    api: client.ApiClient

    def __str__(self) -> str:
        return f"context {self.context}, namespace {self.namespace}, {self.server}"

    def document(self, body: Mapping[str, object]) -> str:
        """What a verb prints as JSON, with where it was found."""
        where = {"context": self.context, "server": self.server, "namespace": self.namespace}
        return json.dumps({"version": 1, **where, **body}, indent=2)

    def get(
        self,
        path: str,
        what: str,
        query: Query | None = None,
        *,
        accept: str = JSON,
        timeout: Timeout = TIMEOUT_S,
        body: Object | None = None,
    ) -> Object:
        """The object at `path`. With a `body` it is a review, which is asked for by POST."""
        with self.guard(what):
            answer = self._send("POST" if body else "GET", path, query=query, body=body, accept=accept, timeout=timeout)
            refuse_for_another(self.server, answer.status, answer.data)
            if answer.status not in (200, 201):
                raise ApiException(status=answer.status, reason=answer.reason)
            return as_object(json.loads(answer.data))

    def may(self, right: Right) -> bool:
        """Whether this user may; raises ApiError for one who may not even ask, such as the anonymous user."""
        attributes = {"group": right.group, "resource": right.resource, "verb": right.verb}
        attributes |= {"namespace": self.namespace} if right.is_namespaced else {}
        attributes |= {"subresource": right.part} if right.part else {}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return bool(at(self.get(REVIEWS, "this user's own rights", body=review), "status", "allowed"))

    def create(self, path: str, what: str, body: Object) -> Object:
        """Raises WriteError too. `what` completes "refuses to create …"."""
        return self.write("POST", path, f"to create {what}", body)

    def delete(self, path: str, what: str) -> None:
        """The object and what it owns; one that is gone is no error. Raises WriteError too."""
        try:
            self.write("DELETE", path, f"to delete {what}", {"propagationPolicy": "Background"})
        except WriteError as error:
            if error.status != 404:
                raise

    def write(self, method: str, path: str, what: str, body: Object, kind: str = JSON) -> Object:
        with self.guard(what):
            answer = self._send(method, path, body=body, kind=kind)
            refuse_for_another(self.server, answer.status, answer.data)
            if answer.status >= 400:
                raise WriteError(what, answer.status, answer.data)
            return as_object(json.loads(answer.data))

    def now_s(self) -> float:
        with self.guard("its version"):
            return date_s(self._send("GET", "/version").headers.get("Date"))

    def log_lines(self, path: str, query: Query) -> Iterator[str]:
        """Lines as they come, until the log ends or is silent for LOG_SILENCE_S. Raises ApiError 400 where it has not begun."""
        # A log that is silent is no server that is away: a run takes longer than that, and says nothing meanwhile.
        with self.guard("the pod's log"), suppress(http.ReadTimeoutError):
            for line in self._lines(path, "the pod's log", query, LOG_SILENCE_S):
                yield line.decode("utf-8", "replace")

    def lines(self, path: str, what: str, query: Query) -> Generator[bytes]:
        with self.guard(what):
            yield from self._lines(path, what, query, READ_TIMEOUT_S)

    def _lines(self, path: str, what: str, query: Query, silence_s: float) -> Iterator[bytes]:
        timeout = Timeout(connect=CONNECT_TIMEOUT_S, read=silence_s)
        answer = self._send("GET", path, query=query, accept=f"{JSON}, */*", timeout=timeout, preload_content=False)
        try:
            if answer.status != 200:
                raise ApiError(self.server, answer.status, what)
            yield from _lines(answer)
        finally:
            answer.close()  # what is still to come of it would block the next question

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Object | None = None,
        kind: str = JSON,
        accept: str = JSON,
        timeout: Timeout = TIMEOUT_S,
        preload_content: bool = True,
    ) -> BaseHTTPResponse:
        headers = {"Accept": accept, "User-Agent": "tandem"}
        if token := self.api.configuration.auth_settings().get("BearerToken"):
            headers["Authorization"] = token["value"]
        if body is not None:
            headers["Content-Type"] = kind
        answer: BaseHTTPResponse = self.api.rest_client.pool_manager.request(
            method,
            self.server.rstrip("/") + path + (f"?{urlencode(query)}" if query else ""),
            headers=headers,
            body=None if body is None else json.dumps(body),
            timeout=timeout,
            retries=False,
            preload_content=preload_content,
        )
        return answer

    def _way_in(self, status: int) -> str:
        """Where this user's certificate has expired, that; the usual words otherwise."""
        file = self.api.configuration.cert_file
        with suppress(OSError, ValueError):
            end = certificate_end(Path(file).read_text()) if status == 401 and file else None
            if end is not None and end <= datetime.now(UTC):
                return f"the kubeconfig's client certificate has expired on {end:%Y-%m-%d %H:%M} UTC: sign in again, or renew it"
        return ""

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Around one request and its reading: raises ApiError or Unreachable for whatever the client or a parser raises."""
        try:
            with self.reading(what):
                yield
        except ApiException as error:
            if error.status:
                raise ApiError(self.server, error.status, what, self._way_in(error.status)) from None
            raise Unreachable(self.server, *_problem(http.SSLError(error.reason))) from None
        except http.HTTPError as error:
            raise Unreachable(self.server, *_problem(error)) from None


# In DER a certificate's validity is a SEQUENCE of two times: UTCTime of 13 characters, or GeneralizedTime of 15.
_TIME = rb"(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)"
_VALIDITY = re.compile(rb"\x30[\x1e\x20\x22]" + _TIME + _TIME)


def certificate_end(pem: str) -> datetime | None:
    """Until when the first certificate of a PEM file holds; None where that cannot be read. Raises ValueError for no PEM."""
    first = pem[pem.index(ssl.PEM_HEADER) : pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
    found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(first))
    if found is None:
        return None
    short, long = found[3], found[4]
    # UTCTime's years are 1950 to 2049 (RFC 5280), strptime's 1969 to 2068.
    text, form = (short, "%y%m%d%H%M%S") if short else (long, "%Y%m%d%H%M%S")
    return datetime.strptime(text.decode(), form).replace(tzinfo=UTC)


def _lines(answer: BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in answer.stream(2**16, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _problem(error: Exception) -> tuple[str, str]:
    """What happened and the way out, for an error of urllib3."""
    reason = error.reason if isinstance(error, http.MaxRetryError) and error.reason else error
    if isinstance(reason, http.SSLError):
        return (
            f"fails its TLS handshake ({first_line(reason)})",
            "check `server:` and `certificate-authority` in the kubeconfig",
        )
    if isinstance(reason, http.NameResolutionError):
        return "has a name that cannot be resolved", "check `server:` in the kubeconfig, and the VPN"
    if isinstance(reason, http.ProxyError):
        return f"is not reached through the proxy ({first_line(reason)})", "check HTTPS_PROXY and NO_PROXY"
    if isinstance(reason, http.NewConnectionError):  # before the timeout, whose subclass it is
        return f"cannot be reached ({first_line(reason)})", "is the cluster up, and the VPN?"
    if isinstance(reason, http.ConnectTimeoutError):
        return f"does not connect within {CONNECT_TIMEOUT_S:g} s", "is the cluster up, and the VPN?"
    if isinstance(reason, http.ReadTimeoutError):
        return (
            "accepts the connection but does not answer in time",
            "try again; is it overloaded, or is that port another's?",
        )
    return f"ends the connection ({first_line(reason)})", "is that port an API server's?"


def first_line(error: BaseException) -> str:
    """The message on one line and without urllib3's `HTTPSConnection(host=…): `."""
    text = one_line(error)
    return re.sub(r"^\S*HTTPS?Connection\w*\(.*?\): ", "", text) or type(error).__name__


NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123 label, as the API server demands


class UnusableKubeconfig(EnvironmentFault):
    """The kubeconfig, or the sign-in that it names, cannot be used: it is written by a provider's tool, so it counts as the environment."""


def connect(context: str | None, namespace: str | None) -> Connection:
    """The connection of a context, by default the current one; raises UserError for a wrong option, UnusableKubeconfig for a wrong file."""
    if namespace is not None and not NAMESPACE.fullmatch(namespace):
        raise UserError(f"'{namespace}' cannot be a namespace: lower-case letters, digits and '-', at most 63")
    files = _files()
    where = ENV_KUBECONFIG_PATH_SEPARATOR.join(files)
    contexts, current = _contexts(where)
    name = context or current
    if not contexts or not name or name not in contexts:
        raise _wrong_context(where, name, sorted(contexts), is_option=context is not None)
    configuration = _configuration(where, name)
    given = namespace or contexts[name].get("namespace") or "default"
    return Connection(name, configuration.host, given, client.ApiClient(configuration))


def _files() -> list[str]:
    """The kubeconfig files that exist, as kubectl finds them."""
    named = os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [str(Path(it).expanduser()) for it in named.split(ENV_KUBECONFIG_PATH_SEPARATOR) if it]
    found = [it for it in files if Path(it).exists()]
    if not found:
        raise UnusableKubeconfig(
            f"no kubeconfig: {' and '.join(files) or named} does not exist; set KUBECONFIG to the file that your cluster's "
            "provider writes"
        )
    return found


def _contexts(where: str) -> tuple[Mapping[str, Mapping[str, Any]], str | None]:
    """The contexts of the merged files by name, and the name of the current one."""
    try:
        merged = KubeConfigMerger(where).config.value
        contexts = {str(it["name"]): it["context"] or {} for it in (each.value for each in merged["contexts"])}
        for it in contexts.values():
            it.get("namespace")
        return contexts, merged.get("current-context")
    except Exception as error:  # the merger checks nothing: any type error may come out of a file of another shape
        raise UnusableKubeconfig(f"{where} is not a kubeconfig: {first_line(error)}") from None


def _wrong_context(
    where: str, name: str | None, contexts: list[str], *, is_option: bool
) -> UserError | UnusableKubeconfig:
    if not contexts:
        return UnusableKubeconfig(f"{where} has no contexts; let your cluster's provider write it again")
    there = there_are(contexts)
    if name:
        return (UserError if is_option else UnusableKubeconfig)(f"{where} has no context '{name}'; {there}")
    return UnusableKubeconfig(f"{where} names no current context; give --context: {there}")


def _configuration(where: str, context: str) -> client.Configuration:
    """Where the server is and how to sign in there; runs the sign-in program that the context may name."""
    configuration = client.Configuration(host="")  # its own default is a server on localhost
    configuration.retries = 0
    complaints = _Complaints()
    logging.getLogger().addHandler(complaints)
    try:
        load_kube_config(where, context, configuration)
    except Exception as error:  # also of the sign-in: OAuth, a cloud's library, a program
        raise UnusableKubeconfig(f"context '{context}' of {where} cannot be used: {first_line(error)}") from None
    finally:
        logging.getLogger().removeHandler(complaints)
    if complaints.lines:
        raise UnusableKubeconfig(f"the sign-in of context '{context}' in {where} failed: {complaints.lines[0]}")
    if not _is_address(configuration.host):
        raise UnusableKubeconfig(
            f"context '{context}' of {where} names no server: '{configuration.host}' is not https://HOST:PORT"
        )
    if not configuration.verify_ssl:
        disable_warnings(http.InsecureRequestWarning)  # the kubeconfig says so, in as many words
    return configuration


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an open bracket, a port above 65535
        return False


class _Complaints(logging.Handler):
    """Keeps what the loader only logs: a sign-in program that failed, after which it would go on as nobody."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))
