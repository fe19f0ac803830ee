"""One request of a client, from its arrival until it is counted: the same on every surface, whatever it asks and however it ends.

A surface reads its bytes, calls `infer` or `infer_all`, and makes an answer, all in the `with` block of an `Exchange`. Leaving the block
counts it and writes its receipt. Inferences are what is counted, each by how it ended; an exchange that began none counts once itself.
Rule: nobody else touches the outcomes of a series.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from time import perf_counter

from serving import errors
from serving.gateway.access import ANYBODY, INFER, Caller
from serving.gateway.metrics import FAILED, TENANT_REFUSALS, Series
from serving.gateway.request.decisions import OUTCOME_OK
from serving.gateway.request.dispatch import ClientLeft, InferRequest, Refusal
from serving.gateway.request.inference import Inference, Reply
from serving.gateway.request.request_headers import Body, Headers, priority, wait_s
from serving.gateway.request.route import Route
from serving.gateway.request.traces import MISPREDICTED_S, Entry, Inferred, Trace, Traces, http_entry, state_of
from serving.protocol import v2
from serving.protocol.memory import Claim
from serving.scheduling.admission import DEFAULT

OUTCOMES = {
    ClientLeft: "cancelled",
    asyncio.CancelledError: "cancelled",
    errors.RateLimited: "rate_limited",
    errors.QuotaExceeded: "rate_limited",
    errors.Overloaded: "shed",
    errors.NeverInTime: "shed",
    errors.NotReady: "shed",
    errors.DeadlineExpired: "expired",
    errors.UpstreamLost: "backend_error",
    errors.Internal: "backend_error",
}
# Inferences of one exchange, so that a long one does not fill the queue that others wait in: enough that a server of two instances has its
# next ones there while it works. A guess, not measured.
MAX_IN_FLIGHT = 4
LONGEST_ROW = 64.0  # in rows of the usual length: 1,024 tokens, more than most encoders take; a guess, not measured

TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])")
_SAMPLED = frozenset(b"%x" % digit for digit in range(1, 16, 2))  # last digits of flags that have this one
_END = secrets.token_hex(8).encode()  # of every id that this process makes
_numbers = itertools.count(secrets.randbits(64))
_SPREAD, _MASK = (
    0x9E3779B97F4A7C15,
    2**64 - 1,
)  # odd, so that no two numbers become the same: ids tell nobody how many there were
Part = tuple[bytes, Sequence[bytes | memoryview]]  # a v2 request: its JSON part, and all its bytes
_ending: set[asyncio.Task[Reply]] = set()  # of exchanges that are over; asyncio itself keeps no task alive


class Exchange:
    """`caller`, `headers` and `route` are known one after the other; `timing` and `receipt_lines` once the block is left."""

    __slots__ = (
        "_began",
        "_body",
        "_claim",
        "_has_begun",
        "_has_failed",
        "_is_open",
        "_is_over",
        "_is_traced",
        "_is_used",
        "_num_bytes",
        "_num_used",
        "_parent",
        "_prepared",
        "_request_id",
        "_rows",
        "_tells",
        "arrived",
        "caller",
        "has_left",
        "headers",
        "inference",
        "receipt_lines",
        "replies",
        "route",
        "timing",
        "trace",
    )

    caller: Caller
    headers: dict[bytes, bytes]
    timing: bytes
    receipt_lines: bytes  # as they stand in an HTTP response

    def __init__(self, inference: Inference) -> None:
        self.arrived = perf_counter()
        self.inference = inference
        self.headers = {}
        self.caller = ANYBODY
        self.route: Route | None = None
        self.replies: list[Reply] = []
        self.has_left = False
        self._claim: Claim | None = None
        self._tells: list[Callable[[], None]] = []
        self._prepared: tuple[float, float] | None = None
        self._body: Body | None = None  # where its rows are guessed by that
        self._rows = 0.0  # of all its inferences
        self.trace: Trace | None = None  # where it is one of those that are kept
        self._request_id = b""
        self._is_traced = False
        self._has_begun = self._has_failed = self._is_over = False
        self._is_used = self._is_open = False  # it counts as a request of its tenant; as one that goes on
        self._num_used = 0  # inferences of it that go on
        self._num_bytes = 0  # of its body, 0 where its head does not say
        self._began: float | None = None  # time.time(), where it counts before its first inference does

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._claim is not None:
            self._claim.release()
        done = perf_counter()
        self._is_over = True
        if self._is_open:
            if self._began is not None and not self._is_used and self.inference.usage is not None:
                self.inference.usage.unanswered(self.caller.tenant, self._num_bytes, self._began)
            self._leave_usage()
        if self._body is not None and self._body.size and self._rows and self.route is not None:
            self.route.congestion.saw(self._body, self._rows)
        if self.inference.traces is not None and (self.trace is not None or error is not None):
            self._end_trace(self.inference.traces, error, done)
        if error is not None:
            self._fail(error, done)
            return
        if not self._has_begun:  # nothing in it was good enough to be sent
            self._count(self._series, None)
            self.receipt_lines = b""
            return
        self.timing = self._timing(done)
        if len(self.replies) == 1:
            reply = self.replies[0]
            self.receipt_lines = b"%btandem-reason: %b\r\ntandem-request-id: %b\r\nserver-timing: %b\r\n" % (
                reply.destination.receipt_lines,
                reply.reason,
                self._request_id,
                self.timing,
            )
        else:
            self.receipt_lines = b"".join(b"%b: %b\r\n" % line for line in self.receipt)
        for reply in self.replies:
            self._count_answered(reply, done)

    @property
    def receipt(self) -> Headers:
        """The response headers that say what really happened; where inferences differ, each value once, in their order."""
        return [*receipt_of(self.replies), (b"tandem-request-id", self._request_id), (b"server-timing", self.timing)]

    @property
    def request_id(self) -> bytes:
        """Of its `traceparent`, or made here; the same however often it is asked."""
        if not self._request_id:
            self._request_id, self._parent, self._is_traced = identity(self.headers)
        return self._request_id

    def authenticate(self, headers: dict[bytes, bytes], scope: str = INFER) -> None:
        """Raises Unauthenticated, Forbidden, or BadRequest."""
        self.headers = headers
        if self.inference.access.table is not None:
            self.caller = self.inference.access.caller_of(headers)
            self.caller.require(scope)

    def require_quota(self, num_bytes: int, *, is_whole: bool = False) -> None:
        """Before its body of so many bytes is read, 0 where its head does not say. Raises QuotaExceeded, TooLarge or NotReady.

        One that `is_whole` counts from now on, so that its tenant's quotas are looked at once.
        """
        usage = self.inference.usage
        if usage is None:
            return
        self._num_bytes = num_bytes
        try:
            if is_whole and num_bytes:
                self._began = usage.begin(self.caller.tenant, num_bytes)
                self._is_open = True
            else:
                usage.require(self.caller.tenant, num_bytes)
        except errors.QuotaExceeded:
            self.inference.congestion.refused(self.arrived)  # so that those that follow are looked at by their heads
            raise

    def claim(self) -> Claim:
        """What it holds of the memory for requests, until the block is left."""
        if self._claim is None:
            self._claim = self.inference.memory.claim(self.caller.tenant)
        return self._claim

    @property
    def wait_s(self) -> float:
        """That the client waits at most, from its arrival. Raises BadRequest."""
        deadline_ms = self.headers.get(b"tandem-deadline-ms")
        return inf if deadline_ms is None else wait_s(deadline_ms)

    @property
    def priority(self) -> int:
        """How urgent it is, at best what the key allows. Raises BadRequest."""
        urgency, highest = self.headers.get(b"tandem-priority"), self.caller.highest_priority
        return max(DEFAULT, highest) if urgency is None else priority(urgency, highest)

    def check_headers(self) -> None:
        """Before work for several inferences. Raises BadRequest."""
        _ = self.wait_s, self.priority

    def prepared(self) -> None:
        """What is sent next was made ready by now."""
        now = perf_counter()
        self._prepared = (now, now) if self._prepared is None else (self._prepared[0], now)

    def refusal(self, route: Route, body: Body, longest_s: float = inf) -> Refusal | None:
        """Why a request to a congested route is refused whatever its body holds; None: that has to be read.

        What is in the body can only shorten its time, and more rows than the fewest only make it later.
        """
        self.guess_by(body)
        usual_rows = min(route.congestion.usual_rows(body), route.max_rows)
        request = self._request(route, route.least_rows(body), longest_s)
        refusal = self.inference.refusal(request, usual_rows, keep=longest_s == inf)
        if refusal is not None:
            self._note_refusal(route)
        return refusal

    def is_refused_again(self, route: Route, refusal: Refusal) -> bool:
        """Whether it is refused as another with the very same head, and from the same caller, was before."""
        if not self.inference.is_refused_again(refusal, self.arrived):
            return False
        self._note_refusal(route)
        return True

    def guess_by(self, body: Body) -> None:
        """What its rows turn out to be says how many bodies like it have."""
        self._body = body

    def refused(self, error: errors.RequestError, path: str) -> None:
        """Instead of the block: nothing else happens in this exchange. `path` is of HTTP."""
        self._count(self._series, error)
        if self.inference.traces is not None:
            self._end_trace(self.inference.traces, error, perf_counter(), path)

    def require_room(self, route: Route, body: Body, longest_s: float = inf) -> None:
        """Raises Overloaded where the route is congested and `refusal` says so."""
        if self.arrived < route.congestion.until and (refusal := self.refusal(route, body, longest_s)) is not None:
            raise refusal.error_at(self.arrived)

    def _request(
        self,
        route: Route,
        rows: float,
        longest_s: float,
        head: bytes = b"",
        chunks: Sequence[bytes | memoryview] = (),
        header_length: int | None = None,
    ) -> InferRequest:
        inference = self.inference
        give_up_at = deadline = self.arrived + inference.longest_s
        longest_s = min(longest_s, self.wait_s, route.objective_s)
        if longest_s < inference.longest_s:
            deadline = self.arrived + longest_s
        return InferRequest(
            route,
            head,
            chunks,
            header_length,
            _framing(sum(map(len, chunks)), header_length),
            rows,
            self.priority,
            give_up_at,
            deadline,
            self.arrived,
            route.destinations[0].series,
            self.caller.tenant,
        )

    def _leave_usage(self) -> None:
        """Once it is over: when its inferences are, too, some of which may outlive it."""
        if self._is_open and not self._num_used and (usage := self.inference.usage) is not None:
            self._is_open = False
            usage.left(self.caller.tenant)

    def _note_refusal(self, route: Route) -> None:
        now = perf_counter()
        route.congestion.refused(now)
        self.inference.congestion.refused(now)

    async def infer(
        self,
        route: Route,
        head: bytes,
        chunks: Sequence[bytes | memoryview],
        header_length: int | None,
        longest_s: float = inf,
    ) -> Reply:
        """A v2 request: `chunks` begin with its JSON part `head`, whose length is `header_length`, None where the whole body is JSON.

        It ends by the earliest of `longest_s`, of what the client and the model's objective say, and of the gateway's own patience.
        Raises ClientLeft, RequestError, or CancelledError as it came.
        """
        rows = rows_of(route, head)
        request = self._request(route, rows, longest_s, head, chunks, header_length)
        self._rows += rows
        self._has_begun = True
        inference = self.inference
        decisions, usage, traces = inference.decisions, inference.usage, inference.traces
        is_sampled = self.request_id < inference.sampled_below  # by the access log or a trace, or by both
        request.is_traced = self._is_traced
        span = b""
        if traces is not None and (is_sampled or self._is_traced) and self._is_sampled(traces):
            span = traces.begin(request, self._request_id, state_of(self.headers) if self._parent else b"")
        began: float | None = None
        is_first = not self._is_used
        size = 0
        if usage is not None:
            size = (self._num_bytes if is_first else 0) if self._num_bytes else sum(map(len, chunks))
        try:
            if usage is not None:
                began = self._began if is_first else None
                if began is None:
                    began = usage.begin(self.caller.tenant, size, is_first=is_first)
                self._is_open = self._is_open or is_first
                self._is_used = True
                self._num_used += 1
            reply = await inference.infer(request, self)
        except BaseException as error:
            self._has_failed = True
            if usage is not None and began is not None:
                usage.unanswered(self.caller.tenant, size, began, is_first=is_first)
                self._num_used -= 1
                if self._is_over:
                    self._leave_usage()
            outcome = self._count(request.series, error)
            if route.side is not None:
                route.side.failed(outcome)
            if is_sampled and decisions.log is not None and decisions.log.takes(self._request_id):
                decisions.log.note(self._request_id, request, outcome)
            # Many refusals would leave nothing else to be told.
            is_kept = bool(request.forecasts) or not isinstance(error, (errors.Overloaded, errors.QuotaExceeded))
            if is_kept or traces is not None:
                decision = decisions.note(
                    self._request_id, request, None, 0.0, 0.0, outcome, str(error), is_kept=is_kept
                )
                if span or (traces is not None and outcome in FAILED):
                    self._keep(Inferred(decision, span, ""))
            if isinstance(error, errors.Overloaded):
                self._note_refusal(route)
            raise
        if usage is not None:
            usage.answered(self.caller.tenant, size, route, reply.destination, rows, is_first=is_first)
            self._num_used -= 1
            if self._is_over:
                self._leave_usage()
        decision = decisions.note(self._request_id, request, reply.destination, reply.began, reply.answered)
        if traces is not None and (
            span or (abs(decision.answered - decision.finish) > MISPREDICTED_S and traces.is_mispredicted(decision))
        ):
            self._keep(Inferred(decision, span, reply.server))
        if is_sampled and decisions.log is not None and decisions.log.takes(self._request_id):
            by = reply.destination, reply.reason, reply.began, reply.answered
            decisions.log.note(self._request_id, request, OUTCOME_OK, by)
        if route.side is not None:
            route.side.answered(request, reply)
        self.replies.append(reply)
        if self._is_over:
            self._count_answered(reply, reply.answered)
        return reply

    async def infer_all(self, route: Route, parts: AsyncIterator[Part], *, is_one: bool) -> list[Reply]:
        """Several inferences, a few at a time, all or none: the replies in order. `is_one`: there is one part, which needs no task.

        Where one fails, or the client leaves, those that wait leave their queue and the client hears why at once; what has been sent
        ends by itself.
        """
        if is_one:
            return [await self.infer(route, head, chunks, len(head)) async for head, chunks in parts]
        body, self._body = self._body, None  # whose rows are not known where not all of them are sent
        tasks: list[asyncio.Task[Reply]] = []
        running: set[asyncio.Task[Reply]] = set()
        is_whole = False
        try:
            with self.watched():
                async for head, chunks in parts:
                    while len(running) >= MAX_IN_FLIGHT:
                        _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    if self.has_left or self._has_failed:
                        break
                    task = asyncio.create_task(self.infer(route, head, chunks, len(head)))
                    tasks.append(task)
                    running.add(task)
                else:
                    is_whole = True
                if tasks:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        except errors.RequestError as error:  # of the parts: what was answered is not spoilt by it
            if self._has_begun:
                self._count(self._series, error)
            self._has_failed = True
            raise
        finally:
            self.leave()
            for task in tasks:
                _ending.add(task)
                task.add_done_callback(_ended)
        failures = [failure for task in tasks if task.done() and (failure := _failure(task)) is not None]
        if failures or not is_whole:
            known = next((f for f in failures if isinstance(f, errors.RequestError)), None)
            ours = next((f for f in failures if not isinstance(f, (ClientLeft, asyncio.CancelledError))), None)
            raise known or ours or ClientLeft()
        self._body = body
        return [task.result() for task in tasks]

    # -- the client, who may leave ------------------------------------------------------------------------------------

    def listen(self, tell: Callable[[], None]) -> None:
        """`Client`'s: several inferences may listen at once."""
        if self.has_left:
            tell()
            return
        self._tells.append(tell)
        if len(self._tells) == 1:
            self._watch()

    def ignore(self, tell: Callable[[], None]) -> None:
        if tell in self._tells:
            self._tells.remove(tell)
            if not self._tells:
                self._unwatch()

    def leave(self) -> None:
        """Nobody waits for an answer any more."""
        self.has_left = True
        for tell in list(self._tells):
            tell()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """`has_left` is kept up to date meanwhile."""
        self.listen(_nothing)
        try:
            yield
        finally:
            self.ignore(_nothing)

    def _watch(self) -> None:
        """To call `leave` when the client has gone, where that is not called from outside."""

    def _unwatch(self) -> None:
        pass

    # -- how it ended -------------------------------------------------------------------------------------------------

    @property
    def _series(self) -> Series:
        return self.inference.unresolved if self.route is None else self.route.destinations[0].series

    def _fail(self, error: BaseException, done: float) -> None:
        """What was answered counts as answered, but where no answer could be made of it."""
        if not self._has_begun:
            self._count(self._series, error)
        is_spoilt = not self._has_failed and not isinstance(error, (ClientLeft, asyncio.CancelledError))
        for reply in self.replies:
            if is_spoilt:
                self._count(reply.destination.series, error)
            else:
                self._count_answered(reply, done)
        if isinstance(error, errors.RequestError):
            receipt = error.receipt or (receipt_of(self.replies) if is_spoilt else [])
            if receipt:
                timing = b"server-timing", b"total;dur=%.3f" % ((done - self.arrived) * 1000)
                receipt = [*receipt, timing]
            if self._has_begun or isinstance(error, (errors.Overloaded, errors.NotReady, errors.QuotaExceeded)):
                receipt = [*receipt, (b"tandem-request-id", self.request_id)]
            error.receipt = receipt

    def _count_answered(self, reply: Reply, done: float) -> None:
        arrived = self.arrived
        reply.destination.series.answered(reply.began - arrived, reply.answered - reply.began, done - arrived)

    def _count(self, series: Series, error: BaseException | None) -> str:
        """Returns the outcome."""
        outcome = self._outcome(error)
        series.ended(outcome)
        usage = self.inference.usage
        if usage is None or outcome not in TENANT_REFUSALS:
            return outcome
        if self.caller is not ANYBODY or self.inference.access.table is None:
            usage.ledger.refused(self.caller.tenant, outcome)
        return outcome

    def _outcome(self, error: BaseException | None) -> str:
        """Without an answer."""
        if isinstance(error, asyncio.CancelledError) and self.inference.closing:
            return "shed"  # by our own stop, not by the client
        if error is None or isinstance(error, errors.RequestError):
            return OUTCOMES.get(type(error), "client_error")
        return OUTCOMES.get(type(error), "backend_error")

    # -- its trace ----------------------------------------------------------------------------------------------------

    def _entry(self, error: BaseException | None, path: str = "") -> Entry:
        """How it came in, and what it was answered; `path`: of HTTP."""
        return http_entry(path, error)

    def _is_sampled(self, traces: Traces) -> bool:
        """Whatever becomes of it: as its sender says, who may be nobody."""
        request_id = self.request_id  # by which the others are known
        return self._is_traced or (traces.takes(request_id) and not self._parent)

    def _keep(self, inferred: Inferred) -> None:
        if self.trace is None:
            self.trace = Trace()
        self.trace.inferences.append(inferred)

    def _end_trace(self, traces: Traces, error: BaseException | None, done: float, path: str = "") -> None:
        trace = self.trace
        outcome = OUTCOME_OK if error is None else self._outcome(error)
        is_sampled = self._is_sampled(traces)
        if not is_sampled:
            is_failed = outcome in FAILED
            if (trace is None and not is_failed) or not traces.has_tail_room(done):
                return
            kept_by = "error" if is_failed else "misprediction"
        else:
            kept_by = "sampled"
        if trace is None:
            trace = Trace()
        trace.id, trace.parent = self.request_id, self._parent
        trace.state = state_of(self.headers) if trace.parent else b""
        trace.entry = self._entry(error, path)
        trace.kept_by, trace.outcome, trace.is_failed = kept_by, outcome, outcome in FAILED
        if isinstance(error, errors.RequestError):
            trace.error = errors.HTTP[type(error)][1]
        elif error is not None:
            trace.error = outcome
        trace.tenant = self.caller.tenant
        trace.model = "" if self.route is None else self.route.name
        trace.arrived, trace.prepared, trace.done = self.arrived, self._prepared, done
        traces.add(trace)
        if error is None:
            for reply in self.replies:
                times = reply.began - self.arrived, reply.answered - reply.began, done - self.arrived
                reply.destination.series.exemplify(self._request_id.decode(), *times)

    def _timing(self, done: float) -> bytes:
        """`Server-Timing`: of several inferences until the first was sent, and until the last was answered."""
        arrived, replies = self.arrived, self.replies
        if len(replies) == 1:
            _, _, _, began, answered, _ = replies[0]
        else:
            began, answered = min(r.began for r in replies), max(r.answered for r in replies)
        waits = arrived
        prepare = b""
        if self._prepared is not None:
            waits, last = self._prepared
            prepare = b"prepare;dur=%.3f, " % ((last - arrived) * 1000)
        return b"%bqueue;dur=%.3f, backend;dur=%.3f, total;dur=%.3f" % (
            prepare,
            (began - waits) * 1000,
            (answered - began) * 1000,
            (done - arrived) * 1000,
        )


