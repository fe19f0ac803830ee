"""Who gets in: every path with no key, with each kind of bad key and with a good one, and what becomes of keys while a gateway runs."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.http.endpoint import OPEN
from serving.gateway.key_watch import EVERY_S
from serving.keys import changes
from serving.keys.key import SCOPES, make_text
from tests.gateway.conftest import SAMPLE, Reply, Running, gateway_before, wait_for_model
from tests.gateway.offline import ENDPOINTS
from tests.local.harness import LIMIT_S, Served, wait_until

NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(seconds=1), NOW + timedelta(days=1)
EMBEDDING = json.dumps({"model": "digits", "input": "x"}).encode()
BODIES = {"infer": SAMPLE, "index": b"{}", "load": b"{}", "unload": b"{}", "embeddings": EMBEDDING, "classify": b"{}"}
UNNAMED = [
    "/nothing",
    "/v2/nothing",
    "/v1",
    "/v1/chat/completions",
    "/admin",
    "/admin/nothing",
    "/metrics/",
    "/ui/",
    "/v3/infer",
]


@dataclass(frozen=True)
class Keyed:
    """A gateway with keys, and the keys by what is the matter with them. `file` is behind links, as a Secret in a cluster is."""

    running: Running
    file: Path
    keys: Mapping[str, str]

    def ask(self, path: str, key: str | None = None, body: bytes | None = None, **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.running.ask(path, body, sent | ({} if key is None else {"Authorization": f"Bearer {key}"}))

    def make(self, *scopes: str, **more: Any) -> str:
        return changes.add(self.file, "test", frozenset(scopes), NOW, **more).text


def write_keys(file: Path) -> dict[str, str]:
    """Of each scope one that has it alone and one that lacks it alone, and the bad ones, which have all scopes."""

    def make(*scopes: str, **more: Any) -> str:
        return changes.add(file, "test", frozenset(scopes), NOW, **more).text

    keys = {f"only {scope}": make(scope) for scope in SCOPES}
    keys |= {f"all but {scope}": make(*set(SCOPES) - {scope}) for scope in SCOPES}
    keys |= {"expired": make(*SCOPES, expires=PAST), "revoked": make(*SCOPES), "all": make(*SCOPES)}
    keys |= {"digits alone": make(*SCOPES, models=frozenset({"digits"}))}
    keys |= {"another model": make(*SCOPES, models=frozenset({"types.any"}))}
    changes.revoke(file, keys["revoked"], NOW)
    keys["wrong secret"] = keys["all"][:-1] + ("0" if keys["all"][-1] != "0" else "1")
    keys["unknown"] = make_text()
    return keys


@pytest.fixture(scope="module")
def keyed(digits: str, kinds: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "..1").mkdir()
    (folder / "..data").symlink_to("..1")
    (folder / "keys.json").symlink_to("..data/keys.json")
    keys = write_keys(folder / "keys.json")
    pools = {"cpu": [digits], "kinds": [f"http://{kinds.url}"]}
    with gateway_before(folder, pools, "--keys", str(folder / "keys.json")) as running:
        made = Keyed(running, folder / "keys.json", keys)
        wait_for_model(running, kinds, headers={"Authorization": f"Bearer {keys['all']}"})
        yield made


# -- the matrix -----------------------------------------------------------------------------------------------------------

SCOPES_OF = {row.path: row.scope for row in ENDPOINTS.rows}
CLOSED = [path for path, needed in SCOPES_OF.items() if needed != OPEN]


def filled(path: str) -> tuple[str, bytes | None]:
    """A path that is asked, and with what body."""
    asked = path.replace("{model}", "digits").replace("{version}", "1").replace("{rest:path}", "status")
    asked = asked.replace("{name}", "page.js")
    body = BODIES.get("classify" if "classify" in path else path.rsplit("/", 1)[1])
    return asked, body


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.protocol("keys", "`Authorization: Bearer` and `X-API-Key` over HTTP, a scope for each path", "supported")
def test_a_path_is_refused_without_a_good_key_and_answered_with_one(keyed: Keyed, path: str) -> None:
    asked, body = filled(path)
    needed = SCOPES_OF[path]
    strangers = {None: None, "malformed": "x"} | {
        name: keyed.keys[name] for name in ("unknown", "wrong secret", "expired", "revoked")
    }
    for name, key in strangers.items():
        reply = keyed.ask(asked, key, body)
        assert (reply.status, reply.headers["Tandem-Error"]) == (401, "unauthenticated"), name
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert message(asked, reply)
    wrong = {"scope": f"all but {needed}"} | ({"model": "another model"} if "{model}" in path else {})
    for name, key in wrong.items():
        reply = keyed.ask(asked, keyed.keys[key], body)
        assert (reply.status, reply.headers["Tandem-Error"]) == (403, "forbidden"), name
        assert message(asked, reply).startswith("this key ")
    asked = re.sub("digits/(load|unload)$", r"nobody-has-this/\1", asked)  # others ask the same Triton for digits
    for key in (f"only {needed}", "all", "digits alone"):
        reply = keyed.ask(asked, keyed.keys[key], body)
        assert reply.status != 401, key
        assert reply.status != 403 or "load" in path, key
        assert keyed.ask(asked, None, body, X_API_Key=keyed.keys[key]).status == reply.status


def message(path: str, reply: Reply) -> str:
    """Out of the body that the path's protocol has."""
    said = reply.json()["error"]
    if not path.startswith(("/v1/embeddings", "/v1/models")):
        return str(said)
    assert said["code"] == {401: "invalid_api_key", 403: "insufficient_permissions"}[reply.status]
    return str(said["message"])


