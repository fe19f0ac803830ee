"""Which requests are traced? A share by their ids, those that their senders sampled, and some that failed or were mispredicted.

On the inference path a trace is what is remembered anyway, kept in one more list; `spans.py` makes OpenTelemetry's spans of it, in a
thread. Rule: a collector that is slow or away costs traces, which are counted, and no request's time.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

from serving import errors
from serving.gateway.request.access_log import ids_below
from serving.gateway.request.decisions import Decision
from serving.gateway.request.dispatch import InferRequest
from serving.gateway.request.request_headers import TRACESTATE
from serving.settings import OtelSettings

SEND_S = 5.0  # as OpenTelemetry's own exporters wait, unless SEND_MS says otherwise
SEND_MS = "OTEL_BSP_SCHEDULE_DELAY"
MAX_TRACES = 1024  # that wait to be sent, of some 2 kB each; a guess, not measured
TRACES_A_TIME = 64  # in one message; a guess, not measured
LAST_S = 3.0  # that a stopping gateway waits for the collector
MISPREDICTED_S = 0.01  # less is no matter, however many times what was predicted
MISPREDICTED_RATIO = 2.0
MAX_STATE_BYTES, MAX_MEMBERS = 512, 32  # what has more need not be passed on, nor may a part of it
# By W3C's Trace Context; what OpenTelemetry cannot read it tells the log, once for each trace.
MEMBER = re.compile(
    rb"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
NAMES_OF_PATHS = re.compile(r"^(/v2/models/|/v1/classify/)[^/]+(/versions/)?[^/]*")

log = logging.getLogger("tandem")
Value = str | int | float | Sequence[str]


class Entry(NamedTuple):
    """How a request came in: the name of its span, and attributes by OpenTelemetry's conventions."""

    name: str
    attributes: Mapping[str, Value]


def http_entry(path: str, error: BaseException | None) -> Entry:
    """Of a POST. The route has no name of a model, so that there are few of them."""
    route = NAMES_OF_PATHS.sub(
        lambda m: m[1] + ("{model}" + m[2] + "{version}" if m[2] else "{model}"),
        path,
    )
    attributes: dict[str, Value] = {
        "http.request.method": "POST",
        "http.route": route,
        "url.path": path,
        "url.scheme": "http",
    }
    if error is None:
        attributes["http.response.status_code"] = 200
    elif isinstance(error, errors.RequestError):
        attributes["http.response.status_code"] = errors.HTTP[type(error)][0]
    return Entry(f"POST {route}", attributes)


class Inferred(NamedTuple):
    """One inference of a request. `span` is what Triton was told as the one that called it, `server` its url; both may be empty."""

    decision: Decision
    span: bytes
    server: str


@dataclass(slots=True)
class Trace:
    """Times are by perf_counter. `about`: attributes of what was asked, where the surface knows more than the decision."""

    inferences: list[Inferred] = field(default_factory=list)
    about: Mapping[str, Value] = field(default_factory=dict)
    id: bytes = b""
    parent: bytes = b""  # span of whoever sent it; empty where nobody traced it before
    state: bytes = b""  # its sender's `tracestate`
    entry: Entry | None = None
    kept_by: str = ""  # sampled, error or misprediction
    outcome: str = ""
    error: str = ""  # its word, as in Tandem-Error
    is_failed: bool = False  # by no fault of the client's
    tenant: str = ""
    model: str = ""
    arrived: float = 0.0
    prepared: tuple[float, float] | None = None  # the first and the last of its inferences
    done: float = 0.0


class Sender(Protocol):
    """Where traces go. Called from one thread."""

    def send(self, traces: Sequence[Trace]) -> str:
        """Returns why they were not taken; empty where they were."""

    def close(self) -> None:
        """A `send` in another thread ends soon, and no other comes."""


