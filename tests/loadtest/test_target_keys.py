"""Load tests of a gateway that wants API keys: the key comes out of the environment and goes to gateways alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from loadtest.errors import CampaignError
from loadtest.target import VARIABLE, Gateway, credentials, find_gateway
from serving.keys import changes
from tests.gateway.conftest import Running, gateway_before


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, str]]]:
    """A gateway with keys, whose Triton is not there; and a key for each scope."""
    folder: Path = tmp_path_factory.mktemp("keyed")
    file, now = folder / "keys.json", datetime.now(UTC)
    keys = {scope: changes.add(file, scope, frozenset({scope}), now).text for scope in ("infer", "admin", "metrics")}
    pools = {"cpu": ["http://127.0.0.1:9"]}
    with gateway_before(folder, pools, "--keys", str(file), ready=False) as running:
        yield running, keys


def gateway(keyed: tuple[Running, dict[str, str]], *, has_key: bool = True) -> Gateway:
    return Gateway(f"http://{keyed[0].url}", has_key=has_key)


def test_without_a_key_it_is_told_why_and_with_one_it_is_let_in(
    keyed: tuple[Running, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert "API key" in (gateway(keyed).refusal_of_key() or "")
    monkeypatch.setenv(VARIABLE, keyed[1]["metrics"])
    assert "no scope 'infer'" in (gateway(keyed).refusal_of_key() or "")
    assert gateway(keyed).num_requests() == 0
    monkeypatch.setenv(VARIABLE, keyed[1]["admin"])
    assert gateway(keyed).status() is not None
    monkeypatch.setenv(VARIABLE, keyed[1]["infer"])
    assert gateway(keyed).refusal_of_key() is None
    assert gateway(keyed, has_key=False).refusal_of_key() is not None


@pytest.mark.parametrize("text", ["tdm a", "tdm\r\nX: y", "tdm\n", "schlüssel", "\x7f"])
def test_a_text_that_would_be_another_header_is_refused_and_not_told(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(CampaignError) as refused:
        credentials()
    assert VARIABLE in str(refused.value)
    assert text not in str(refused.value)


def test_a_gateway_that_does_not_let_us_in_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    class Locked(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_health = self.path == "/health/ready"
            body = b'{"ready": true}' if is_health else b'{"error": "no key"}'
            self.send_response(200 if is_health else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.delenv(VARIABLE, raising=False)
    server = HTTPServer(("127.0.0.1", 0), Locked)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(CampaignError, match=VARIABLE) as refused:
            find_gateway(f"http://127.0.0.1:{server.server_port}")
        assert refused.value.exit_code == 2
    finally:
        server.shutdown()
        server.server_close()
