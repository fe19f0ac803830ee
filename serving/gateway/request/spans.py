"""Makes OpenTelemetry's spans of traces and sends them to a collector by OTLP over HTTP; needs the extra `otel`.

One trace: the request (SERVER), its preparing and its queueing, in which the decision stands with what every candidate would have done, and
the call of Triton (CLIENT), which Triton's own spans hang on. Names and attributes are those of OpenTelemetry's semantic conventions where
they have any, else they begin with `tandem.`. All are over when they are made, so that no tracer has to follow them.
Rule: no body, no key, no text of an error.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from time import perf_counter, time
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

import serving
from serving.gateway.request.decisions import OUTCOME_OK, told
from serving.gateway.request.traces import Inferred, Trace, Value

SEND_S = 5.0  # for one message, with all its tries; a guess, not measured
SCHEMA = Schemas.V1_44_0.value
# Of what is told of a decision, what stands on the span; its candidates are events.
ON_SPAN = (
    "rows",
    "priority",
    "deadline_s",
    "pool",
    "variant",
    "reason",
    "predicted_s",
    "actual_s",
    "price_per_million",
    "servers_lost",
)


UNSET, FAILED = Status(), Status(StatusCode.ERROR)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Spans:
    """Sends to the collector at `endpoint`, to which /v1/traces is added; `has_prices` as `told` means it."""

    def __init__(self, endpoint: str, *, has_prices: bool) -> None:
        self._has_prices = has_prices
        self._ids = RandomIdGenerator()
        self._resource = _resource()
        self._scope = InstrumentationScope("tandem", serving.__version__, SCHEMA)
        self._spans: list[ReadableSpan] = []  # of one message
        self._exporter = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=SEND_S)
        self._said = _Said()
        theirs = logging.getLogger("opentelemetry")
        theirs.addHandler(self._said)
        theirs.propagate = False  # it would repeat itself as long as the collector is away

    def send(self, traces: Sequence[Trace]) -> str:
        """Returns why they were not taken."""
        self._since = time() - perf_counter()
        for trace in traces:
            self._make(trace)
        spans, self._spans = self._spans, []
        self._said.last = ""
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return ""
        return self._said.last or "it did not say why"

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make(self, trace: Trace) -> None:
        entry = trace.entry
        assert entry is not None
        status = FAILED if trace.is_failed else UNSET
        error: dict[str, Value] = {"error.type": trace.error} if trace.error else {}
        about: dict[str, Value] = {
            "tandem.model": trace.model,
            "tandem.outcome": trace.outcome,
            "tandem.kept_by": trace.kept_by,
        }
        if trace.inferences:
            about["tandem.rows"] = sum(inferred.decision.rows for inferred in trace.inferences)
        if trace.tenant:
            about["tandem.tenant"] = trace.tenant
        whole = trace.arrived, trace.done
        sender = _sender(trace) if trace.parent else None
        attributes = {**entry.attributes, **about, **error}
        above = root = self._context(int(trace.id, 16), sender)
        self._add(entry.name, root, sender, whole, attributes, kind=SpanKind.SERVER, status=status)
        if entry.attributes.get("http.route") == "/v1/embeddings":
            model: dict[str, Value] = {
                "gen_ai.operation.name": "embeddings",
                "gen_ai.provider.name": "tandem",
                "gen_ai.request.model": trace.model,
            }
            above = self._below(root)
            self._add(f"embeddings {trace.model}", above, root, whole, {**model, **trace.about, **error}, status=status)
        queued = trace.arrived
        if trace.prepared is not None:
            queued, last = trace.prepared
            self._add("prepare", self._below(above), above, (trace.arrived, last), {})
        for inferred in trace.inferences:
            self._infer(inferred, above, queued, trace.done)

    def _infer(self, inferred: Inferred, above: SpanContext, queued: float, done: float) -> None:
        d, span_id, server = inferred
        said = told(d, has_prices=self._has_prices)
        attributes = {f"tandem.{key}": said[key] for key in ON_SPAN if said[key] is not None}
        is_answered = d.destination is not None
        began = d.began if is_answered else d.decided or done
        answered = d.answered if is_answered else done
        candidates = []
        for one in said["candidates"]:
            known = {f"tandem.{key}": value for key, value in one.items() if value is not None}
            candidates.append(Event("tandem.candidate", known, self._ns(d.decided)))
        self._add("queue", self._below(above), above, (min(queued, began), began), attributes, events=candidates)
        if not is_answered and not (span_id and d.candidate is not None):
            return
        where = {"tandem.pool": said["pool"], "tandem.variant": said["variant"]}
        if server:
            parts = urlsplit(server)
            where |= {"server.address": parts.hostname or "", "server.port": parts.port or 80}
        status = UNSET
        if d.outcome != OUTCOME_OK:
            where["error.type"], status = d.outcome, FAILED
        own = self._context(above.trace_id, above, int(span_id, 16)) if span_id else self._below(above)
        self._add("triton", own, above, (began, answered), where, kind=SpanKind.CLIENT, status=status)

    def _context(self, trace_id: int, above: SpanContext | None, span_id: int = 0) -> SpanContext:
        """Of a span, 0: that has no number yet."""
        state = None if above is None else above.trace_state
        return SpanContext(trace_id, span_id or self._ids.generate_span_id(), False, SAMPLED, state)

    def _below(self, above: SpanContext) -> SpanContext:
        return self._context(above.trace_id, above)

    def _add(
        self,
        name: str,
        context: SpanContext,
        above: SpanContext | None,
        lasting: tuple[float, float],
        attributes: Mapping[str, Value],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status = UNSET,
        events: Sequence[Event] = (),
    ) -> None:
        """`lasting`: from and until, by perf_counter."""
        span = ReadableSpan(
            name,
            context,
            above,
            self._resource,
            attributes,
            events,
            kind=kind,
            status=status,
            start_time=self._ns(lasting[0]),
            end_time=self._ns(lasting[1]),
            instrumentation_scope=self._scope,
        )
        self._spans.append(span)

    def _ns(self, at: float) -> int:
        return int((at + self._since) * 1e9)


def _sender(trace: Trace) -> SpanContext:
    """Its span; the state is every span's in it."""
    state = TraceState.from_header([trace.state.decode()])
    return SpanContext(int(trace.id, 16), int(trace.parent, 16), is_remote=True, trace_flags=SAMPLED, trace_state=state)


def _resource() -> Resource:
    """What OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say counts more."""
    ours = {"service.name": "tandem-gateway", "service.version": serving.__version__}
    ours["service.instance.id"] = f"{socket.gethostname()}-{os.getpid()}"
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})


class _Said(logging.Handler):
    """Keeps the last words of the exporter, which does not return why it failed."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
