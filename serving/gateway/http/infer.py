"""The inference path, `POST /v2/models/{model}[/versions/{v}]/infer`, as raw ASGI.

Small JSON is forwarded as it came, large JSON as binary tensors; Triton's mistakes about whose fault it was are put right afterwards.
What a request may look like is in `serving/protocol/v2/`; admission, sending and second tries are in `request/inference.py`, for all
protocols. Each await and each object here is paid for by every request: measure with `make bench` before adding one.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from time import perf_counter

from serving import errors
from serving.gateway.access import Access, Caller
from serving.gateway.http.body import Chunks, read_body
from serving.gateway.http.client import HttpClient, Receive, Scope, Send
from serving.gateway.http.compression import MIN_BYTES, coding_of, compressed
from serving.gateway.http.connection import respond
from serving.gateway.http.guard import known
from serving.gateway.request.dispatch import ClientLeft, InferRequest
from serving.gateway.request.headers import priority, wait_s
from serving.gateway.request.inference import Inference
from serving.gateway.request.route import Route
from serving.gateway.request.triton_response import renamed, require_text
from serving.gateway.responses import error_response, outcome_of
from serving.gateway.threads import Threads
from serving.protocol import v2
from serving.settings import LimitSettings

CLOSING = (errors.TooLarge, errors.Unauthenticated)  # a body may follow that is not worth reading, or from a stranger
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%btandem-reason: %b\r\nserver-timing: %b\r\n"
BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n%btandem-reason: %b\r\nserver-timing: %b\r\n"
    b"inference-header-content-length: %d\r\n"
)


# JSON of this size or more goes on as binary tensors: at 10 kB that takes the gateway 0.01 ms longer than looking through it, from 20 kB on
# no longer, and spares Triton 5 µs per kB (python -m loadtest.bench.json_tensors, float32, 2-core x86-64). Not on a thread: Python's lock
# would be held there just as long.
BINARY_FROM_BYTES = 8 * 1024


class Infer:
    def __init__(self, inference: Inference, access: Access, limits: LimitSettings, preparing: Threads) -> None:
        self._inference = inference
        self._access = access
        self._limits = limits
        self._preparing = preparing
        self._json_tensors = v2.JsonTensors()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = perf_counter()
        inference = self._inference
        series = inference.unresolved
        asked: InferRequest | None = None
        try:
            headers, caller = known(scope, self._access)
            if caller.models is not None:
                inference.routes.require(caller, scope["path"])
            route = inference.routes.find(scope["path"], headers.get(b"tandem-pool"), headers.get(b"tandem-variant"))
            caller.require_model(route.model, route.name)
            series = route.choices[0].series
            asked = await self._read(route, headers, receive, arrived, caller)
            if asked is None:
                series.outcomes["cancelled"] += 1
                return
            choice, reason, answer, began, answered = await inference.ask(asked, HttpClient(receive))
            series = asked.series
            require_text(answer.body, answer.header_length)
        except ClientLeft:
            series.outcomes["cancelled"] += 1
            return
        except (errors.RequestError, asyncio.CancelledError) as caught:
            error = inference.worded(inference.refusal(caught))
            (series if asked is None else asked.series).outcomes[outcome_of(error)] += 1
            receipt = error.receipt
            if receipt:
                receipt = [*receipt, (b"server-timing", b"total;dur=%.3f" % ((perf_counter() - arrived) * 1000))]
            await error_response(send, error, receipt, close=inference.closing or isinstance(error, CLOSING))
            return
        body, length = answer.body, answer.header_length
        if choice.rename is not None:
            body, length = renamed(body, length, *choice.rename)
        coding = None
        if len(body) >= MIN_BYTES and b"accept-encoding" in headers:
            body, coding = await self._compressed(body, headers[b"accept-encoding"])
        done = perf_counter()
        timing = b"queue;dur=%.3f, backend;dur=%.3f, total;dur=%.3f" % (
            (began - arrived) * 1000,
            (answered - began) * 1000,
            (done - arrived) * 1000,
        )
        if length is None:
            head = JSON_HEAD % (len(body), choice.receipt_lines, reason, timing)
        else:
            head = BINARY_HEAD % (len(body), choice.receipt_lines, reason, timing, length)
        if coding is not None:
            head += b"content-encoding: %b\r\nvary: accept-encoding\r\n" % coding
        if not respond(send, head, body, close=inference.closing):
            await self._respond_asgi(send, head, body)
        series.answered(began - arrived, answered - began, done - arrived)

    async def _respond_asgi(self, send: Send, head: bytes, body: bytes) -> None:
        lines = [line.split(b": ", 1) for line in head.split(b"\r\n")[1:-1]]
        out = [(name, value) for name, value in lines]
        if self._inference.closing:
            out.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": out})
        await send({"type": "http.response.body", "body": body})

    async def _compressed(self, body: bytes, accept: bytes) -> tuple[bytes, bytes | None]:
        """The answer as the client likes it, and its coding."""
        coding = coding_of(accept)
        if coding is None:
            return body, None
        try:
            small = await self._preparing.run(partial(compressed, body, coding))
        except errors.Overloaded:
            return body, None
        return (body, None) if small is None else (small, coding)

    async def _read(
        self, route: Route, headers: dict[bytes, bytes], receive: Receive, arrived: float, caller: Caller
    ) -> InferRequest | None:
        """The whole request, checked; None if the client left."""
        limit = int(min(self._limits.max_body_bytes, route.max_body_bytes))
        chunks = await read_body(headers, receive, limit, self._preparing)
        if chunks is None:
            return None
        head, chunks, header_length, timeout_us = self._checked(
            chunks, headers.get(b"inference-header-content-length"), route
        )
        deadline_ms = headers.get(b"tandem-deadline-ms")
        longest_s = inf if timeout_us is None else timeout_us / 1e6
        return self._inference.asked(
            route,
            head,
            chunks,
            header_length,
            wait_s=longest_s if deadline_ms is None else min(wait_s(deadline_ms), longest_s),
            priority=priority(headers.get(b"tandem-priority"), caller.highest_priority),
            arrived=arrived,
        )

    def _checked(
        self, chunks: Chunks, length: bytes | None, route: Route
    ) -> tuple[bytes, Chunks, int | None, int | None]:
        """The JSON part, the body as Triton gets it, the length of its JSON part where tensors follow, and `timeout` in microseconds."""
        size = sum(map(len, chunks))
        header_length = None if length is None else v2.inference_header_length(length, size)
        if size == 0:
            raise errors.BadRequest("the request has no body; send a v2 inference request in JSON")
        if header_length is None and size >= BINARY_FROM_BYTES:
            chunks = chunks if len(chunks) == 1 else [b"".join(chunks)]
            binary = self._json_tensors.to_binary(chunks[0])
            if binary is not None:
                if route.binary_only:
                    v2.require_json_outputs(binary.head, route.binary_only)
                return binary.head, [binary.head, *binary.tensors], len(binary.head), binary.timeout_us
        head = (
            chunks[0]
            if length is None and len(chunks) == 1
            else _head(chunks, size if header_length is None else header_length)
        )
        checked = v2.check_head(head, size)
        if checked.rewritten is not None:
            rest = [b"".join(chunks)[len(head) :]] if header_length is not None else []
            head, chunks = checked.rewritten, [checked.rewritten, *rest]
            header_length = None if header_length is None else len(head)
        if route.binary_only and head:
            v2.require_json_outputs(head, route.binary_only)
        return head, chunks, header_length, checked.timeout_us


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