class Waiting:
    """Traces that are to be sent, MAX_TRACES at most. Rule: where it is full, who has the most in it loses the oldest of them.

    A tenant's are apart, and of these what its senders trace from what this gateway chose.
    """

    def __init__(self) -> None:
        self.num_dropped = 0
        self._num = 0
        self._by_whom: dict[tuple[str, bool], deque[Trace]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._num

    def add(self, trace: Trace) -> None:
        with self._lock:
            self._by_whom.setdefault((trace.tenant, bool(trace.parent)), deque()).append(trace)
            if self._num < MAX_TRACES:
                self._num += 1
                return
            most = max(self._by_whom, key=lambda whose: len(self._by_whom[whose]))
            self._by_whom[most].popleft()
            if not self._by_whom[most]:
                del self._by_whom[most]
            self.num_dropped += 1

    def take(self, most: int) -> list[Trace]:
        """Of each in turn, the oldest first."""
        taken: list[Trace] = []
        with self._lock:
            while self._by_whom and len(taken) < most:
                whose = next(iter(self._by_whom))
                own = self._by_whom.pop(whose)
                taken.append(own.popleft())
                if own:
                    self._by_whom[whose] = own
            self._num -= len(taken)
        return taken


class Traces:
    """The thread that sends them. `num_sent` and `num_lost` are of traces."""

    def __init__(self, settings: OtelSettings, sender: Sender) -> None:
        self._endpoint = settings.endpoint
        self.below = ids_below(settings.sample_ratio)
        self._tail_rps = settings.max_tail_rps
        self._tail_room, self._tail_at = max(1.0, self._tail_rps), perf_counter()
        self._waiting = Waiting()
        self._sender = sender
        said = os.environ.get(SEND_MS, "")
        self._every_s = int(said) / 1000 if said.isdecimal() and int(said) else SEND_S
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._is_failing = self._is_full = False
        self._num_refused = self._num_dropped = 0  # by the collector; for want of room, as the log was told last
        self.num_sent = 0

    @property
    def num_lost(self) -> int:
        return self._num_refused + self._waiting.num_dropped

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Sends what waits, for a while at most. Not for the event loop."""
        self._stopping.set()
        self._thread.join(LAST_S)
        self._sender.close()

    def takes(self, request_id: bytes) -> bool:
        """32 hexadecimal digits, the first of them evenly spread."""
        return request_id < self.below

    def begin(self, request: InferRequest, trace_id: bytes, state: bytes) -> bytes:
        """Tells Triton that it is traced, and returns the id of the span there. All that could answer it are forecast.

        `state`: of its sender's trace, which goes on as it came.
        """
        span = secrets.token_hex(8).encode()
        request.is_traced = True
        state_line = b"tracestate: %b\r\n" % state if state else b""
        request.framing = b"traceparent: 00-%b-%b-01\r\n%b%b" % (trace_id, span, state_line, request.framing)
        return span

    def is_mispredicted(self, decision: Decision) -> bool:
        """Of one that was answered MISPREDICTED_S sooner or later than predicted."""
        if decision.candidate is None:
            return False
        predicted_s, actual_s = decision.finish - decision.decided, decision.answered - decision.decided
        return max(actual_s, predicted_s) > MISPREDICTED_RATIO * min(actual_s, predicted_s)

    def has_tail_room(self, now: float) -> bool:
        """Whether one more may be kept that was not sampled; if so, it is."""
        self._tail_room = min(max(1.0, self._tail_rps), self._tail_room + (now - self._tail_at) * self._tail_rps)
        self._tail_at = now
        if self._tail_room < 1.0 or not self._tail_rps:
            return False
        self._tail_room -= 1.0
        return True

    def add(self, trace: Trace) -> None:
        self._waiting.add(trace)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        self._say_full()
        while traces := self._waiting.take(TRACES_A_TIME):
            try:
                why = self._sender.send(traces)
            except Exception as error:
                why = repr(error)
            if why:
                self._num_refused += len(traces)
                if not self._is_failing:
                    log.error(
                        "the OpenTelemetry collector at %s takes no traces (%s); requests are answered without them",
                        self._endpoint,
                        why,
                    )
                self._is_failing = True
                if self._stopping.is_set():
                    self._num_refused += len(self._waiting)
                    return
                continue
            self.num_sent += len(traces)
            if self._is_failing:
                log.warning(
                    "the OpenTelemetry collector at %s takes traces again; %d were lost", self._endpoint, self.num_lost
                )
            self._is_failing = False

    def _say_full(self) -> None:
        before, self._num_dropped = self._num_dropped, self._waiting.num_dropped
        is_full = self._num_dropped > before
        if is_full and not self._is_full:
            log.warning(
                "more requests are traced than the %d that wait to be sent: %d traces are lost, of those who have the most",
                MAX_TRACES,
                self._num_dropped - before,
            )
        self._is_full = is_full


def state_of(headers: Mapping[bytes, bytes]) -> bytes:
    """The `tracestate` of a request that has a `traceparent`, where it can be passed on as it is."""
    state = headers.get(TRACESTATE, b"")
    if not state or len(state) > MAX_STATE_BYTES:
        return b""
    members = [member for part in state.split(b",") if (member := part.strip(b" \t"))]
    is_good = 0 < len(members) <= MAX_MEMBERS and all(map(MEMBER.fullmatch, members))
    return state if is_good else b""
