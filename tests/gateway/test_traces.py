"""Traces of requests at an OpenTelemetry collector: gateway, queue, Triton and its instance, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    http_attributes,
    rpc_attributes,
    server_attributes,
    url_attributes,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as pb

from serving.errors import UserError
from serving.gateway.app import Gateway
from serving.gateway.request import spans
from serving.gateway.request.exchange import identity
from serving.gateway.request.traces import MAX_TRACES, SEND_MS, Trace, Traces, Waiting
from serving.ports import free_ports
from serving.settings import GatewaySettings, OtelSettings
from tests.gateway.collector import Collector, Span, collecting
from tests.gateway.conftest import SAMPLE, triton_of_its_own
from tests.gateway.grpc.conftest import Speaking, speaking_before
from tests.gateway.odd_triton import GOOD, OddTriton, ask, gateway_of, until
from tests.local.harness import wait_until

SENDER = "00f067aa0ba902b7"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
INTERNAL, SERVER, CLIENT = 1, 2, 3
KNOWN = {
    value
    for module in (error_attributes, http_attributes, rpc_attributes, server_attributes, url_attributes)
    for value in vars(module).values()
    if isinstance(value, str)
}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def named(spans: list[Span]) -> dict[str, Span]:
    found = {span.name: span for span in spans}
    assert len(found) == len(spans), spans
    return found


# -- with a real Triton ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    """Nothing is traced but what its sender traces."""
    folder = tmp_path_factory.mktemp("traced")
    otel = {"endpoint": collector.endpoint, "sample_ratio": 0, "max_tail_rps": 0}
    with (
        triton_of_its_own(folder, "--no-measure", "--otel-endpoint", collector.endpoint) as (_, url),
        speaking_before(folder, {"cpu": [url]}, prices={"cpu": 0.5}, otel=otel) as running,
    ):
        yield running


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_one_trace_is_gateway_queue_triton_and_the_models_instance(
    protocol: str, traced: Speaking, collector: Collector
) -> None:
    for flags, trace in (("00", secrets.token_hex(16)), ("01", traced_id := secrets.token_hex(16))):
        sent = {"traceparent": f"00-{trace}-{SENDER}-{flags}", "tracestate": STATE}
        if protocol == "http":
            answered = traced.running.infer(SAMPLE, headers=sent)
            assert answered.status == 200
            receipt = {name.lower(): value for name, value in answered.headers.items()}
        else:
            request = pb.ModelInferRequest(model_name="digits", raw_input_contents=[bytes(64 * 4)])
            request.inputs.add(name="image", datatype="FP32", shape=[1, 1, 8, 8])
            with traced.stub() as stub:
                _, call = stub.ModelInfer.with_call(request, metadata=list(sent.items()))
            receipt = dict(call.trailing_metadata())
        assert receipt["tandem-request-id"] == trace
    variant = receipt["tandem-variant"]
    found = collector.of(traced_id, 6)
    assert {span.trace for span in collector.spans if span.trace == trace or span.parent == SENDER} >= {traced_id}
    by_name = named(found)
    entry = "POST /v2/models/{model}/infer" if protocol == "http" else "inference.GRPCInferenceService/ModelInfer"
    model = f"digits-{variant}"
    assert set(by_name) == {entry, "queue", "triton", "InferRequest", model, "compute"}
    assert {name: span.parent for name, span in by_name.items()} == {
        entry: SENDER,
        "queue": by_name[entry].id,
        "triton": by_name[entry].id,
        "InferRequest": by_name["triton"].id,
        model: by_name["InferRequest"].id,
        "compute": by_name[model].id,
    }
    assert {name: span.service for name, span in by_name.items()} == {
        name: "tandem-gateway" if name in (entry, "queue", "triton") else "tandem-triton" for name in by_name
    }
    request_span, queue, triton = by_name[entry], by_name["queue"], by_name["triton"]
    assert (request_span.kind, queue.kind, triton.kind) == (SERVER, INTERNAL, CLIENT)
    assert request_span.start_ns == queue.start_ns <= queue.end_ns == triton.start_ns
    assert triton.end_ns <= request_span.end_ns
    assert (
        triton.start_ns <= by_name["compute"].start_ns < triton.end_ns
    )  # Triton may note its end after it has answered
    assert not any(span.is_error for span in found)
    assert {span.state for span in found if span.service == "tandem-gateway"} == {STATE}
    of_decision = {name: queue.attributes[f"tandem.{name}"] for name in ("pool", "variant", "reason", "rows")}
    assert of_decision == {"pool": "cpu", "variant": variant, "reason": receipt["tandem-reason"], "rows": 1}
    assert queue.attributes["tandem.predicted_s"] > 0
    assert 0 < queue.attributes["tandem.actual_s"] <= request_span.took_s
    assert queue.attributes["tandem.price_per_million"] > 0
    ((event, candidate),) = queue.events
    assert (event, candidate["tandem.pool"], candidate["tandem.verdict"]) == ("tandem.candidate", "cpu", "chosen")
    assert candidate["tandem.predicted_s"] == queue.attributes["tandem.predicted_s"]
    ours = {"tandem.model": "digits", "tandem.outcome": "ok", "tandem.kept_by": "sampled", "tandem.rows": 1}
    known = {name: value for name, value in request_span.attributes.items() if name not in ours}
    assert {**request_span.attributes, **ours} == request_span.attributes
    if protocol == "http":
        assert known == {
            "http.request.method": "POST",
            "http.route": "/v2/models/{model}/infer",
            "http.response.status_code": 200,
            "url.path": "/v2/models/digits/infer",
            "url.scheme": "http",
        }
    else:
        assert known == {"rpc.system.name": "grpc", "rpc.method": entry, "rpc.response.status_code": "OK"}
    assert known.keys() <= KNOWN
    assert {name for name in triton.attributes if not name.startswith("tandem.")} <= KNOWN


@pytest.mark.slow
@pytest.mark.triton
def test_what_its_sender_does_not_trace_leaves_no_span(traced: Speaking, collector: Collector) -> None:
    untraced = secrets.token_hex(16)
    assert traced.running.infer(SAMPLE, headers={"traceparent": f"00-{untraced}-{SENDER}-00"}).status == 200
    of_nobody = traced.running.infer(SAMPLE).headers["Tandem-Request-Id"]
    later = secrets.token_hex(16)
    assert traced.running.infer(SAMPLE, headers={"traceparent": f"00-{later}-{SENDER}-01"}).status == 200
    assert len(collector.of(later, 6)) == 6
    assert not {span.trace for span in collector.spans} & {untraced, of_nobody}
    wait_until(
        lambda: 'tandem_traces_total{outcome="sent"}' in traced.running.ask("/metrics").body.decode(),
        "the gateway has the collector's answer",
    )


@pytest.mark.slow
@pytest.mark.triton
def test_a_bucket_of_a_histogram_names_the_last_trace_that_fell_into_it(traced: Speaking) -> None:
    trace = secrets.token_hex(16)
    assert traced.running.infer(SAMPLE, headers={"traceparent": f"00-{trace}-{SENDER}-01"}).status == 200
    assert traced.running.infer(SAMPLE).status == 200
    text = traced.running.ask("/metrics", headers={"Accept": "application/openmetrics-text"}).body.decode()
    exemplars = {
        (sample.name, sample.exemplar.labels["trace_id"]): (float(sample.labels["le"]), sample.exemplar.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None
    }
    for name in ("request", "queue", "backend"):
        bound_s, value_s = exemplars[f"tandem_{name}_seconds_bucket", trace]
        assert 0 < value_s <= bound_s
    assert trace not in traced.running.ask("/metrics").body.decode()


# -- which are kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.1, 5, 50), (1.0, 200, 200)])
def test_the_head_sample_is_by_the_id_of_the_request(ratio: float, least: int, most: int) -> None:
    sampled = [Traces(OtelSettings(endpoint="http://c", sample_ratio=ratio), Kept()) for _ in range(2)]
    ids = [identity({})[0] for _ in range(200)]
    taken = [[one for one in ids if traces.takes(one)] for traces in sampled]
    assert least <= len(taken[0]) <= most
    assert taken[0] == taken[1]


class Kept:
    """Takes them all."""

    def send(self, _: Any) -> str:
        return ""

    def close(self) -> None:
        pass


def test_of_many_that_fail_at_once_as_many_are_kept_as_a_second_may_have() -> None:
    traces = Traces(OtelSettings(endpoint="http://c", max_tail_rps=5), Kept())
    assert sum(traces.has_tail_room(traces._tail_at) for _ in range(100)) == 5
    assert sum(traces.has_tail_room(traces._tail_at + 0.11) for _ in range(10)) == 5
    none = Traces(OtelSettings(endpoint="http://c", max_tail_rps=0), Kept())
    assert not none.has_tail_room(none._tail_at + 100)


def test_one_that_fills_the_room_loses_its_own_traces_and_no_others() -> None:
    """A tenant, or a client whose requests are all traced by itself."""
    traces, waiting = Traces(OtelSettings(endpoint="http://c"), Kept()), Waiting()
    others = [Trace(tenant="small"), Trace(kept_by="error"), Trace(parent=b"1", tenant="other")]
    flood = [Trace(parent=b"%d" % number) for number in range(MAX_TRACES + 3)]
    for trace in [*others[:1], *flood[:500], *others[1:], *flood[500:]]:
        traces.add(trace)
        waiting.add(trace)
    assert traces.num_lost == waiting.num_dropped == len(flood) + len(others) - MAX_TRACES
    taken = waiting.take(8)
    assert [trace for trace in taken if trace in others] == others, "each has its turn"
    while more := waiting.take(100):
        taken += more
    assert len(waiting) == 0
    assert taken[1] is flood[waiting.num_dropped], "the oldest are gone"
    assert len(taken) == MAX_TRACES


def test_where_the_room_is_full_of_as_many_tenants_the_oldest_trace_goes_and_the_others_are_sent() -> None:
    waiting = Waiting()
    for number in range(MAX_TRACES + 3):
        waiting.add(Trace(tenant=f"t{number}"))
    assert (len(waiting), waiting.num_dropped) == (MAX_TRACES, 3)
    taken = waiting.take(2 * MAX_TRACES)
    assert [trace.tenant for trace in taken] == [f"t{number}" for number in range(3, MAX_TRACES + 3)]
    assert len(waiting) == 0


@pytest.mark.parametrize(
    ("said", "passed_on"),
    [
        ([STATE], STATE),
        (["a=1", "b=2"], "a=1,b=2"),
        (["", "a=1"], ",a=1"),
        (["a=" + "x" * 600], None),
        (["a=\xe9"], None),
        (["no list"], None),
        ([",".join(f"m{number}=1" for number in range(33))], None),
    ],
)
def test_the_senders_state_goes_on_as_it_came(said: list[str], passed_on: str | None, collector: Collector) -> None:
    """Where its `traceparent` goes; two fields of it are one list, and what cannot be passed on whole is left out."""
    parent = f"00-{(trace := secrets.token_hex(16))}-{SENDER}-01"

    async def heads() -> list[bytes]:
        triton = OddTriton()
        otel = {"endpoint": collector.endpoint, "sample_ratio": 0, "max_tail_rps": 0}
        async with gateway_of({"cpu": [triton]}, otel=otel) as gateway:
            triton.heads.clear()
            state = "\r\ntracestate: ".join(said)
            assert (await ask(gateway, traceparent=parent, tracestate=state)).status == 200
            assert (await ask(gateway, tracestate=STATE)).status == 200
        return triton.heads

    lines = [[line for line in head.split(b"\r\n") if line.startswith(b"trace")] for head in uvloop.run(heads())]
    traced, untraced = lines
    assert untraced == []
    assert traced[0].startswith(f"traceparent: 00-{trace}-".encode())
    assert traced[1:] == ([] if passed_on is None else [f"tracestate: {passed_on}".encode()])
    assert len(collector.of(trace, 3)) == 3


def test_with_opentelemetry_turned_off_nothing_is_traced_and_nothing_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")

    async def told() -> bytes:
        otel = {"endpoint": "http://127.0.0.1:1", "sample_ratio": 1.0}
        async with gateway_of({"cpu": [OddTriton()]}, otel=otel) as gateway:
            assert (await ask(gateway)).status == 200
            return await gateway.metrics.text()

    assert b"tandem_traces" not in uvloop.run(told())
    assert "OTEL_SDK_DISABLED" in caplog.text


def test_what_fails_and_what_was_mispredicted_is_kept_though_nobody_sampled_it(collector: Collector) -> None:
    async def infer(body: bytes) -> tuple[int, Any]:
        await asyncio.sleep(wait_s[-1])
        return (500, {"error": "no"}) if b"9" in body else (200, GOOD)

    wait_s, wanted = [0.0], secrets.token_hex(16)

    async def told() -> tuple[str, str]:
        otel = {"endpoint": collector.endpoint, "sample_ratio": 0.0}
        triton = OddTriton(infer)
        async with gateway_of({"cpu": [triton]}, otel=otel) as gateway:
            assert (await ask(gateway)).status == 200
            wait_s.append(0.5)
            slow = await ask(gateway)
            failed = await ask(gateway, b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,9]}]}')
            wrong = await ask(gateway, b"{")
            traced = await ask(gateway, b"{", traceparent=f"00-{wanted}-{SENDER}-01")
        assert [it.status for it in (slow, failed, wrong, traced)] == [200, 500, 400, 400]
        return slow.headers["tandem-request-id"], failed.headers["tandem-request-id"]

    slow, failed = uvloop.run(told())
    by_name = named(collector.of(slow, 3))
    assert by_name["POST /v2/models/{model}/infer"].attributes["tandem.kept_by"] == "misprediction"
    attributes = by_name["queue"].attributes
    assert attributes["tandem.actual_s"] > 2 * attributes["tandem.predicted_s"]
    by_name = named(collector.of(failed, 2))
    root = by_name["POST /v2/models/{model}/infer"]
    assert root.is_error
    said = {name: root.attributes[name] for name in ("tandem.kept_by", "tandem.outcome", "error.type")}
    assert said == {"tandem.kept_by": "error", "tandem.outcome": "backend_error", "error.type": "internal"}
    assert root.attributes["http.response.status_code"] == 500
    (root,) = collector.of(wanted, 1)
    assert (root.parent, root.is_error, root.attributes["error.type"]) == (SENDER, False, "bad_request")
    wrong = [span for span in collector.spans if span.attributes.get("http.response.status_code") == 400]
    assert wrong == [root], "what is the client's fault is kept only where somebody sampled it"


# -- a collector that is away, and one that cannot be ------------------------------------------------------------------


def test_a_collector_that_is_away_costs_no_request_and_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "SEND_S", 1.0)
    monkeypatch.setenv(SEND_MS, "100")
    port = free_ports(1)[0]
    otel = {"endpoint": f"http://127.0.0.1:{port}", "sample_ratio": 1.0}

    async def told() -> None:
        async with gateway_of({"cpu": [OddTriton()]}, otel=otel) as gateway:
            traces = gateway.traces
            assert traces is not None
            assert [(await ask(gateway)).status for _ in range(3)] == [200] * 3
            await until(lambda: traces.num_lost == 3, "they are lost")
            assert (await ask(gateway)).status == 200
            await until(lambda: traces.num_lost == 4, "this one, too")
            assert (await gateway.metrics.text()).count(b'tandem_traces_total{outcome="lost"} 4.0') == 1
            with collecting(port) as collector:
                trace = (await ask(gateway)).headers["tandem-request-id"]
                await until(lambda: traces.num_sent == 1, "it is back")
                assert {span.trace for span in collector.spans} == {trace}

    with caplog.at_level(logging.WARNING, "tandem"):
        uvloop.run(told())
    said = [record for record in caplog.records if "OpenTelemetry" in record.getMessage()]
    assert [record.levelname for record in said] == ["ERROR", "WARNING"]
    assert str(port) in said[0].getMessage()


def test_without_its_packages_a_gateway_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "serving.gateway.request.spans", raising=False)
    pools = {"cpu": {"urls": ["http://127.0.0.1:1"], "device": "cpu"}}
    settings = GatewaySettings.model_validate({"version": 1, "pools": pools, "otel": {"endpoint": "http://c"}})

    async def made() -> None:
        Gateway(settings, admin_here=True)

    with pytest.raises(UserError, match=r"tandem-serving\[otel\]"):
        uvloop.run(made())


@pytest.mark.parametrize(
    ("endpoint", "meant"),
    [
        ("http://collector", "http://collector:4318"),
        ("https://otlp.example.com/tenant/", "https://otlp.example.com:443/tenant"),
        ("http://[::1]:4000/v1/traces", "http://[::1]:4000"),
    ],
)
def test_the_endpoint_is_the_collectors_base(endpoint: str, meant: str) -> None:
    assert OtelSettings(endpoint=endpoint).endpoint == meant


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "grpc://c", "http://user:word@c", "http://c:99999", "http://c?a=b"]
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        OtelSettings(endpoint=endpoint)
