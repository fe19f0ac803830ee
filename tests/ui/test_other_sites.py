"""Pages of other sites in a real browser: what they send to a gateway on loopback is refused, and what `allowed_origins` names works.

Two origins: the gateway, and a server beside it that serves one empty page, by `localhost`, by 127.0.0.1 and by a name that is turned to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from serving.keys.key import ADMIN, INFER
from tests.gateway.conftest import SAMPLE, Running, gateway_before
from tests.gateway.test_keys_listeners import NOWHERE, make
from tests.ui.conftest import BROWSER, Page, wait_until

pytestmark = BROWSER


@contextmanager
def other_site() -> Iterator[int]:
    """Its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>another site</title><p id=here>here")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def show(page: Page, url: str) -> None:
    page.open(url)
    wait_until(lambda: page.js("location.href") == url and page.text("here") == "here", f"{url} is shown")


def statuses(page: Page, url: str) -> list[int]:
    """What the browser was answered at an address; a script may not have been told."""
    page.do("Network.enable")  # so that what has been told meanwhile is read, also while the tab goes elsewhere
    return [status for status, asked in page.statuses if asked == url]


def wait_status(page: Page, url: str, status: int) -> None:
    wait_until(lambda: status in statuses(page, url), f"{url} is answered with {status}")
    assert set(statuses(page, url)) == {status}


CATCH = ".then(answer => answer.status, error => 'refused')"
SITES = ["http://localhost:{}/", "http://127.0.0.1:{}/", "http://evil.example:{}/"]


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway_before(tmp_path_factory.mktemp("keyless"), NOWHERE, ready=False) as running:
        yield running


@pytest.mark.parametrize("site", SITES)
def test_no_page_of_another_site_or_port_reaches_a_gateway_without_keys(
    page: Page, keyless: Running, site: str
) -> None:
    with other_site() as port:
        gateway = f"http://{keyless.url}"
        show(page, site.format(port))
        assert page.js(f"fetch('{gateway}/admin/status'){CATCH}") == "refused"
        wait_status(page, f"{gateway}/admin/status", 403)
        # What a page may send without being asked for leave: it cannot read the answer, and nothing may come of it.
        infer = f"{gateway}/v2/models/digits/infer"
        page.js(f"fetch('{infer}', {{method: 'POST', mode: 'no-cors', body: '{{}}'}}){CATCH}")
        wait_status(page, infer, 403)
        page.js(f"document.body.append(Object.assign(new Image(), {{src: '{gateway}/ui/icon.svg'}}))")
        wait_status(page, f"{gateway}/ui/icon.svg", 403)
        page.js(f"document.body.append(Object.assign(document.createElement('iframe'), {{src: '{gateway}/'}}))")
        wait_status(page, f"{gateway}/", 403)
        page.js(
            f"document.body.append(Object.assign(document.createElement('form'), {{method: 'post', action: '{gateway}/docs'}}));"
            "document.forms[0].submit()"
        )
        wait_status(page, f"{gateway}/docs", 403)


def test_a_name_that_is_turned_to_the_gateway_shows_nothing_of_it_and_a_link_opens_the_page(
    page: Page, keyless: Running
) -> None:
    with other_site() as port:
        turned = f"http://evil.example:{keyless.port}/"
        page.open(turned)
        wait_status(page, turned, 403)
        show(page, f"http://localhost:{port}/")
        page.js(f"location = 'http://{keyless.url}/'")
        wait_until(lambda: page.text("try") + page.text("pools"), "the page is shown, and asks as itself")
        assert 403 not in {status for status, asked in page.statuses if asked.startswith(f"http://{keyless.url}")}


def test_the_page_that_asks_for_a_key_is_not_shown_by_a_name_that_is_turned_to_it(page: Page, tmp_path: Path) -> None:
    make(tmp_path / "keys.json", INFER)
    with gateway_before(tmp_path, NOWHERE, "--keys", str(tmp_path / "keys.json"), ready=False) as running:
        for path in ("", "docs", "%64ocs"):
            url = f"http://evil.example:{running.port}/{path}"
            page.open(url)
            wait_status(page, url, 403)
        page.open(f"http://{running.url}/")
        wait_until(lambda: "wants an API key" in page.text("key-form"), "the page asks for a key")


@pytest.fixture
def keyed(digits: str, tmp_path: Path) -> Iterator[tuple[Running, str, int]]:
    """A gateway, a key, and the port of the site that may ask."""
    key = make(tmp_path / "keys.json", ADMIN, INFER)
    with other_site() as port:
        origins = [f"http://localhost:{port}"]
        options = ("--keys", str(tmp_path / "keys.json"))
        with gateway_before(tmp_path, {"cpu": [digits]}, *options, allowed_origins=origins) as running:
            yield running, key, port


def test_scripts_of_an_origin_that_is_named_ask_with_a_key_and_those_of_others_cannot(
    page: Page, keyed: tuple[Running, str, int]
) -> None:
    running, key, port = keyed
    body = f"JSON.stringify({SAMPLE.decode()})"
    options = f"{{method: 'POST', body: {body}, headers: {{Authorization: 'Bearer {key}', 'Content-Type': 'application/json'}}}}"
    ask = f"fetch('http://{running.url}/v2/models/digits/infer', {options})"
    show(page, f"http://localhost:{port}/")
    assert page.js(f"{ask}{CATCH}") == 200
    assert page.js(f"{ask}.then(answer => answer.json()).then(answer => answer.outputs.length)") > 0
    assert page.js(f"{ask.replace(key, 'tdm_wrong')}{CATCH}") == 401
    assert (
        page.js(f"{ask.replace(key, 'tdm_wrong')}.then(answer => answer.headers.get('tandem-error'))")
        == "unauthenticated"
    )
    for other in (f"http://127.0.0.1:{port}/", f"http://app.example:{port}/"):
        show(page, other)
        assert page.js(f"{ask}{CATCH}") == "refused"
