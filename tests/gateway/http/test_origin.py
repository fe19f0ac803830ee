"""A gateway without keys answers to its own names and its own pages alone: what a browser is made to send by a page of another site is 403.

Each gateway here is a process on a real socket; its Triton is not there, because what is refused is refused before that matters.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import UserError
from serving.gateway import serve
from serving.gateway.http.origin import OriginPolicy
from serving.keys.key import SCOPES
from tests.gateway.conftest import SAMPLE, Running, gateway_before, write_settings
from tests.gateway.offline import PATHS
from tests.gateway.test_keys import filled
from tests.gateway.test_keys_listeners import NOWHERE, make
from tests.gateway.wire import Answer, answers_in
from tests.local.harness import free_ports

EVIL = {"Origin": "http://evil.example"}


def raw(running: Running, data: bytes) -> Answer:
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as client:
        client.sendall(data)
        received = b""
        while piece := client.recv(65536):
            received += piece
    return answers_in(received)[0]


def request(method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    lines = {"Host": "localhost", "Connection": "close"} | {k.replace("_", "-"): v for k, v in headers.items()}
    lines |= {} if body is None else {"Content-Length": str(len(body))}
    head = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in lines.items()), "", ""]
    return "\r\n".join(head).encode() + (body or b"")


def ask(running: Running, path: str, body: bytes | None = None, **headers: str) -> Answer:
    """With the Host that a client writes by itself, unless `Host` says another."""
    return raw(running, request("GET" if body is None else "POST", path, body, **{"Host": running.url} | headers))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """As a newcomer starts it: on loopback, without keys, with one name of a proxy before it."""
    folder = tmp_path_factory.mktemp("alone")
    options = ("--allowed-hosts", "Models.example.com")
    with gateway_before(folder, NOWHERE, *options, ready=False, allowed_hosts=["*.lab.example"]) as running:
        yield running


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, str]]]:
    """With keys on loopback, and the header of one that may do everything."""
    folder = tmp_path_factory.mktemp("keyed")
    key = make(folder / "keys.json", *SCOPES)
    with gateway_before(folder, NOWHERE, "--keys", str(folder / "keys.json"), ready=False) as running:
        yield running, {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/admin/nothing"])
def test_no_path_answers_a_page_of_another_site_or_by_a_foreign_name(alone: Running, path: str) -> None:
    asked, body = filled(path)
    for headers in (
        EVIL,
        {"Host": "evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
    ):
        answer = ask(alone, asked, body, **headers)
        assert (answer.status, answer.headers["tandem-error"]) == (403, "forbidden"), headers
        assert answer.headers["connection"] == "close"
        assert b"error" in answer.body
        assert "access-control-allow-origin" not in answer.headers
    assert ask(alone, asked, body).status != 403


OURS = [
    "localhost",
    "localhost:8080",
    "LocalHost:9999",
    "localhost.",
    "tandem.localhost:8080",
    "127.0.0.1",
    "127.9.8.7:80",
    "[::1]:8080",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "models.example.com",
    "MODELS.example.com.:443",
    "a.lab.example",
    "a.b.lab.example:1",
    "",
]
FOREIGN = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "localhost..",
    "localhost.example",
    "evillocalhost",
    "0x7f000001",
    "2130706433",
    "127.1",
    "0177.0.0.1",
    "0.0.0.0",
    "[::]",
    "192.168.0.1",
    "[::ffff:10.0.0.1]",
    "%6cocalhost",
    "lab.example",
    "evil-lab.example",
    "models.example.com.evil.example",
]
UNREADABLE = ["a@localhost", "localhost:8080@evil.example", "[::1%25lo]", "[fe80::1%eth0]", "localhost, evil.example"]


@pytest.mark.parametrize(
    ("host", "status"),
    [*((host, 200) for host in OURS), *((host, 403) for host in FOREIGN), *((host, 400) for host in UNREADABLE)],
)
def test_a_host_is_ours_as_it_is_spelt_or_it_is_not(alone: Running, host: str, status: int) -> None:
    assert ask(alone, "/v2/health/live", Host=host).status == status


def test_a_request_without_host_two_or_a_whole_address(alone: Running) -> None:
    assert raw(alone, b"GET /health/live HTTP/1.0\r\n\r\n").status == 200  # load balancers' probes; no browser asks so
    assert raw(alone, b"GET /health/live HTTP/1.0\r\nHost: evil.example\r\n\r\n").status == 403
    hosts = b"Host: localhost\r\nHost: evil.example\r\n\r\n"
    assert raw(alone, b"GET /health/live HTTP/1.1\r\n" + hosts).status == 400
    whole = b"GET http://localhost/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert raw(alone, whole).status == 400
    twice = b"Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n\r\n"
    assert raw(alone, b"GET /health/live HTTP/1.1\r\n" + twice).status == 400


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8080", "http://localhost:8080", 200),
        ("127.0.0.1:9999", "http://127.0.0.1:9999", 200),  # forwarded by ssh or kubectl
        ("[::1]:8080", "http://[::1]:8080", 200),
        ("localhost", "http://localhost:80", 200),
        ("LOCALHOST", "http://localhost", 200),
        ("models.example.com", "https://models.example.com", 200),
        ("127.0.0.1:8080", "https://models.example.com", 200),  # a proxy that writes its own Host
        ("localhost:8080", "http://localhost:3000", 403),
        ("localhost:8080", "http://127.0.0.1:8080", 403),
        ("localhost:8080", "http://localhost", 403),
        ("localhost:8080", "http://localhost:8080@evil.example", 403),
        ("localhost:8080", "http://localhost:8080.evil.example", 403),
        ("localhost:8080", "localhost:8080", 403),
        ("localhost:8080", "file://localhost:8080", 403),
        ("localhost:8080", "chrome-extension://localhost", 403),
        ("localhost:8080", "", 403),
    ],
)
def test_an_origin_is_the_host_that_was_asked_whatever_port_leads_here(
    alone: Running, host: str, origin: str, status: int
) -> None:
    assert ask(alone, "/v2/health/live", Host=host, Origin=origin).status == status
    of_the_page = ask(alone, "/v2/health/live", Host=host, Origin=origin, Sec_Fetch_Site="same-origin")
    assert of_the_page.status == status


@pytest.mark.parametrize("path", ["/", "/ui/page.js", "/admin/status"])
def test_the_page_and_an_address_that_its_user_typed_work(alone: Running, path: str) -> None:
    for site in ("none", "same-origin"):
        assert ask(alone, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate").status == 200


LINK = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}


@pytest.mark.parametrize("path", ["/", "/docs", "/?utm_source=chat"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_from_another_site_opens_the_page_and_no_frame_holds_it(alone: Running, path: str, site: str) -> None:
    answer = ask(alone, path, **LINK | {"Sec_Fetch_Site": site})
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    for not_followed in (
        {"Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Dest": "empty"},
        {"Sec_Fetch_Dest": ""},
        {"Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Mode": "cors"},
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ):
        assert ask(alone, path, **LINK | not_followed).status == 403, not_followed
    assert ask(alone, path, b"", **LINK).status == 403  # a form


@pytest.mark.parametrize("path", sorted({*PATHS, "/ui/page.js", "/nothing", "//", "/docs/"} - {"/", "/docs"}))
def test_a_link_from_another_site_opens_nothing_else(alone: Running, path: str) -> None:
    asked, body = filled(path)
    assert ask(alone, asked, body, **LINK).status == 403


def test_a_refused_body_is_not_read_as_a_request(alone: Running) -> None:
    inner = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: evil.example\r\nContent-Length: %d\r\n\r\n" % len(inner)
    assert raw(alone, head + inner).status == 403


def test_with_keys_the_key_decides_and_names_count_only_where_they_are_listed(
    keyed: tuple[Running, dict[str, str]], tmp_path: Path
) -> None:
    running, headers = keyed
    for more in (EVIL, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert ask(running, "/admin/status", **more).status == 401
        assert ask(running, "/admin/status", **headers, **more).status == 200
    headers = {"Authorization": f"Bearer {make(tmp_path / 'keys.json', *SCOPES)}"}
    options = ("--keys", str(tmp_path / "keys.json"))
    with gateway_before(tmp_path, NOWHERE, *options, ready=False, allowed_hosts=["a.example"]) as running:
        assert ask(running, "/admin/status", **headers, Host="evil.example").status == 403
        assert ask(running, "/admin/status", **headers, Host="a.example").status == 200


def test_with_keys_the_page_that_asks_for_one_is_shown_by_our_names_and_to_itself_alone(
    keyed: tuple[Running, dict[str, str]], tmp_path: Path
) -> None:
    running, _ = keyed
    for path in ("/", "/docs", "/?x", "/ui/key.js", "/ui/index.html", "/%64ocs", "/u%69/key.js"):
        assert ask(running, path).status == 200
        for more in ({"Host": "evil.example"}, EVIL, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            assert ask(running, path, **more).status == 403, (path, more)
    assert ask(running, "/", **LINK).status == 200
    assert ask(running, "/health/live", Host="evil.example").status == 200
    make(tmp_path / "keys.json", *SCOPES)
    options = ("--keys", str(tmp_path / "keys.json"), "--host", "0.0.0.0")
    with gateway_before(tmp_path, NOWHERE, *options, ready=False) as running:
        assert ask(running, "/", Host="tandem.svc").status == 404  # by whatever name; the page is the admin listener's
        assert ask(running, "/", Host="tandem.svc", Sec_Fetch_Site="cross-site").status == 403


APP = "http://localhost:3000"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_with_keys_pages_of_the_origins_that_are_listed_may_ask_with_a_key_and_no_others(
    keyed: tuple[Running, dict[str, str]], tmp_path: Path
) -> None:
    key = {"Authorization": f"Bearer {make(tmp_path / 'keys.json', *SCOPES)}"}
    options = ("--keys", str(tmp_path / "keys.json"))
    origins = ["HTTP://LocalHost:3000/", "https://app.example:443"]
    path = "/v2/models/digits/infer"
    with gateway_before(tmp_path, NOWHERE, *options, ready=False, allowed_origins=origins) as running:
        for origin in (APP, "https://app.example"):
            preflight = raw(running, request("OPTIONS", path, Origin=origin, **PREFLIGHT))
            assert (preflight.status, preflight.body) == (204, b"")
            assert preflight.headers["access-control-allow-origin"] == origin
            assert "Authorization" in preflight.headers["access-control-allow-headers"]
            for headers, status in (({}, 401), (key, 503), ({"Authorization": "Bearer tdm_x"}, 401)):
                answer = ask(running, path, SAMPLE, Origin=origin, Sec_Fetch_Site="cross-site", **headers)
                assert answer.status == status
                assert answer.headers["access-control-allow-origin"] == origin
                assert answer.headers["vary"] == "Origin"
                assert "access-control-allow-credentials" not in answer.headers
        for origin in (
            "http://localhost:3001",
            "https://localhost:3000",
            "http://localhost",
            "http://app.example",
            "null",
        ):
            preflight = raw(running, request("OPTIONS", path, Origin=origin, **PREFLIGHT))
            answer = ask(running, path, SAMPLE, Origin=origin, **key)
            assert (preflight.status >= 400, answer.status) == (True, 503)
            for one in (preflight, answer):
                assert not [name for name in one.headers if name.startswith("access-control")]
        assert raw(running, request("OPTIONS", path, Origin=APP)).status >= 400  # asks nothing that CORS knows
    running, _ = keyed  # no origin is listed
    answers = [
        raw(running, request("OPTIONS", path, Origin=APP, **PREFLIGHT)),
        ask(running, path, SAMPLE, Origin=APP),
    ]
    assert not [name for one in answers for name in one.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "app.example", "https://*.example", "https://a.example/x", "ftp://a.example", "https://a@b", ""],
)
def test_what_is_no_origin_of_pages_is_refused_at_start(tmp_path: Path, origin: str) -> None:
    with pytest.raises(UserError, match="allowed_origins"):
        serve.run(serve.Options(write_settings(tmp_path / "bad.yaml", NOWHERE, allowed_origins=[origin])))


def test_origins_are_refused_where_there_are_no_keys(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--keys"):
        serve.run(serve.Options(write_settings(tmp_path / "open.yaml", NOWHERE, allowed_origins=[APP])))


def test_on_an_open_address_without_keys_pages_of_other_sites_are_refused_and_names_where_they_are_listed(
    tmp_path: Path,
) -> None:
    admin = free_ports(1)[0]
    options = ("--host", "0.0.0.0", "--insecure-no-auth", "--admin-port", str(admin))
    with gateway_before(tmp_path, NOWHERE, *options, ready=False) as running:
        assert ask(running, "/v2/models/digits/infer", SAMPLE, **EVIL).status == 403
        assert ask(running, "/health/live", Host="tandem.svc").status == 200
        listener = Running(running.program, admin)  # on loopback, whatever the other has
        assert ask(listener, "/admin/status").status == 200
        assert ask(listener, "/admin/status", Host="tandem.svc").status == 403
    with gateway_before(tmp_path, NOWHERE, *options, ready=False, allowed_hosts=["tandem.svc"]) as running:
        assert ask(running, "/health/live", Host="tandem.svc").status == 200
        assert ask(running, "/health/live", Host="0.0.0.0").status == 200
        assert ask(running, "/health/live", Host="evil.example").status == 403


def test_the_address_that_was_connected_to_is_ours_where_names_are_listed() -> None:
    policy = OriginPolicy("0.0.0.0", ("tandem.svc",), has_keys=True)
    policy.check({b"host": b"10.1.2.3:8080"}, "10.1.2.3")  # a kubelet's probe
    policy.check({b"host": b"10.1.2.3:8080"}, "::ffff:10.1.2.3")
    for host, address in ((b"10.1.2.4", "10.1.2.3"), (b"evil.example", "10.1.2.3"), (b"10.1.2.3", "")):
        with pytest.raises(Exception, match=r"name.*gateway"):
            policy.check({b"host": host}, address)


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "*", "a.*", "*.", "a b", "a@b"])
def test_what_is_no_name_is_refused_at_start(tmp_path: Path, name: str) -> None:
    settings = write_settings(tmp_path / "good.yaml", NOWHERE)
    with pytest.raises(UserError, match="--allowed-hosts"):
        serve.run(serve.Options(settings, allowed_hosts=(name,)))
    with pytest.raises(UserError, match="allowed_hosts"):
        serve.run(serve.Options(write_settings(tmp_path / "bad.yaml", NOWHERE, allowed_hosts=[name])))
