"""The page before a gateway that wants keys, in a real browser: it asks for one, and then shows what is there and asks a model.

Chromium is told what to do by its own remote protocol.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from serving.keys import changes
from serving.keys.key import ADMIN, INFER
from tests.gateway.conftest import Running, digits, environment, gateway_before  # noqa: F401
from tests.local.harness import free_ports, wait_until

websocket = pytest.importorskip("websocket")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]


class Page:
    """A tab. `js` evaluates an expression in it."""

    def __init__(self, port: int) -> None:
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(asked, timeout=10) as answer:
            url = json.load(answer)["webSocketDebuggerUrl"]
        self._socket = websocket.create_connection(url, timeout=20, suppress_origin=True)
        self._numbers = itertools.count(1)

    def _do(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (said := json.loads(self._socket.recv())).get("id") != number:
            pass
        return said["result"]

    def close(self) -> None:
        self._socket.close()

    def open(self, url: str) -> None:
        self._do("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        return self._do("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def text(self, name: str) -> str:
        """What is seen of an element; empty where it is hidden or not there yet."""
        return str(self.js(f"(e => e?.checkVisibility() ? e.innerText : '')(document.getElementById('{name}'))"))

    def use_key(self, key: str) -> None:
        self.js(f"document.getElementById('key').value = '{key}'; document.querySelector('#key-form button').click()")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    port = free_ports(1)[0]
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--remote-debugging-port={port}"]
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


@pytest.fixture
def keyed(digits: str, tmp_path: Path) -> Iterator[tuple[Running, Path]]:  # noqa: F811
    file = tmp_path / "keys.json"
    changes.add(file, "nobody", frozenset({INFER}), datetime.now(UTC))
    with gateway_before(tmp_path, {"cpu": [digits]}, "--keys", str(file)) as running:
        yield running, file


def test_the_page_asks_for_a_key_and_keeps_it_in_its_tab(page: Page, keyed: tuple[Running, Path]) -> None:
    running, file = keyed

    def make(*scopes: str) -> str:
        return changes.add(file, "page", frozenset(scopes), datetime.now(UTC)).text

    good, infer_alone = make(ADMIN, INFER), make(INFER)
    time.sleep(2)  # until the gateway has read it
    page.open(f"http://{running.url}/")
    wait_until(lambda: "wants an API key" in page.text("key-form"), "the field is there")
    assert page.text("pools") == ""
    page.use_key("no key")
    wait_until(lambda: "letters, digits" in page.text("key-form"), "it is told what a key is")
    page.use_key(good[:-1] + "x")
    wait_until(lambda: "is not valid" in page.text("key-form"), "it is told that this one is wrong")
    page.use_key(infer_alone)
    wait_until(lambda: "no scope 'admin'" in page.text("key-form"), "it is told that this one is not enough")
    page.use_key(good)
    wait_until(lambda: "answers, Triton" in page.text("pools"), "the pools are there")
    assert page.text("key-form") == ""
    wait_until(lambda: "Model" in page.text("try"), "a model can be tried")
    page.js("document.getElementById('ask').click()")
    wait_until(lambda: " says " in page.text("answer"), "the model has answered")
    for where in (
        "document.documentElement.outerHTML",
        "location.href",
        "document.cookie",
        "JSON.stringify(localStorage)",
    ):
        assert good not in page.js(where)
    page.open(f"http://{running.url}/?again")
    wait_until(lambda: "answers, Triton" in page.text("pools"), "the tab has kept it")
    page.js("document.getElementById('key-forget').click()")
    wait_until(lambda: "wants an API key" in page.text("key-form"), "the field is there again")
    assert page.text("pools") == ""
    assert page.js("sessionStorage.length") == 0
