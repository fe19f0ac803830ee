"""How is one question put to an API server, and what does "you may not see that" become? JSON in and out.

Objects stay the plain JSON that the server sends (`Object`): its own models of 800 kinds differ between versions of the client and check
what we do not read. Values are made of them in `fields` and in the rooms that ask. Rule: one try, and an end to each (`TIMEOUT_S`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from kubernetes.client.exceptions import ApiException
from urllib3 import Timeout

from serving.cluster.connection import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Connection, Refused

Object = Mapping[str, Any]

PAGE_SIZE = 500  # kubectl's own chunk
TIMEOUT_S = Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)
# Names and labels without the object itself: what a secret holds never leaves the server.
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def ask(
    connection: Connection,
    path: str,
    what: str,
    query: Mapping[str, Any] | None = None,
    body: Object | None = None,
    accept: str = "application/json",
    timeout: Timeout = TIMEOUT_S,
) -> Object:
    """The answer's object; raises Refused or Unreachable. `what` completes "when asked for …"."""
    api = connection.api
    headers = {"Accept": accept, "User-Agent": "tandem"}
    if token := api.configuration.auth_settings().get("BearerToken"):
        headers["Authorization"] = token["value"]
    url = connection.server.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
    with connection.asking(what):
        answer = api.rest_client.pool_manager.request(
            "POST" if body else "GET",
            url,
            headers={**headers, "Content-Type": "application/json"} if body else headers,
            body=json.dumps(body) if body else None,
            timeout=timeout,
            retries=False,
        )
        if answer.status not in (200, 201):
            raise ApiException(status=answer.status, reason=answer.reason)
        found = json.loads(answer.data)
        if not isinstance(found, dict):
            raise TypeError(path)
        return found


def items(
    connection: Connection,
    path: str,
    what: str,
    query: Mapping[str, Any] | None = None,
    accept: str = "application/json",
) -> tuple[Object, ...] | None:
    """All objects of a list, in pages; None where this user may not see them, nothing where the API is not served."""
    found: list[Object] = []
    more = ""
    try:
        while True:
            asked = {**(query or {}), "limit": PAGE_SIZE, **({"continue": more} if more else {})}
            page = ask(connection, path, what, asked, accept=accept)
            with connection.asking(what):
                found.extend(dict(it) for it in page["items"] or ())
                more = str((page.get("metadata") or {}).get("continue") or "")
            if not more:
                return tuple(found)
    except Refused as error:
        if error.status == 403:
            return None
        if error.status == 404:
            return ()
        raise
