"""The inference path, `POST /v2/models/{model}[/versions/{v}]/infer`, as raw ASGI.

JSON is forwarded as it came; Triton's mistakes about whose fault it was are put right afterwards. What a request may look like is
in `serving/protocol/v2.py`, where it goes in `serving/scheduling/routing.py`, what can be prepared for it in `route.py`. Each
await and each object here is paid for by every request: measure with `make bench` before adding one.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from time import perf_counter
from typing import Any

from serving import errors
from serving.gateway.asking.answers import error_of, has_died, renamed
from serving.gateway.asking.dispatch import RETRY_AFTER_S, Asked, ClientGone, Dispatch, Sent
from serving.gateway.asking.route import Route, Routes, as_on
from serving.gateway.asking.suspects import Suspects
from serving.gateway.fleet.candidates import Candidates
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.fleet.upstream import Answer, Lost
from serving.gateway.http.connection import respond
from serving.gateway.http.responses import Headers, error_response, outcome_of
from serving.gateway.metrics import Metrics
from serving.protocol import v2
from serving.scheduling.admission import DEFAULT, HIGHEST, LOWEST
from serving.settings import LimitSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_PLACES = 4  # that are looked at for one request: two may lose it, the others may have gone without having seen it
ONCE = {
    b"inference-header-content-length": "Inference-Header-Content-Length",
    b"tandem-deadline-ms": "Tandem-Deadline-Ms",
    b"tandem-priority": "Tandem-Priority",
    b"tandem-pool": "Tandem-Pool",
    b"tandem-variant": "Tandem-Variant",
}
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%btandem-reason: %b\r\nserver-timing: %b\r\n"
BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n%btandem-reason: %b\r\nserver-timing: %b\r\n"
    b"inference-header-content-length: %d\r\n"
)


class Infer:
    def __init__(
        self,
        catalogue: Catalogue,
        candidates: Candidates,
        dispatch: Dispatch,
        metrics: Metrics,
        limits: LimitSettings,
    ) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._limits = limits
        self._dispatch = dispatch
        self._suspects = Suspects()
        self.routes = Routes(catalogue, candidates, metrics)
        self.closing = False  # told to stop: every answer closes its connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = perf_counter()
        series = self._metrics.unresolved
        receipt: Headers = []  # filled once a model has worked on the request
        try:
            headers = dict(scope["headers"])
            route = self.routes.find(scope["path"], headers.get(b"tandem-pool"), headers.get(b"tandem-variant"))
            series = route.choices[0].series
            asked = await self._read(route, scope, headers, receive, arrived)
            if asked is None:
                series.outcomes["cancelled"] += 1
                return
            sent, answer = await self._ask(asked, receive)
            answered = perf_counter()
            wrong = self._answered(answered, asked, sent, answer)
            choice, reason = sent.choice, sent.reason.encode()
            if sent.server.differing:
                choice = as_on(choice, sent.server)
            series, receipt = choice.series, [*choice.receipt, (b"tandem-reason", reason)]
            if wrong is not None:
                raise wrong
        except ClientGone:
            series.outcomes["cancelled"] += 1
            return
        except (errors.RequestError, asyncio.CancelledError) as caught:
            error = self._refusal(caught)
            series.outcomes[outcome_of(error)] += 1
            if receipt:
                receipt = [*receipt, (b"server-timing", b"total;dur=%.3f" % ((perf_counter() - arrived) * 1000))]
            await error_response(send, error, receipt, close=self.closing or isinstance(error, errors.TooLarge))
            return
        body, length = answer.body, answer.header_length
        if choice.rename is not None:
            body, length = renamed(body, length, *choice.rename)
        done, began = perf_counter(), sent.ticket.sent
        timing = b"queue;dur=%.3f, backend;dur=%.3f, total;dur=%.3f" % (
            (began - arrived) * 1000,
            (answered - began) * 1000,
            (done - arrived) * 1000,
        )
        if length is None:
            head = JSON_HEAD % (len(body), choice.receipt_lines, reason, timing)
        else:
            head = BINARY_HEAD % (len(body), choice.receipt_lines, reason, timing, length)
        if not respond(send, head, body, close=self.closing):
            await self._respond_asgi(send, head, body)
        series.answered(began - arrived, answered - began, done - arrived)

    def _refusal(self, caught: errors.RequestError | asyncio.CancelledError) -> errors.RequestError:
        """uvicorn cancels what is in flight when the time to stop is over, and would answer a bare 500 by itself."""
        if isinstance(caught, errors.RequestError):
            return caught
        if not self.closing:
            raise caught
        return errors.NotReady("the gateway is stopping; try again", retry_after_s=RETRY_AFTER_S)

    async def _respond_asgi(self, send: Send, head: bytes, body: bytes) -> None:
        lines = [line.split(b": ", 1) for line in head.split(b"\r\n")[1:-1]]
        out = [(name, value) for name, value in lines]
        if self.closing:
            out.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": out})
        await send({"type": "http.response.body", "body": body})

    # -- before -------------------------------------------------------------------------------------------------------

    async def _read(
        self, route: Route, scope: Scope, headers: dict[bytes, bytes], receive: Receive, arrived: float
    ) -> Asked | None:
        """The whole request, checked; None if the client left."""
        limit = self._limits.max_body_bytes
        declared = headers.get(b"content-length")
        if declared is not None and int(declared) > limit:
            raise errors.TooLarge(f"the body has {int(declared)} bytes; at most {limit} are taken here")
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunks = [message.get("body", b"")]
        size = len(chunks[0])
        while message.get("more_body", False):
            message = await receive()
            if message["type"] != "http.request":
                return None
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise errors.TooLarge(f"the body has more than {limit} bytes, the most that is taken here")
        encoding = headers.get(b"content-encoding")
        if encoding is not None and encoding != b"identity":
            chunks = [decompress(b"".join(chunks), encoding, limit)]
            size = len(chunks[0])
        length = headers.get(b"inference-header-content-length")
        header_length = None if length is None else v2.inference_header_length(length, size)
        if len(headers) < len(scope["headers"]):
            _require_once(scope["headers"])
        if size == 0:
            raise errors.BadRequest("the request has no body; send a v2 inference request in JSON")
        head = (
            chunks[0]
            if length is None and len(chunks) == 1
            else _head(chunks, size if header_length is None else header_length)
        )
        checked = v2.check_head(head)
        if checked.rewritten is not None:
            rest = [b"".join(chunks)[len(head) :]] if header_length is not None else []
            head, chunks = checked.rewritten, [checked.rewritten, *rest]
            size = sum(map(len, chunks))
            header_length = None if header_length is None else len(head)
        waits_s = checked.timeout_us
        header = headers.get(b"tandem-deadline-ms")
        longest_s = self._limits.upstream_timeout_s
        give_up_at = deadline = arrived + longest_s
        if header is not None or waits_s is not None or route.objective_s < longest_s:
            deadline = arrived + min(_wait_s(header, waits_s), route.objective_s, longest_s)
        rows = route.rows_of(head)
        priority = headers.get(b"tandem-priority")
        level = DEFAULT if priority is None else _priority(priority)
        return Asked(route, head, chunks, size, header_length, rows, level, give_up_at, deadline, arrived)

    # -- at Triton ----------------------------------------------------------------------------------------------------

    async def _ask(self, asked: Asked, receive: Receive) -> tuple[Sent, Answer]:
        """The first answer that a living process gave; a second try, elsewhere if there is an elsewhere, where one died.

        Inference has no side effect here (sequences are refused), so a second try is safe. A third is not made: what kills
        two servers is likely the request. One that found nobody, or a server that has unloaded the model, was no try.
        """
        self._suspects.require_innocent(asked)
        self._dispatch.note(asked)
        died = ""
        num_tries = num_places = 0
        while num_tries < 2 and num_places < MAX_PLACES:
            try:
                sent = await self._dispatch.place(asked, receive)
            except (errors.NotReady, errors.Overloaded):
                if not died:
                    raise
                break
            num_places += 1
            try:
                answer = await self._send(asked, sent, fresh=num_places > 1)
            except asyncio.CancelledError:
                self._dispatch.unsent(sent.ticket, sent.choice.candidate.queue)
                raise
            except Lost as lost:
                asked.tried.append(sent.server)
                self._dispatch.lost(perf_counter(), sent)
                if lost.timed_out:
                    raise errors.UpstreamLost("Triton did not answer in time", retry_after_s=RETRY_AFTER_S) from None
                if lost.refused:
                    self._catalogue.lost(sent.server)
                else:
                    num_tries += 1
                    if not lost.silent:
                        self._suspects.died(asked, sent)
                died = str(lost)
                continue
            if answer.status != 200 and self._is_away(asked, sent, answer):
                if answer.status == 500:
                    num_tries += 1
                    died = "the model's process died"
                continue
            self._suspects.answered(asked)
            return sent, answer
        if not died:
            raise errors.NotReady(f"'{asked.route.name}' is not ready; try again", retry_after_s=RETRY_AFTER_S)
        raise errors.UpstreamLost(f"the server that worked on this was lost ({died})", retry_after_s=RETRY_AFTER_S)

    async def _send(self, asked: Asked, sent: Sent, *, fresh: bool) -> Answer:
        target = sent.server.target
        if asked.header_length is None:
            rest = b"Content-Length: %d\r\n\r\n" % asked.size
        else:
            rest = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (
                asked.size,
                asked.header_length,
            )
        head = sent.choice.start + target.host_header + rest
        if asked.deadline == asked.give_up_at:  # the sweep looks after it
            connection = target.idle.pop() if target.idle and not fresh else await target.connect()
            return await connection.ask(head, asked.chunks, asked.give_up_at)
        try:
            left_s = asked.deadline - perf_counter()
            if left_s <= 0:  # it was woken late
                raise TimeoutError
            async with asyncio.timeout(left_s):
                connection = target.idle.pop() if target.idle and not fresh else await target.connect()
        except TimeoutError:
            self._dispatch.unsent(sent.ticket, sent.choice.candidate.queue)
            raise errors.DeadlineExpired("the deadline passed before the request was sent on") from None
        answer = connection.ask(head, asked.chunks, asked.give_up_at)
        await asyncio.wait((answer,), timeout=asked.deadline - perf_counter())
        if answer.done():
            return answer.result()
        answer.add_done_callback(partial(self._ended_late, asked, sent))
        raise errors.DeadlineExpired("the deadline passed before there was an answer")

    def _ended_late(self, asked: Asked, sent: Sent, answer: asyncio.Future[Answer]) -> None:
        """Its client has its 504; the server was busy with it until now, and tells by its end what `_ask` would have been told."""
        if answer.cancelled():
            self._dispatch.lost(perf_counter(), sent)
        elif (error := answer.exception()) is not None:
            self._dispatch.lost(perf_counter(), sent)
            if isinstance(error, Lost) and not error.timed_out and not error.silent:
                self._suspects.died(asked, sent)
        elif has_died(answer.result()):
            self._died(asked, sent)
        else:
            self._suspects.answered(asked)
            self._answered(perf_counter(), asked, sent, answer.result())

    def _answered(self, now: float, asked: Asked, sent: Sent, answer: Answer) -> errors.RequestError | None:
        """What is wrong with an answer. Only what is no mistake of the client's counts against the server."""
        wrong = None if answer.status == 200 else error_of(answer, asked, sent.choice)
        self._dispatch.answered(now, sent, is_good=wrong is None, is_failure=isinstance(wrong, errors.Internal))
        return wrong

    def _is_away(self, asked: Asked, sent: Sent, answer: Answer) -> bool:
        """Whether this answer is none, because the model is not there any more; then this server is left alone with it for a moment."""
        if has_died(answer):
            self._died(asked, sent)
        elif answer.status == 503 or (answer.status == 404 and not asked.route.versioned):
            self._catalogue.suspend(sent.server, sent.choice.name, sent.ticket.sent)
            self._dispatch.unsent(sent.ticket, sent.choice.candidate.queue)
        else:
            return False
        asked.tried.append(sent.server)
        return True

    def _died(self, asked: Asked, sent: Sent) -> None:
        """The server lives and the model's process in it does not."""
        self._catalogue.suspend(sent.server, sent.choice.name, sent.ticket.sent)
        self._dispatch.lost(perf_counter(), sent)
        self._suspects.died(asked, sent)