@pytest.mark.parametrize("path", [path for path, needed in SCOPES_OF.items() if needed == OPEN])
@pytest.mark.parametrize("key", [None, "expired", "all"])
@pytest.mark.protocol("keys", "health and the files of the pages without a key", "supported")
def test_health_and_the_pages_own_files_need_no_key(keyed: Keyed, path: str, key: str | None) -> None:
    assert keyed.ask(filled(path)[0], key and keyed.keys[key]).status == 200


@pytest.mark.parametrize("path", UNNAMED)
def test_a_path_that_nobody_has_named_needs_a_key_before_it_is_not_found(keyed: Keyed, path: str) -> None:
    assert keyed.ask(path).status == 401
    assert keyed.ask(path, keyed.keys["expired"], b"{}").status == 401
    assert keyed.ask(path, keyed.keys["only infer"]).status == 404


# -- what is said ---------------------------------------------------------------------------------------------------------


def test_an_unknown_key_and_a_wrong_secret_are_told_the_same(keyed: Keyed) -> None:
    unknown, wrong = (keyed.ask("/v2", keyed.keys[name]).json() for name in ("unknown", "wrong secret"))
    assert unknown == wrong


def test_that_a_key_expired_or_was_revoked_is_told_to_who_has_its_secret_alone(keyed: Keyed) -> None:
    for name in ("expired", "revoked"):
        key = keyed.keys[name]
        other = key[:-1] + ("0" if key[-1] != "0" else "1")
        assert name in keyed.ask("/v2", key).json()["error"]
        assert keyed.ask("/v2", other).json() == keyed.ask("/v2", keyed.keys["unknown"]).json()


@pytest.mark.protocol("keys", "keys for some models, which learn of no others", "supported")
def test_a_key_for_some_models_learns_of_no_others(keyed: Keyed) -> None:
    key = keyed.keys["digits alone"]
    names = {row["name"] for row in keyed.ask("/v2/repository/index", key, b"").json()}
    assert names == {"digits", "digits-fp32", "digits-int8"}
    assert len(keyed.ask("/v2/repository/index", keyed.keys["all"], b"").json()) > len(names)
    for what in ("", "/config", "/stats", "/ready", "/infer"):
        body = SAMPLE if what == "/infer" else None
        texts = []
        for name in ("types.any", "types", "nobody-has-this", "digit"):
            reply = keyed.ask(f"/v2/models/{name}{what}", key, body)
            assert reply.status == 403, (name, what)
            texts.append(reply.json()["error"].replace(name, "NAME"))
        assert len(set(texts)) == 1
        for name in ("digits", "digits-int8"):
            assert keyed.ask(f"/v2/models/{name}{what}", key, body).status == 200


def test_the_paths_of_openai_and_of_images_tell_it_no_more(keyed: Keyed) -> None:
    key = keyed.keys["digits alone"]
    listed = {row["id"] for row in keyed.ask("/v1/models", key).json()["data"]}
    assert listed
    assert listed <= {"digits", "digits-fp32", "digits-int8"}
    assert listed < {row["id"] for row in keyed.ask("/v1/models", keyed.keys["all"]).json()["data"]}

    def texts(path: str, ask: Callable[[str], Reply]) -> set[str]:
        replies = {name: ask(name) for name in ("types.any", "types", "nobody-has-this")}
        assert {reply.status for reply in replies.values()} == {403}, path
        return {message(path, reply).replace(name, "NAME") for name, reply in replies.items()}

    def embed(name: str) -> Reply:
        return keyed.ask("/v1/embeddings", key, json.dumps({"model": name, "input": "x"}).encode())

    assert len(texts("/v1/embeddings", embed)) == 1
    assert len(texts("/v1/models", lambda name: keyed.ask(f"/v1/models/{name}", key))) == 1
    assert len(texts("/v1/classify", lambda name: keyed.ask(f"/v1/classify/{name}", key, b"{}"))) == 1


