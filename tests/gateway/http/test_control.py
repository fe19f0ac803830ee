"""Health, metadata, metrics and status, and who may see them."""

from __future__ import annotations

import io
import socket
import sys
from contextlib import redirect_stderr
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from serving.cli import main
from tests.gateway.conftest import SAMPLE, TANDEM, Running, gateway_before, write_settings
from tests.local.harness import Program, free_ports, wait_until

pytestmark = pytest.mark.slow  # starts processes, or computes for seconds: not in `make check`


@pytest.mark.triton
def test_health_answers_in_json_with_the_status(gateway: Running) -> None:
    for path, body in [
        ("/health/live", {"live": True}),
        ("/health/ready", {"ready": True}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/digits/ready", {"name": "digits", "ready": True}),
    ]:
        reply = gateway.ask(path)
        assert (reply.status, reply.json()) == (200, body)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/v2/models/nobody", 404, "not_found"),
        ("/v2/models/nobody/ready", 404, "not_found"),
        ("/v2/models/digits/versions/7", 404, "not_found"),
        ("/v2/models/digits/versions/7/ready", 404, "not_found"),
        ("/v2/models/digits/versions/x/config", 404, "not_found"),
        ("/nothing", 404, "not_found"),
        ("/v2/trace/setting", 501, "unsupported"),
        ("/v2/logging", 501, "unsupported"),
        ("/v2/cudasharedmemory/status", 501, "unsupported"),
        ("/v2/repository/index", 405, "bad_request"),
    ],
)
def test_errors_have_the_bodies_that_v2_clients_read(gateway: Running, path: str, status: int, word: str) -> None:
    reply = gateway.ask(path)
    assert (reply.status, reply.headers["Tandem-Error"]) == (status, word)
    assert list(reply.json()) == ["error"]


@pytest.mark.triton
@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/admin/decisions?limti=3", 400, "'limit'"),
        ("/admin/decisions?limit=3&limit=4", 400, "more than once"),
        ("/admin/decisions?limit=3&id=", 200, ""),
        ("/admin/status?pool=cpu", 400, "it takes none"),
        ("/admin/cost?form=csv", 400, "by, since"),
        ("/v2/models/digits?trace=1", 200, ""),  # as with Triton: what a proxy wanted
        ("/v1/models?api-version=2024-06-01", 200, ""),
        ("/health/ready?probe=1", 200, ""),
    ],
)
def test_a_query_parameter_that_nobody_knows_is_an_error_where_the_path_is_tandems_own(
    gateway: Running, path: str, status: int, told: str
) -> None:
    reply = gateway.ask(path)
    assert (reply.status, told.encode() in reply.body) == (status, True)


@pytest.mark.triton
def test_a_variants_own_name_never_shows_under_the_public_one(gateway: Running) -> None:
    for path in ("/v2/models/digits", "/v2/models/digits/config", "/v2/models/digits/stats"):
        reply = gateway.ask(path)
        assert reply.status == 200
        assert b'"digits-' not in reply.body, path


@pytest.mark.triton
def test_the_status_says_what_is_served_where_and_by_which_triton(gateway: Running) -> None:
    status = gateway.ask("/admin/status").json()
    assert (status["version"], status["closing"]) == (1, False)
    pool = status["pools"]["cpu"]
    assert (pool["device"], pool["state"]) == ("cpu", "ready")
    assert datetime.fromisoformat(pool["since"]).tzinfo is UTC
    assert (pool["share"], pool["queued"], pool["price_per_hour"]) == (1.0, 0, None)
    assert pool["demand_replicas"] >= pool["demand_only_replicas"] >= 0.0
    assert pool["servers"][0]["triton"].startswith("2.")
    assert pool["servers"][0]["health"] == "well"
    assert {v["name"] for v in status["models"]["digits"]["variants"]} == {"digits-fp32", "digits-int8"}
    assert status["models"]["digits"]["public"]["pool"] == "cpu"


@pytest.mark.triton
def test_metrics_count_requests_by_how_they_ended(gateway: Running) -> None:
    def count(outcome: str) -> float:
        text = gateway.ask("/metrics").body.decode()
        rows = [r for r in text.splitlines() if r.startswith("tandem_requests_total{") and f'outcome="{outcome}"' in r]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    before = {outcome: count(outcome) for outcome in ("ok", "client_error", "expired")}
    gateway.infer(SAMPLE)
    gateway.infer(SAMPLE)
    gateway.infer(b"not json")
    gateway.infer(SAMPLE, "nobody")
    gateway.infer(SAMPLE, headers={"Tandem-Deadline-Ms": "0.001"})
    assert {o: count(o) - was for o, was in before.items()} == {"ok": 2, "client_error": 2, "expired": 1}
    text = gateway.ask("/metrics").body.decode()
    assert 'model="nobody"' not in text  # labels come from what is served, not from clients
    for name in ("request", "queue", "backend"):
        assert f'tandem_{name}_seconds_bucket{{le="0.001",model="digits",pool="cpu"' in text
    assert 'tandem_pool_state{pool="cpu",state="ready"} 1.0' in text
    assert 'tandem_in_flight{pool="cpu"}' in text
    assert 'tandem_ready_servers{pool="cpu"} 1.0' in text
    assert "tandem_build_info{version=" in text


