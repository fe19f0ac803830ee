"""A real OpenTelemetry collector, and a real Jaeger, take the traces of a gateway and of its Triton.

What the collector writes down is played again; Jaeger gives a trace back as one, by its own API.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.decisions.traces import read_trace
from serving.gateway.request.traces import SEND_MS
from serving.ports import free_ports
from tests.gateway.collector import json_message, read
from tests.gateway.conftest import SAMPLE, gateway_before, triton_of_its_own
from tests.local.harness import Program, wait_until
from tests.telemetry.build import program

pytestmark = pytest.mark.cluster

CONFIG = """
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:PORT"}}}}
exporters: {file: {path: FILE}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [file]}}
"""


SENDER = "ab" * 8
STATE = "rojo=00f067aa0ba902b7"


@contextlib.contextmanager
def traced(folder: Path, endpoint: str, num_traces: int) -> Iterator[list[str]]:
    """Ids of traces that a gateway and its Triton send there."""
    traces = [secrets.token_hex(16) for _ in range(num_traces)]
    otel = {"endpoint": endpoint, "sample_ratio": 0, "max_tail_rps": 0}
    with (
        triton_of_its_own(folder, "--no-measure", "--otel-endpoint", endpoint) as (_, url),
        gateway_before(folder, {"cpu": [url]}, otel=otel, prices={"cpu": 0.5}) as gateway,
    ):
        for trace in traces:
            sent = {"traceparent": f"00-{trace}-{SENDER}-01", "tracestate": STATE, "Tandem-Variant": "int8"}
            assert gateway.infer(SAMPLE, headers=sent).status == 200
        yield traces


def test_a_real_collector_takes_whole_traces_and_its_file_is_a_trace_of_arrivals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SEND_MS, "100")
    port, config, written = free_ports(1)[0], tmp_path / "otelcol.yaml", tmp_path / "traces.json"
    config.write_text(CONFIG.replace("PORT", str(port)).replace("FILE", str(written)))
    collector = Program([str(program("otelcol")), f"--config=file:{config}"], tmp_path / "otelcol.log")
    try:
        collector.wait_for("Everything is ready")
        with traced(tmp_path, f"http://127.0.0.1:{port}", 3) as traces:
            wait_until(lambda: written.exists() and written.read_text().count('"compute"') >= 3, "all are written down")
            wait_until(lambda: written.read_text().count('"queue"') >= 3, "those of the gateway, too")
    finally:
        collector.end()
    lines = written.read_text().splitlines()
    spans = [span for line in lines for span in read(json_message(line.encode()))]
    for trace in traces:
        names = {span.name for span in spans if span.trace == trace}
        assert {"POST /v2/models/{model}/infer", "queue", "triton", "InferRequest", "compute"} < names
        assert {span.state for span in spans if span.trace == trace and span.service == "tandem-gateway"} == {STATE}
    assert all("resourceSpans" in json.loads(line) for line in lines)
    arrivals = read_trace(written, model="digits")
    assert [rows for _, rows in arrivals] == [1.0] * 3
    assert arrivals[0][0] == 0 < arrivals[1][0] < arrivals[2][0]


def test_jaeger_gives_a_trace_back_from_the_gateway_to_the_instance_with_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SEND_MS, "100")
    port, http, *others = free_ports(6)
    addresses = {"collector.otlp.http": port, "query.http-server": http}
    names = "query.grpc-server", "collector.otlp.grpc", "collector.grpc-server", "collector.http-server"
    options = [
        f"--{name}.host-port=127.0.0.1:{it}"
        for name, it in {**addresses, **dict(zip(names, others, strict=True))}.items()
    ]
    options += ["--admin.http.host-port=127.0.0.1:0", "--memory.max-traces=100"]
    jaeger = Program([str(program("jaeger")), *options], tmp_path / "jaeger.log")

    def told(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/api/{path}", timeout=10) as answer:
                return json.load(answer)["data"] or []
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise

    def answers() -> bool:
        assert jaeger.process.poll() is None, jaeger.lines()
        with contextlib.suppress(ConnectionError, urllib.error.URLError):
            told("services")
            return True
        return False

    def whole(trace: str) -> Any:
        found = told(f"traces/{trace}")
        return found if found and len(found[0]["spans"]) >= 6 else None

    try:
        wait_until(answers, "Jaeger answers")
        with traced(tmp_path, f"http://127.0.0.1:{port}", 2) as (trace, other):
            (found,) = wait_until(lambda: whole(trace), "all its spans are there")
            wait_until(lambda: whole(other), "those of the other, too")
        decided = json.dumps({"tandem.pool": "cpu", "tandem.variant": "int8"})
        query = urllib.parse.urlencode({"service": "tandem-gateway", "operation": "queue", "tags": decided, "limit": 9})
        assert {it["traceID"] for it in told(f"traces?{query}")} == {trace, other}
        nothing = urllib.parse.urlencode({"service": "tandem-gateway", "tags": json.dumps({"tandem.pool": "gpu"})})
        assert told(f"traces?{nothing}") == []
        assert set(told("services")) >= {"tandem-gateway", "tandem-triton"}
    finally:
        jaeger.end()
    spans = {span["operationName"]: span for span in found["spans"]}
    services = {name: found["processes"][span["processID"]]["serviceName"] for name, span in spans.items()}
    ours = ["POST /v2/models/{model}/infer", "queue", "triton"]
    theirs = ["InferRequest", "digits-int8", "compute"]
    assert services == {**dict.fromkeys(ours, "tandem-gateway"), **dict.fromkeys(theirs, "tandem-triton")}
    above = {name: [it["spanID"] for it in span["references"]] for name, span in spans.items()}
    request, queue, triton = ours
    infer, model, compute = theirs
    assert above == {
        request: [SENDER],
        **{name: [spans[request]["spanID"]] for name in (queue, triton)},
        infer: [spans[triton]["spanID"]],
        model: [spans[infer]["spanID"]],
        compute: [spans[model]["spanID"]],
    }
    tags = {tag["key"]: tag["value"] for tag in spans[queue]["tags"]}
    assert {"tandem.pool": "cpu", "tandem.variant": "int8", "tandem.rows": 1}.items() <= tags.items()
    assert tags["tandem.reason"]
    assert min(tags[f"tandem.{it}"] for it in ("predicted_s", "actual_s", "price_per_million")) > 0
    (event,) = spans[queue]["logs"]
    candidate = {field["key"]: field["value"] for field in event["fields"]}
    assert (candidate["event"], candidate["tandem.pool"], candidate["tandem.verdict"]) == (
        "tandem.candidate",
        "cpu",
        "chosen",
    )