def test_a_refused_key_is_in_no_answer_and_in_no_log(keyed: Keyed) -> None:
    for name, key in keyed.keys.items():
        for path in ("/v2", "/metrics", "/admin/status", "/v1/models", f"/v2/models/{key}", f"/{key}?key={key}"):
            reply = keyed.ask(path, key)
            assert key[17:].encode() not in reply.body or key in path, (name, path)
    log = "\n".join(keyed.running.program.lines())
    assert not [name for name, key in keyed.keys.items() if key[17:] in log]
    assert "sha256" not in log


# -- how a key is sent ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v2", "/v2/models/digits/infer", "/admin/status", "/metrics"])
@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("Authorization: Bearer KEY", 200),
        ("authorization: bearer KEY", 200),
        ("AUTHORIZATION: BEARER    KEY  ", 200),
        ("X-Api-Key:KEY", 200),
        ("Authorization: Bearer KEY\r\nX-API-Key: KEY", 200),
        ("Authorization: Bearer KEY\r\nX-API-Key: tdm_other", 400),
        ("Authorization: Basic dXNlcjpwYXNz\r\nX-API-Key: KEY", 200),
        ("Authorization: Negotiate abc\r\nX-API-Key: KEY", 200),
        ("Authorization: Bearer eyJhbGciOi.of.a-proxy\r\nX-API-Key: KEY", 200),
        ("Authorization:\r\nX-API-Key: KEY", 200),
        ("Authorization: Basic KEY\r\nX-API-Key: tdm_other", 401),
        ("Authorization: Basic KEY\r\nX-API-Key:", 401),
        ("Authorization: Bearer OTHER\r\nX-API-Key: KEY", 400),
        ("Authorization: Bearer KEY\r\nAuthorization: Bearer KEY", 400),
        ("X-API-Key: KEY\r\nX-API-Key: KEY", 400),
        ("Authorization: Basic KEY", 401),
        ("Authorization: KEY", 401),
        ("Authorization: Bearer", 401),
        ("Authorization: Bearer ", 401),
        ("Authorization:", 401),
        ("X-API-Key: Bearer KEY", 401),
        ("X-API-Key:", 401),
        ("Authorization: Bearer KEYKEY", 401),
        ("Authorization: Bearer KEY0", 401),
        ("Authorization: Bearer KEY, Bearer KEY", 401),
        ("Authorization: BearerKEY", 401),
        ("Authorization: Bearer\tKEY", 401),
        ("Authorization: Bearer \xe9\xff" + "\x80" * 79, 401),
        ("Authorization: Bearer " + "a" * 30_000, 401),
        ("Cookie: Authorization=KEY", 401),
        ("Proxy-Authorization: Bearer KEY", 401),
        ("X-Forwarded-Authorization: Bearer KEY", 401),
        ("Authorization_: Bearer KEY", 401),
    ],
)
@pytest.mark.protocol(
    "keys",
    "a key in the query, in a cookie, or two that differ",
    "refused: a key is in one header, so that it is in no log and all readers see the same",
)
def test_a_key_counts_where_it_belongs_and_nowhere_else(keyed: Keyed, path: str, lines: str, status: int) -> None:
    body = SAMPLE if path.endswith("infer") else b""
    method = "POST" if body else "GET"
    query = "" if status == 200 and not body else "?api_key=KEY"  # which the operator's paths do not know
    head = f"{method} {path}{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{lines}\r\n\r\n"
    sent = head.replace("KEY", keyed.keys["all"]).replace("OTHER", keyed.keys["only infer"])
    reply = raw(keyed, sent.encode("latin-1") + body)
    assert reply.split(b" ", 2)[1] == str(status).encode(), reply[:300]


def raw(keyed: Keyed, request: bytes, *, is_whole: bool = False) -> bytes:
    """What comes first; the whole until the gateway closes, if that is asked for."""
    with socket.create_connection(("127.0.0.1", keyed.running.port), timeout=60) as connection:
        connection.sendall(request)
        answer = connection.recv(65536)
        while is_whole and (more := connection.recv(65536)):
            answer += more
        return answer


