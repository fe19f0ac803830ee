"""The page before a gateway that wants keys, in a real browser: it asks for one, and then shows what is there and asks a model."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serving.keys import changes
from serving.keys.key import ADMIN, INFER
from tests.gateway.conftest import Running, gateway_before
from tests.ui.conftest import BROWSER, Page, wait_until

pytestmark = BROWSER


@pytest.fixture
def keyed(digits: str, tmp_path: Path) -> Iterator[tuple[Running, str, str]]:
    """A gateway, a key with which the page works, and one that cannot read what is there."""
    file = tmp_path / "keys.json"

    def make(*scopes: str) -> str:
        return changes.add(file, "page", frozenset(scopes), datetime.now(UTC)).text

    good, infer_alone = make(ADMIN, INFER), make(INFER)
    with gateway_before(tmp_path, {"cpu": [digits]}, "--keys", str(file)) as running:
        yield running, good, infer_alone


def test_the_page_asks_for_a_key_and_keeps_it_in_its_tab(page: Page, keyed: tuple[Running, str, str]) -> None:
    running, good, infer_alone = keyed
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
    page.js("location.hash = '#/try'")
    wait_until(lambda: "Draw" in page.text("try"), "a model can be tried")
    page.js("document.getElementById('ask').click()")
    wait_until(lambda: " says " in page.text("answer"), "the model has answered")
    for where in (
        "document.documentElement.outerHTML",
        "location.href",
        "document.cookie",
        "JSON.stringify(localStorage)",
    ):
        assert good not in page.js(where)
    page.js("location.hash = '#/live'")
    page.open(f"http://{running.url}/?again")
    wait_until(lambda: "answers, Triton" in page.text("pools"), "the tab has kept it")
    page.js("document.getElementById('key-forget').click()")
    wait_until(lambda: "wants an API key" in page.text("key-form"), "the field is there again")
    assert page.text("pools") == ""
    assert page.js("sessionStorage.length") == 0
