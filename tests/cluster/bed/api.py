"""What does the API server hold? JSON over HTTPS as the administrator, for tests that ask often: a kubectl takes a third of a second."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

Object = dict[str, Any]
TIMEOUT_S = 30.0


class Answered(Exception):
    """The server refused; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Api:
    def __init__(self, address: str, certificates: Path) -> None:
        self.address = address
        self._context = trusting(certificates)

    def get(self, path: str) -> Object:
        return self.call("GET", path)

    def items(self, path: str) -> list[Object]:
        items: list[Object] = self.get(path)["items"]
        return items

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def delete(self, path: str) -> None:
        self.call("DELETE", path)

    def merge(self, path: str, body: Object) -> Object:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Object:
        url = path if path.startswith("https://") else self.address + path
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, data=data, headers={"Content-Type": content_type})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._context) as answer:
                found: Object = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise Answered(error.code, _message(text)) from None


def trusting(certificates: Path) -> ssl.SSLContext:
    """As the administrator; controllers, which certify themselves on loopback, are believed."""
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    context.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text


def until(done: Callable[[], Any], what: str, timeout_s: float = 120.0, every_s: float = 0.2) -> Any:
    """The first answer that counts as true. What it says when there is none names what was waited for and the last answer."""
    give_up = time.monotonic() + timeout_s
    while True:
        answer = done()
        if answer:
            return answer
        assert time.monotonic() < give_up, f"{what}: not after {timeout_s:.0f} s; last answer {answer!r}"
        time.sleep(every_s)