def identity(headers: Mapping[bytes, bytes]) -> tuple[bytes, bytes, bool]:
    """The id of a request, 32 hexadecimal digits: its trace's, or else a new one; its sender's span, empty where there is none; and
    whether its sender wants it to be traced.
    """
    traceparent = headers.get(b"traceparent")
    if traceparent is not None and (match := TRACEPARENT.match(traceparent)):
        return match[1], match[2], match[3] in _SAMPLED
    return b"%016x%b" % (next(_numbers) * _SPREAD & _MASK, _END), b"", False


def rows_of(route: Route, head: bytes) -> float:
    """What a request asks for, in rows of the usual length: a text of 64 tokens costs about what four of 16 do.

    Of a row that is far longer nobody has measured anything. It counts as `LONGEST_ROW` of them: what is not let in is never learnt, and a
    guess must not refuse for ever what may take a moment.
    """
    if not route.usual_length:
        return 1 if route.max_rows == 1 else min(v2.num_rows(head), route.max_rows)
    rows, length = v2.rows_and_length(head)
    return max(1.0, min(rows, route.max_rows) * min(length / route.usual_length, LONGEST_ROW))


def receipt_of(replies: Sequence[Reply]) -> Headers:
    """But for the times."""
    values: dict[bytes, dict[bytes, None]] = {}
    for reply in replies:
        for name, value in reply.receipt:
            values.setdefault(name, {})[value] = None
    return [(name, b", ".join(different)) for name, different in values.items()]


def _framing(size: int, header_length: int | None) -> bytes:
    if header_length is None:
        return b"Content-Length: %d\r\n\r\n" % size
    return b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (size, header_length)


def _nothing() -> None:
    pass


def _failure(task: asyncio.Task[Reply]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _ended(task: asyncio.Task[Reply]) -> None:
    _ending.discard(task)
    if (error := _failure(task)) is not None:  # nobody waits for it any more; how it ended is counted
        errors.without_frames(error)
