"""Asks the API server from inside a pod, with what every pod has: its service account's token and Python's standard library.

The package `kubernetes` would add 74 MB to the gateway's image, for reading kubeconfigs, which no pod has. Rule: the token is read anew
each time, because it is renewed under a process's feet.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode

from serving.cluster.client import JSON, ApiError, Client, Query, Unreachable, as_object
from serving.cluster.objects.fields import Object
from serving.errors import EnvironmentFault

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
        try:
            connection = self._connection()
            try:
                token = (self.account / "token").read_text().strip()
                headers = {"Accept": accept, "Authorization": f"Bearer {token}", "User-Agent": "tandem"}
                connection.request("GET", path + (f"?{urlencode(query)}" if query else ""), headers=headers)
                answer = connection.getresponse()
                body = answer.read()
            finally:
                connection.close()
        except (OSError, HTTPException) as error:  # ssl's errors are OSErrors
            problem = f"cannot be asked for {what} ({str(error) or type(error).__name__})"
            raise Unreachable(self.host, problem, "is it up, and may this pod reach it?") from None
        if answer.status != 200:
            way_out = "this pod's token is not, or no longer, accepted" if answer.status == 401 else ""
            raise ApiError(self.host, answer.status, what, way_out)
        with self.reading(what):
            return as_object(json.loads(body))

    def _connection(self) -> HTTPConnection:
        trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        return HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=trusted)
