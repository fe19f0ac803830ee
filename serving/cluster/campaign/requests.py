"""What `asking` does not: create, delete, and read a log as it grows. The server's own words are kept, because here it refuses for reasons.

Rule: one try and an end to each, as in `asking`; who wants another try is `following`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, Timeout
from urllib3 import exceptions as http

from serving.cluster.api import TIMEOUT_S, Object, ask
from serving.cluster.connection import CONNECT_TIMEOUT_S, Connection, Refused
from serving.cluster.fields import at, one_line
from serving.errors import EnvironmentFault

SILENCE_S = 15.0  # of a log, after which the state of the pod is looked at; a guess
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
Right = tuple[str, str, str, str]  # (group, resource, verb, part)
TO_MAKE: tuple[Right, ...] = (("", "configmaps", "create", ""), ("batch", "jobs", "create", ""))
TO_FOLLOW: tuple[Right, ...] = (("batch", "jobs", "get", ""), ("", "pods", "list", ""), ("", "pods", "get", "log"))
TO_DELETE: Right = ("batch", "jobs", "delete", "")


class NotTaken(EnvironmentFault):
    """The server refused to make or take away an object; the text holds its words. `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def send(connection: Connection, method: str, path: str, what: str, body: Object) -> Object:
    """Raises NotTaken, Unreachable. `what` completes "refuses …"."""
    with connection.asking(what):
        answer = _request(connection, method, path, TIMEOUT_S, body=json.dumps(body), preload_content=True)
        if answer.status >= 400:
            raise NotTaken(f"the API server refuses {what}: {_said(answer)}", answer.status)
        found = json.loads(answer.data)
        if not isinstance(found, dict):
            raise TypeError(path)
        return found


def missing_rights(connection: Connection, needed: Iterable[Right]) -> list[str]:
    """What of it this user may not, as kubectl would say it. Raises Refused, Unreachable."""
    missing = []
    for group, resource, verb, part in needed:
        attributes = {"group": group, "resource": resource, "verb": verb, "namespace": connection.namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes | ({"subresource": part} if part else {})},
        }
        answer = ask(connection, REVIEWS, "this user's own rights", body=review)
        if not at(answer, "status", "allowed"):
            missing.append(f"{verb} {resource}{f'/{part}' if part else ''}")
    return missing


def log_lines(connection: Connection, path: str, query: Mapping[str, Any]) -> Iterator[str]:
    """Lines as they come, until the log ends or says nothing for SILENCE_S. Raises Refused (400: it has not begun), Unreachable."""
    timeout = Timeout(connect=CONNECT_TIMEOUT_S, read=SILENCE_S)
    # A log that is silent is no server that is away: a run takes longer than that, and says nothing meanwhile.
    with connection.asking("the pod's log"), suppress(http.ReadTimeoutError):
        answer = _request(connection, "GET", f"{path}?{urlencode(query)}", timeout, preload_content=False)
        try:
            if answer.status != 200:
                raise Refused(connection.server, answer.status, "the pod's log")
            yield from _lines(answer)
        finally:
            answer.close()  # what is still to come of it would block the next question


def _lines(answer: BaseHTTPResponse) -> Iterator[str]:
    rest = b""
    for chunk in answer.stream(2**16, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _request(
    connection: Connection,
    method: str,
    path: str,
    timeout: Timeout,
    *,
    body: str | None = None,
    preload_content: bool,
) -> BaseHTTPResponse:
    api = connection.api
    headers = {"Accept": "application/json, */*", "User-Agent": "tandem"}
    if token := api.configuration.auth_settings().get("BearerToken"):
        headers["Authorization"] = token["value"]
    if body is not None:
        headers["Content-Type"] = "application/json"
    answer: BaseHTTPResponse = api.rest_client.pool_manager.request(
        method,
        connection.server.rstrip("/") + path,
        headers=headers,
        body=body,
        timeout=timeout,
        retries=False,
        preload_content=preload_content,
    )
    return answer


def _said(answer: BaseHTTPResponse) -> str:
    try:
        return one_line(json.loads(answer.data)["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}"