@pytest.mark.parametrize(
    "path", ["/v2/models/digits/infer", "/v2/repository/index", "/v1/embeddings", "/v1/classify/digits"]
)
@pytest.mark.protocol(
    "keys",
    "the body of a request without a good key, over HTTP",
    "refused: it is not read, and the connection is closed",
)
def test_a_strangers_body_is_not_waited_for_and_the_connection_is_closed(keyed: Keyed, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n"
    answer = raw(keyed, head.encode(), is_whole=True)  # and not a byte of the body
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer.lower()


def test_a_request_smuggled_behind_a_stranger_is_not_answered(keyed: Keyed) -> None:
    second = f"GET /admin/status HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {keyed.keys['all']}\r\n\r\n"
    answer = raw(keyed, f"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n{second}".encode(), is_whole=True)
    assert answer.count(b"HTTP/1.1 ") == 1


# -- priorities -------------------------------------------------------------------------------------------------------------


def test_a_priority_better_than_the_keys_is_no_mistake_and_a_wrong_one_is(keyed: Keyed) -> None:
    for priority, status in (("1", 200), ("5", 200), ("0", 400), ("6", 400), ("x", 400)):
        reply = keyed.ask("/v2/models/digits/infer", keyed.keys["only infer"], SAMPLE, Tandem_Priority=priority)
        assert reply.status == status


# -- while it runs ------------------------------------------------------------------------------------------------------------


def status_of(keyed: Keyed, key: str) -> int:
    return keyed.ask("/v2", key).status


@pytest.mark.protocol("keys", "adding and revoking keys while a gateway runs", "supported")
def test_added_revoked_and_expired_keys_count_within_two_seconds(keyed: Keyed) -> None:
    def is_let_in_for(seconds: int) -> bool:
        """Not where it was over before this machine came to look."""
        ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
        short = keyed.make("infer", expires=ends)
        was_let_in = False
        while not was_let_in and datetime.now(UTC) < ends:
            was_let_in = status_of(keyed, short) == 200
        wait_until(lambda: status_of(keyed, short) == 401, "the key expires")
        return was_let_in

    key = keyed.make("infer")
    wait_until(lambda: status_of(keyed, key) == 200, "the new key counts")
    changes.revoke(keyed.file, key, NOW)
    wait_until(lambda: status_of(keyed, key) == 401, "the revoked key is refused")
    assert EVERY_S <= 1.0  # a look; the rest is for reading
    assert any(is_let_in_for(seconds) for seconds in (3, 6, 12))


def test_a_file_that_breaks_or_vanishes_takes_no_key_away_and_is_told_in_log_and_metrics(keyed: Keyed) -> None:
    key, good = keyed.keys["all"], keyed.file.read_bytes()

    def is_readable() -> float:
        text = keyed.ask("/metrics", key).body.decode()
        return float(text.split("\ntandem_keys_readable ")[1].split("\n")[0])

    assert is_readable() == 1

    def put(text: bytes) -> None:
        """In one go: whoever reads half a file says what is wrong with that half."""
        fresh = keyed.file.with_name("fresh")
        fresh.write_bytes(text)
        fresh.replace(keyed.file.resolve())

    def said(says: str) -> list[str]:
        return [line for line in keyed.running.program.lines() if says in line]

    for breaking, says in (
        (lambda: put(good[:-20]), "not valid JSON"),
        (lambda: keyed.file.resolve().chmod(0o666), "others may write"),
        (keyed.file.resolve().unlink, "No such file"),
    ):
        breaking()
        wait_until(lambda says=says: said(says) != [], "the log says so")
        assert is_readable() == 0
        assert status_of(keyed, key) == 200
        assert status_of(keyed, keyed.keys["unknown"]) == 401
    put(good)
    wait_until(lambda: is_readable() == 1, "it is read again")
    for says in ("not valid JSON", "others may write", "No such file"):
        (line,) = said(says)
        assert "stay in force" in line


def test_a_link_that_is_turned_is_noticed_as_a_secret_in_a_cluster_is(keyed: Keyed) -> None:
    folder = keyed.file.parent
    keys = [keyed.keys["only infer"]]
    (folder / "..2").mkdir()
    keys.append(changes.add(folder / "..2" / "keys.json", "test", frozenset({"infer"}), NOW).text)

    def turn(to: str) -> None:
        (folder / "..new").symlink_to(to)
        (folder / "..new").replace(folder / "..data")

    def statuses() -> list[int]:
        return [status_of(keyed, key) for key in keys]

    assert statuses() == [200, 401]
    connection = http.client.HTTPConnection("127.0.0.1", keyed.running.port, timeout=LIMIT_S)
    connection.putrequest("POST", "/v2/models/digits/infer")
    connection.putheader("Authorization", f"Bearer {keys[0]}")
    connection.putheader("Content-Length", str(len(SAMPLE)))
    connection.putheader("Expect", "100-continue")
    connection.endheaders(SAMPLE[:10])
    goes_on = b"HTTP/1.1 100 Continue\r\n\r\n"  # it is let in, and is answered whatever becomes of its key
    assert connection.sock.recv(len(goes_on), socket.MSG_WAITALL) == goes_on
    turn("..2")
    wait_until(lambda: statuses() == [401, 200], "the other file counts")
    connection.send(SAMPLE[10:])
    assert connection.getresponse().status == 200
    connection.close()
    turn("..1")
    wait_until(lambda: statuses() == [200, 401], "the first counts again")