PLAIN, PLAIN_1 = "text/plain; version=0.0.4; charset=utf-8", "text/plain; version=1.0.0; charset=utf-8"
OPEN, OPEN_0 = (f"application/openmetrics-text; version={v}; charset=utf-8" for v in ("1.0.0", "0.0.1"))


@pytest.mark.triton
@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, PLAIN),
        ("*/*", PLAIN),
        ("text/html,application/xml;q=0.9,*/*;q=0.8", PLAIN),
        ("text/plain", PLAIN_1),
        ("text/plain;version=0.0.4", PLAIN),
        ("application/openmetrics-text", OPEN),
        ("Application/OpenMetrics-Text; Version=1.0.0", OPEN),
        ('application/openmetrics-text; version="0.0.1"', OPEN_0),
        ("application/openmetrics-text;version=9.9.9", PLAIN),
        ("application/openmetrics-text;q=0", PLAIN),
        ("application/openmetrics-text;q=much, text/plain;version=0.0.4;q=0.1", PLAIN),
        ("text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.6", OPEN),
        ("text/plain;version=0.0.4;q=0.7, application/openmetrics-text;q=0.6", PLAIN),
        (  # of Prometheus 3
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OPEN,
        ),
        (  # of Prometheus 2
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OPEN,
        ),
    ],
)
def test_metrics_are_written_as_the_scraper_likes_them(gateway: Running, accept: str | None, kind: str) -> None:
    reply = gateway.ask("/metrics", headers={} if accept is None else {"Accept": accept})
    assert (reply.status, reply.headers["Content-Type"], reply.headers["Vary"]) == (200, kind, "Accept")
    text = reply.body.decode()
    read = openmetrics_parser if "openmetrics" in kind else text_parser
    found = {family.name: family for family in read.text_string_to_metric_families(text)}
    assert text.endswith("# EOF\n") == ("openmetrics" in kind)
    assert (found["tandem_requests"].type, found["tandem_request_seconds"].type) == ("counter", "histogram")
    assert {sample.name for sample in found["tandem_requests"].samples} == {"tandem_requests_total"}


def test_a_gateway_without_its_triton_is_live_but_not_ready_and_says_so(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    with gateway_before(tmp_path, {"cpu": [nowhere]}, ready=False) as running:
        for path in ("/health/ready", "/v2/health/ready", "/v2/models/digits/ready"):
            reply = running.ask(path)
            assert (reply.status, reply.headers["Retry-After"]) == (503, "1"), path
        reply = running.infer(SAMPLE)
        assert (reply.status, reply.headers["Tandem-Error"], reply.headers["Retry-After"]) == (503, "not_ready", "1")
        assert running.ask("/admin/status").json()["pools"]["cpu"]["state"] == "down"


def test_an_open_address_needs_the_words_and_shows_no_admin_paths(tmp_path: Path) -> None:
    config = write_settings(tmp_path / "tandem.yaml", {"cpu": ["http://127.0.0.1:1"]})
    port, admin = free_ports(2)
    words = ["gateway", "--config", str(config), "--host", "0.0.0.0", "--port", str(port)]
    assert "--insecure-no-auth" in refusal(words)
    opened = Program([*TANDEM, *words, "--insecure-no-auth", "--admin-port", str(admin)], tmp_path / "opened.log")
    try:
        public, private = Running(opened, port), Running(opened, admin)

        def live() -> bool:
            try:
                return private.ask("/health/live").status == 200
            except OSError:
                return False

        wait_until(live, "the admin listener answers")
        for path in ("/", "/ui/page.js", "/metrics", "/admin/status", "/docs", "/openapi.json"):
            assert public.ask(path).status == 404, path
            assert private.ask(path).status == 200, path
        assert private.infer(SAMPLE).status == 404
        forbidden = public.ask("/v2/repository/models/digits/load", b"{}")
        assert (forbidden.status, "--admin-port" in forbidden.json()["error"]) == (403, True)
        assert private.ask("/v2/repository/models/digits/load", b"{}").status == 503  # no Triton answers here
    finally:
        assert opened.end() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("version: 1\npolls: {}\n", "did you mean 'pools'?"), ("version: [", "not valid YAML")],
)
def test_a_wrong_configuration_is_one_line_and_exit_code_2(tmp_path: Path, text: str | None, said: str) -> None:
    config = tmp_path / "tandem.yaml"
    if text is not None:
        config.write_text(text)
    assert said in refusal(["gateway", "--config", str(config)])


def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    config = write_settings(tmp_path / "tandem.yaml", {"cpu": ["http://127.0.0.1:1"]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(["gateway", "--config", str(config), "--port", str(port)])
        assert f"{port} on 127.0.0.1" in said
        assert "--port" in said


def refusal(words: list[str]) -> str:
    """The one line that `tandem` with these words ends with."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        patch.setattr(sys, "argv", ["tandem", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    [line] = said.getvalue().splitlines()
    return line
