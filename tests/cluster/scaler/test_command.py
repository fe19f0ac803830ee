"""What the command line is refused for, before anything listens: one line that says the way out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from serving.cluster.scaler.command import Options, _key_reader, run
from serving.errors import UserError


@pytest.fixture
def options(tmp_path: Path) -> Options:
    config = tmp_path / "tandem.yaml"
    config.write_text(json.dumps({"version": 1, "pools": {"cpu": {"urls": ["http://127.0.0.1:1"], "device": "cpu"}}}))
    return Options(config, ("http://127.0.0.1:9",))


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines", "tdm_\x00", " \n"])
@pytest.mark.parametrize("where", ["file", "environment"])
def test_a_key_that_no_header_can_carry_is_refused_at_the_start(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, where: str
) -> None:
    if where == "file":
        (tmp_path / "key").write_text(key, encoding="utf-8")
        options = replace(options, key_file=tmp_path / "key")
    else:
        monkeypatch.setenv("TANDEM_API_KEY", key.replace("\x00", "\x07"))  # no environment holds a NUL
    with pytest.raises(UserError, match=r"hold.*API"):
        run(options)


def test_the_line_feed_behind_a_key_does_not_belong_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "tdm_0123\n")
    assert _key_reader(None)() == "tdm_0123"


def test_a_file_that_is_being_exchanged_leaves_the_last_key_in_force(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("tdm_one\n")
    key = _key_reader(file)
    assert key() == "tdm_one"
    for content in ("", "a\nb", "ü"):
        file.write_text(content)
        assert key() == "tdm_one"
    file.unlink()
    assert key() == "tdm_one"
    file.write_text("tdm_two")
    assert key() == "tdm_two"


def test_one_port_for_both_is_refused(options: Options) -> None:
    with pytest.raises(UserError, match=r"--port .*--grpc-port .*9091"):
        run(replace(options, grpc_port=9091))


@pytest.mark.parametrize(
    "url", ["localhost:9090", "https://a:9090", "http://a", "http://a:9090/metrics", "http://a:1#b"]
)
def test_what_is_no_address_of_gateways_is_refused_with_the_form(options: Options, url: str) -> None:
    with pytest.raises(UserError, match=r"form.*http://HOST:PORT"):
        run(replace(options, gateways=(url,)))
