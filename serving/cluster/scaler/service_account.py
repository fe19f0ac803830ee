"""How does a pod ask its API server? With what every pod has: its service account's token and Python's standard library.

The package `kubernetes` would add 74 MB to the gateway's image, for reading kubeconfigs, which no pod has; where there is one, `kubeconfig`
asks with it. Lists come in one piece: what a pool has is a few objects. Rule: the token is read anew each time, because it is renewed
under a process's feet.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from serving.cluster.scaler.reads import NotForUs, Object, Trouble

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where every pod finds its token
TIMEOUT_S = 10.0  # as `tandem cluster` waits for an answer


@dataclass(frozen=True, slots=True)
class InPod:
    """One API server. Nothing is kept open between two questions: they are minutes apart, or two seconds for a short while."""

    host: str
    port: int
    account: Path
    namespace: str

    @classmethod
    def here(cls, namespace: str | None, account: Path, environment: Mapping[str, str] = os.environ) -> InPod:
        """Raises NotForUs."""
        try:
            host, port = environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])
            return cls(host, port, account, namespace or (account / "namespace").read_text().strip())
        except (KeyError, ValueError, OSError) as error:
            raise NotForUs(f"this pod's service account cannot be used ({type(error).__name__}: {error})") from None

    def items(self, path: str, what: str, query: Mapping[str, str] | None = None) -> tuple[Object, ...] | None:
        status, answer = self._get(path + (f"?{urlencode(query)}" if query else ""), what)
        if status in (403, 404):
            return None if status == 403 else ()
        return tuple(self._whole(status, answer, what)["items"] or ())

    def one(self, path: str, what: str) -> Object | None:
        status, answer = self._get(path, what)
        return None if status in (403, 404) else self._whole(status, answer, what)

    def _get(self, path: str, what: str) -> tuple[int, bytes]:
        try:
            connection = self._connection()
            try:
                token = (self.account / "token").read_text().strip()
                connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "User-Agent": "tandem"})
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()
        except (OSError, HTTPException) as error:  # ssl's errors are OSErrors
            problem = f"the API server {self.host} cannot be asked for {what} ({str(error) or type(error).__name__})"
            raise Trouble(problem) from None

    def _connection(self) -> HTTPConnection:
        trusted = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        return HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=trusted)

    def _whole(self, status: int, answer: bytes, what: str) -> dict[str, Any]:
        said = f"the API server {self.host} answers {status} when asked for {what}"
        if status == 401:
            raise NotForUs(f"{said}: this pod's token is not, or no longer, accepted")
        if status != 200:
            raise Trouble(said)
        found = json.loads(answer)
        if not isinstance(found, dict):
            raise TypeError(f"{what} is no object")
        return found
