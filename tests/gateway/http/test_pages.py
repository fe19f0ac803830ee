"""The pages and their files as they leave the gateway, and that nothing else leaves it by their paths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving.gateway.http.pages import HEADERS, read_files
from tests.gateway.conftest import Running, gateway_before
from tests.local.harness import free_ports


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway on loopback whose Triton is not there: the pages do not need it."""
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    with gateway_before(tmp_path_factory.mktemp("alone"), {"cpu": [nowhere]}, ready=False) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        ("/", "text/html; charset=utf-8", "index.html"),
        ("/docs", "text/html; charset=utf-8", "docs.html"),
        ("/ui/index.html", "text/html; charset=utf-8", "index.html"),
        ("/ui/page.js", "text/javascript; charset=utf-8", "page.js"),
        ("/ui/style.css", "text/css; charset=utf-8", "style.css"),
        ("/ui/icon.svg", "image/svg+xml", "icon.svg"),
        ("/ui/page.js?v=/../x", "text/javascript; charset=utf-8", "page.js"),
    ],
)
def test_files_come_whole_with_their_type_and_a_strict_policy(alone: Running, path: str, kind: str, name: str) -> None:
    reply = alone.ask(path)
    assert (reply.status, reply.headers["Content-Type"], reply.body) == (200, kind, read_files()[name])
    assert {name: reply.headers[name] for name in HEADERS} == HEADERS
    assert reply.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/ui",
        "/ui/",
        "/ui/nothing.js",
        "/ui/PAGE.JS",
        "/ui/../cli.py",
        "/ui/../ui/page.js",
        "/ui/..%2fcli.py",
        "/ui/%2e%2e/cli.py",
        "/ui/%2e%2e%2fcli.py",
        "/ui/..%5ccli.py",
        "/ui/....//cli.py",
        "/ui//etc/passwd",
        "/ui/%2fetc%2fpasswd",
        "/ui/page.js%00.html",
        "/ui/./page.js",
        "/ui/%252e%252e%252fcli.py",
        "/ui/file:%2f%2f%2fetc%2fpasswd",
        "/page.js",
        "/redoc",
        "/docs/oauth2-redirect",
    ],
)
def test_nothing_else_is_reached_by_any_path(alone: Running, path: str) -> None:
    reply = alone.ask(path)
    assert (reply.status, reply.headers["Tandem-Error"]) in {(404, "not_found"), (400, "bad_request")}
    assert (reply.status == 400) == any(odd in path for odd in ("/./", "/../", "%2e", "%2f", "%5c", "%00", "%25")), path
    assert list(reply.json()) == ["error"]
    assert b"import" not in reply.body
    assert b"root:" not in reply.body


@pytest.mark.parametrize("path", ["/", "/docs", "/ui/page.js", "/openapi.json"])
def test_pages_take_nothing_but_get(alone: Running, path: str) -> None:
    reply = alone.ask(path, b"x")
    assert (reply.status, reply.headers["Tandem-Error"], reply.headers["Allow"]) == (405, "bad_request", "GET, HEAD")