# -- headers and bodies -------------------------------------------------------------------------------------------------


def _wait_s(header: bytes | None, timeout_us: int | None) -> float:
    """How long the client waits at most: the less of Tandem-Deadline-Ms and v2's timeout, of which one is set."""
    wait_s = float("inf") if timeout_us is None else timeout_us / 1e6
    if header is None:
        return wait_s
    try:
        asked_s = float(header) / 1000
    except ValueError:
        raise errors.BadRequest("Tandem-Deadline-Ms must be a number of milliseconds") from None
    if not 0 < asked_s < float("inf"):
        raise errors.BadRequest("Tandem-Deadline-Ms must be more than 0 milliseconds")
    return min(wait_s, asked_s)


def _priority(header: bytes) -> int:
    if len(header) != 1 or not header.isdigit() or not HIGHEST <= int(header) <= LOWEST:
        raise errors.BadRequest(f"Tandem-Priority must be a number from {HIGHEST}, the highest, to {LOWEST}")
    return int(header)


def _require_once(headers: Headers) -> None:
    names = [name for name, _ in headers]
    for name, text in ONCE.items():
        if names.count(name) > 1:
            raise errors.BadRequest(f"{text} came more than once")


def _head(chunks: list[bytes], length: int) -> bytes:
    """The first `length` bytes."""
    if len(chunks) == 1:
        return chunks[0][:length]  # the very same object where that is all
    parts = []
    for chunk in chunks:
        parts.append(chunk[:length])
        length -= len(parts[-1])
        if length == 0:
            break
    return b"".join(parts)


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """A gzip or deflate (zlib) body. Raises Unsupported, BadRequest, or TooLarge past `limit` bytes."""
    bits = {b"gzip": 31, b"deflate": 15}.get(encoding.lower())
    if bits is None:
        raise errors.Unsupported(
            f"Content-Encoding {encoding[:40].decode('latin-1')!r} is not offered; gzip and deflate are"
        )
    inflate = zlib.decompressobj(wbits=bits)
    try:
        plain = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise errors.BadRequest(f"the body is not valid {encoding.decode()}: {error}") from None
    if len(plain) > limit:
        raise errors.TooLarge(f"the body has more than {limit} bytes once decompressed, the most that is taken here")
    if not inflate.eof or inflate.unused_data:
        raise errors.BadRequest(f"the body is not one whole {encoding.decode()} stream")
    return plain
