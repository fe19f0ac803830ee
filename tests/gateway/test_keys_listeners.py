"""Where keys are needed before a gateway starts, and what is where when others can reach it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UserError
from serving.gateway import serve
from serving.keys import changes
from serving.keys.key import ADMIN, INFER, METRICS, OWN_KEY, SCOPES, make_own
from tests.gateway.conftest import Reply, Running, gateway_before, write_settings
from tests.local.harness import free_ports

NOWHERE = {"cpu": ["http://127.0.0.1:9"]}


def make(file: Path, *scopes: str) -> str:
    return changes.add(file, "test", frozenset(scopes), datetime.now(UTC)).text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": "0.0.0.0"}, ["--host 0.0.0.0", "no API keys", "--keys", "--insecure-no-auth"]),
        ({"host": "::"}, ["--host ::", "--insecure-no-auth"]),
        ({"host": "0.0.0.0", "grpc_port": 1}, ["--insecure-no-auth"]),
        ({"admin_host": "0.0.0.0", "admin_port": 1}, ["--admin-host 0.0.0.0", "--insecure-no-auth"]),
        ({"keys": "good", "insecure_no_auth": True}, ["--keys and --insecure-no-auth contradict"]),
        ({"keys": "none"}, ["none", "No such file", "tandem keys add"]),
        ({"keys": "broken"}, ["broken, line 1", "tandem keys add"]),
        ({"keys": "newer"}, ["version 2", "use a newer Tandem"]),
        ({"keys": "writable"}, ["others may write", "chmod go-w"]),
        ({"keys": "misspelt"}, ["keys[0]: unknown key 'expire'", "did you mean 'expires'?"]),
    ],
)
def test_a_gateway_that_would_be_open_or_has_no_good_keys_does_not_start(
    tmp_path: Path, options: dict[str, Any], says: list[str]
) -> None:
    make(tmp_path / "good", INFER)
    good = (tmp_path / "good").read_text()
    (tmp_path / "broken").write_text("{")
    (tmp_path / "newer").write_text('{"version": 2}')
    (tmp_path / "writable").write_text(good)
    (tmp_path / "writable").chmod(0o664)
    (tmp_path / "misspelt").write_text(good.replace("expires", "expire"))
    if "keys" in options:
        options["keys"] = tmp_path / options["keys"]
    with pytest.raises(UserError) as refused:
        serve.run(serve.Options(write_settings(tmp_path / "tandem.yaml", NOWHERE), **options))
    assert [word for word in says if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    "value",
    ["", "x", "tdm_0:1", make_own()[0], make_own()[1] + "0"],
    ids=[
        "nothing",
        "a word",
        "half of one",
        "the key itself",
        "a digit too many",
    ],  # those that are made differ each time
)
def test_a_key_of_whoever_started_it_is_what_tandem_up_makes_or_an_error_that_does_not_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    make(tmp_path / "keys.json", INFER)
    monkeypatch.setenv(OWN_KEY, value)
    config = write_settings(tmp_path / "tandem.yaml", NOWHERE)
    with pytest.raises(UserError, match=OWN_KEY) as refused:
        serve.run(serve.Options(config, keys=tmp_path / "keys.json"))
    assert not value or value not in str(refused.value)
    monkeypatch.setenv(OWN_KEY, make_own()[1])
    with pytest.raises(UserError, match="--keys"):
        serve.run(serve.Options(config))


def test_on_an_open_address_the_operators_paths_are_on_the_admin_listener_and_want_keys_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, port = tmp_path / "keys.json", free_ports(1)[0]
    keys = {scope: make(file, scope) for scope in SCOPES} | {"all": make(file, *SCOPES)}
    keys["up"], told = make_own()
    monkeypatch.setenv(OWN_KEY, told)
    options = ["--host", "0.0.0.0", "--keys", str(file), "--admin-port", str(port)]
    with gateway_before(tmp_path, NOWHERE, *options, ready=False) as public:
        admin = Running(public.program, port)

        def ask(listener: Running, path: str, key: str | None = None) -> Reply:
            return listener.ask(path, headers={} if key is None else {"X-API-Key": keys[key]})

        for path in ("/", "/docs", "/openapi.json", "/ui/page.js"):
            assert (ask(public, path, "all").status, ask(admin, path).status) == (404, 200), path
        for path, scope in (("/metrics", METRICS), ("/admin/status", ADMIN)):
            assert [ask(public, path, key).status for key in (None, "all")] == [401, 404]
            assert [ask(admin, path, key).status for key in (None, INFER, scope, "all")] == [401, 403, 200, 200]
        assert [ask(admin, "/v2/models/digits", key).status for key in (None, "all")] == [401, 404]
        assert [ask(admin, path, "up").status for path in ("/admin/status", "/metrics")] == [200, 403]
        assert [ask(listener, "/health/live").status for listener in (public, admin)] == [200, 200]
        said = "\n".join(public.program.lines()).encode() + ask(admin, "/admin/status", "all").body
        assert not [key for key in keys.values() if key[17:].encode() in said]
