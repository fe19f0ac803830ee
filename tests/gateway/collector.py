"""A collector of traces: it reads OTLP as the protocol has it, from protobuf (our SDK) or JSON (Triton)."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from serving.gateway.request.traces import SEND_MS
from tests.local.harness import wait_until


@dataclass(frozen=True, slots=True)
class Span:
    """Ids are hexadecimal; `events` are names, with attributes."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    is_error: bool
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    state: str = ""
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def took_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Collector(ThreadingHTTPServer):
    """`status` is what it answers; `headers` are of the last message."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        self.status = 200
        self.headers: Mapping[str, str] = {}
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def of(self, trace: str, num_spans: int) -> list[Span]:
        """Once there are so many."""

        def found() -> list[Span] | None:
            spans = [span for span in list(self.spans) if span.trace == trace]
            return spans if len(spans) >= num_spans else None

        return wait_until(found, f"{num_spans} spans of {trace}: {self.spans}")  # type: ignore[no-any-return]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces"
        if self.server.status == 200:
            self.server.headers = dict(self.headers)
            is_json = self.headers["Content-Type"] == "application/json"
            self.server.spans += read(json_message(body) if is_json else ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    with Collector(port) as collector, pytest.MonkeyPatch.context() as patched:
        patched.setenv(SEND_MS, "100")  # of gateways and Tritons that are started meanwhile
        threading.Thread(target=collector.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield collector
        finally:
            collector.shutdown()


def json_message(body: bytes) -> ExportTraceServiceRequest:
    """OTLP has ids in hexadecimal, where protobuf's own JSON has base64."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            ids = {"traceId", "spanId", "parentSpanId"}
            return {
                key: base64.b64encode(bytes.fromhex(it)).decode() if key in ids else changed(it)
                for key, it in value.items()
            }
        return [changed(it) for it in value] if isinstance(value, list) else value

    return ParseDict(changed(json.loads(body)), ExportTraceServiceRequest(), ignore_unknown_fields=True)


def read(message: ExportTraceServiceRequest) -> Iterator[Span]:
    for of_resource in message.resource_spans:
        service = attributes_of(of_resource.resource.attributes)["service.name"]
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    service,
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.status.code == 2,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    attributes_of(span.attributes),
                    span.trace_state,
                    [(event.name, attributes_of(event.attributes)) for event in span.events],
                )


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(it) for it in value.array_value.values]
    return getattr(value, kind)
