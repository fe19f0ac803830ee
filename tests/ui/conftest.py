"""A tab of a real Chromium, which is told what to do by its own remote protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.ports import free_ports
from tests.gateway.conftest import digits, environment, kinds  # noqa: F401 (once for all files of this folder)
from tests.gateway.openai.conftest import words, words_repository, words_triton  # noqa: F401
from tests.local import harness

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]


# What Chromium says where the document that an expression was for is being left, or the next is not there yet.
LEAVING = (
    "Inspected target navigated or closed",
    "Execution context was destroyed",
    "Cannot find",
    "Promise was collected",
)


class Refused(Exception):
    """By the browser, of which a command was asked."""


class Leaving(Refused):
    """The tab goes elsewhere: what was asked of its document is to be asked of the next."""


class Thrown(Exception):
    """By an expression."""


def wait_until(happened: Callable[[], Any], what: str, limit_s: float = harness.LIMIT_S) -> Any:
    """The first true answer; a tab that is on its way has none yet."""

    def answer() -> Any:
        with contextlib.suppress(Leaving):
            return happened()

    return harness.wait_until(answer, what, limit_s)


class Connection:
    """To a browser or a tab of it."""

    def __init__(self, url: str) -> None:
        self._socket = pytest.importorskip("websocket").create_connection(url, timeout=20, suppress_origin=True)
        self._numbers = itertools.count(1)

    def do(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv())).get("id") != number:
            self.note(message)
        if "error" in message:
            said = f"{method}: {message['error']['message']}"
            raise (Leaving if message["error"]["message"].startswith(LEAVING) else Refused)(said)
        return message["result"]

    def note(self, event: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        self._socket.close()


class Page(Connection):
    """A tab. `js` evaluates an expression in it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._answers: list[tuple[int, str]] = []  # each status, and the browser's own number of the request
        self._urls: dict[str, str] = {}  # by the browser's own number of a request
        self.complaints: list[str] = []  # what the browser says on its console of warnings and errors
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.do(f"{domain}.enable")

    def note(self, event: dict[str, Any]) -> None:
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

    def open(self, url: str) -> None:
        self.do("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """A promise is waited for."""
        evaluated = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in evaluated:
            raise Thrown(f"{expression}: {evaluated['result'].get('description', evaluated['exceptionDetails'])}")
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
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, *, is_whole: bool = False) -> bytes:
        """PNG; `is_whole`: also what would have to be scrolled to."""
        return base64.b64decode(self.do("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)["data"])

    def printed(self) -> bytes:
        """PDF, on A4."""
        return base64.b64decode(self.do("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])

    def use_key(self, key: str) -> None:
        self.js(f"document.getElementById('key').value = '{key}'; document.querySelector('#key-form button').click()")


class Browser:
    """A real Chromium, whose pages share neither storage nor cookies nor cache."""

    def __init__(self, folder: Path) -> None:
        self._port = free_ports(1)[0]
        command = [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--remote-debugging-port={self._port}",
            "--host-resolver-rules=MAP *.example 127.0.0.1",  # as a name that somebody turns to us
            f"--user-data-dir={folder / 'profile'}",
        ]
        with (folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def _url(self) -> str | None:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/json/version", timeout=5) as answer:
                return str(json.load(answer)["webSocketDebuggerUrl"])
        return None

    @contextlib.contextmanager
    def page(self) -> Iterator[Page]:
        with contextlib.closing(Connection(wait_until(self._url, "Chromium listens", 60))) as browser:
            profile = browser.do("Target.createBrowserContext", disposeOnDetach=True)["browserContextId"]
            tab = browser.do("Target.createTarget", url="about:blank", browserContextId=profile)["targetId"]
            with contextlib.closing(Page(f"ws://127.0.0.1:{self._port}/devtools/page/{tab}")) as opened:
                yield opened

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with contextlib.closing(Browser(tmp_path_factory.mktemp("browser"))) as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.page() as opened:
        yield opened
