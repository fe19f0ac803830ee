"""A tab of a real Chromium, which is told what to do by its own remote protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.harness import free_ports, wait_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]


class Page:
    """A tab. `js` evaluates an expression in it."""

    def __init__(self, port: int) -> None:
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(asked, timeout=10) as answer:
            url = json.load(answer)["webSocketDebuggerUrl"]
        self._socket = pytest.importorskip("websocket").create_connection(url, timeout=20, suppress_origin=True)
        self._numbers = itertools.count(1)
        self._answers: list[tuple[int, str]] = []  # each status, and the browser's own number of the request
        self._urls: dict[str, str] = {}  # by the browser's own number of a request
        self.complaints: list[str] = []  # what the browser says on its console of warnings and errors
        for domain in ("Network", "Runtime", "Log", "Page"):
            self._do(f"{domain}.enable")

    def _do(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv())).get("id") != number:
            self._note(message)
        return message["result"]

    def _note(self, event: dict[str, Any]) -> None:
        params = event["params"]
        if event["method"] == "Network.requestWillBeSent":
            self._urls[params["requestId"]] = params["request"]["url"]
        elif event["method"] == "Network.responseReceivedExtraInfo":  # as it came, before the browser judges it
            self._answers.append((params["statusCode"], params["requestId"]))
        elif event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", {}).get("description", params)))
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    @property
    def statuses(self) -> list[tuple[int, str]]:
        """Of every answer that the browser was given, whether or not a script may see it, and the URL; an answer may be told first."""
        return [(status, self._urls.get(number, "")) for status, number in self._answers]

    def close(self) -> None:
        self._socket.close()

    def open(self, url: str) -> None:
        self._do("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """A promise is waited for."""
        evaluated = self._do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return evaluated["result"].get("value")

    def text(self, name: str) -> str:
        """What is seen of an element; empty where it is hidden or not there yet."""
        return str(self.js(f"(e => e?.checkVisibility() ? e.innerText : '')(document.getElementById('{name}'))"))

    def wait(self, expression: str, what: str = "") -> None:
        """Until it is true."""
        wait_until(lambda: self.js(expression), what or expression)

    def look(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """As a screen of so many pixels shows it."""
        is_phone = width < 600
        self._do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._do("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, *, is_whole: bool = False) -> bytes:
        """PNG; `is_whole`: also what would have to be scrolled to."""
        return base64.b64decode(
            self._do("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)["data"]
        )

    def use_key(self, key: str) -> None:
        self.js(f"document.getElementById('key').value = '{key}'; document.querySelector('#key-form button').click()")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with chromium(tmp_path) as opened:
        yield opened


@contextlib.contextmanager
def chromium(tmp_path: Path) -> Iterator[Page]:
    port = free_ports(1)[0]
    words = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--remote-debugging-port={port}",
    ]
    words.append("--host-resolver-rules=MAP *.example 127.0.0.1")  # as a name that somebody turns to us
    with (tmp_path / "chromium.log").open("wb") as log:
        browser = subprocess.Popen([*words, f"--user-data-dir={tmp_path / 'profile'}"], stdout=log, stderr=log)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/json/version", timeout=5).status == 200
        return False

    try:
        wait_until(answers, "Chromium listens", 60)
        with contextlib.closing(Page(port)) as opened:
            yield opened
    finally:
        browser.terminate()
        browser.wait(20)
