"""The inference path, `POST /v2/models/{model}[/versions/{v}]/infer`, as raw ASGI.

JSON is forwarded as it came; Triton's mistakes about whose fault it was are put right afterwards. What a request may look like is
in `serving/protocol/v2.py`, where it goes in `serving/scheduling/routing.py`, what can be prepared for it in `route.py`. Each
await and each object here is paid for by every request: measure with `make bench` before adding one.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import orjson

from serving import errors
from serving.gateway.catalogue import Catalogue, Server
from serving.gateway.connection import respond
from serving.gateway.metrics import Metrics
from serving.gateway.responses import Headers, error_response, outcome_of
from serving.gateway.route import Choice, Route, Routes
from serving.gateway.upstream import Answer, Lost
from serving.protocol import v2
from serving.settings import LimitSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

RETRY_AFTER_S = 1.0  # an embedded Triton or a dead stub is back in about a second (`make prove`)
REQUEST_ID = re.compile(rb"\[request id: [^\]]*\]")  # the client's words in Triton's text
DIED = re.compile(rb"Stub process|is not healthy|[Ff]ailed to (?:get|receive) .*stub")
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bserver-timing: %b\r\n"
BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n%bserver-timing: %b\r\n"
    b"inference-header-content-length: %d\r\n"
)


@dataclass(slots=True)
class Asked:
    """A request as it came: its JSON part, all its bytes, where binary tensors begin, and until when (perf_counter) it waits."""

    route: Route
    head: bytes
    chunks: list[bytes]
    size: int
    header_length: int | None
    give_up_at: float
    deadline: float | None


class Infer:
    def __init__(self, catalogue: Catalogue, metrics: Metrics, limits: LimitSettings) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._limits = limits
        self.routes = Routes(catalogue, metrics)
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
            sent = perf_counter()
            choice, answer = await self._ask(asked)
            answered = perf_counter()
            series, receipt = choice.series, choice.receipt
            if answer.status != 200:
                raise _error(answer, asked, choice)
        except (errors.RequestError, asyncio.CancelledError) as caught:
            error = self._refusal(caught)
            series.outcomes[outcome_of(error)] += 1
            if receipt:
                receipt = [*receipt, (b"server-timing", b"total;dur=%.3f" % ((perf_counter() - arrived) * 1000))]
            await error_response(send, error, receipt, close=self.closing or isinstance(error, errors.TooLarge))
            return
        body, length = answer.body, answer.header_length
        if choice.rename is not None:
            body, length = _renamed(body, length, *choice.rename)
        done = perf_counter()
        timing = b"queue;dur=%.3f, backend;dur=%.3f, total;dur=%.3f" % (
            (sent - arrived) * 1000,
            (answered - sent) * 1000,
            (done - arrived) * 1000,
        )
        if length is None:
            head = JSON_HEAD % (len(body), choice.receipt_lines, timing)
        else:
            head = BINARY_HEAD % (len(body), choice.receipt_lines, timing, length)
        if not respond(send, head, body, close=self.closing):
            await self._respond_asgi(send, head, body)
        series.answered(sent - arrived, answered - sent, done - arrived)

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
        if length is not None and len(headers) < len(scope["headers"]) and _came_twice(scope["headers"]):
            raise errors.BadRequest("Inference-Header-Content-Length came more than once")
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
        deadline = None if header is None and waits_s is None else arrived + _wait_s(header, waits_s)
        return Asked(route, head, chunks, size, header_length, arrived + self._limits.upstream_timeout_s, deadline)

    # -- at Triton ----------------------------------------------------------------------------------------------------

    async def _ask(self, asked: Asked) -> tuple[Choice, Answer]:
        """The first answer that a living process gave; a second try, elsewhere if there is an elsewhere, where one died.

        Inference has no side effect here (sequences are refused), so a second try is safe. A third is not made: what kills
        two servers is likely the request.
        """
        tried: list[Server] = []
        died = ""
        while len(tried) < 2 and (place := self._place(asked.route.choices, tried)) is not None:
            choice, server = place
            sent = perf_counter()
            try:
                answer = await self._send(asked, choice, server, fresh=bool(tried))
            except Lost as lost:
                if lost.timed_out:
                    raise errors.UpstreamLost("Triton did not answer in time", retry_after_s=RETRY_AFTER_S) from None
                if lost.refused:
                    self._catalogue.lost(server)
                died = str(lost)
            else:
                if answer.status != 500 or not DIED.search(REQUEST_ID.sub(b"", answer.body)):
                    return choice, answer
                self._catalogue.suspend(server, choice.name, sent)
                died = "the model's process died"
            tried.append(server)
        if not died:
            raise errors.NotReady(f"'{asked.route.name}' is not ready; try again", retry_after_s=RETRY_AFTER_S)
        raise errors.UpstreamLost(f"the server that worked on this was lost ({died})", retry_after_s=RETRY_AFTER_S)

    def _place(self, choices: list[Choice], tried: list[Server]) -> tuple[Choice, Server] | None:
        """The best decision that a server can carry out, on one that was not tried where there is one."""
        again = None
        for choice in choices:
            server = choice.only
            if server is None or not server.alive or server.suspended:
                server = self._catalogue.pick(choice.pool, choice.name, tried)
            if server is not None and server not in tried:
                return choice, server
            if server is not None and again is None:
                again = choice, server
        return again

    async def _send(self, asked: Asked, choice: Choice, server: Server, *, fresh: bool) -> Answer:
        target = server.target
        if asked.header_length is None:
            rest = b"Content-Length: %d\r\n\r\n" % asked.size
        else:
            rest = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (
                asked.size,
                asked.header_length,
            )
        head = choice.start + target.host_header + rest
        if asked.deadline is None:
            connection = target.idle.pop() if target.idle and not fresh else await target.connect()
            return await connection.ask(head, asked.chunks, asked.give_up_at)
        left_s = asked.deadline - perf_counter()
        if left_s <= 0:
            raise errors.DeadlineExpired("the deadline passed before the request was sent on")
        try:
            async with asyncio.timeout(left_s):
                return await target.ask(head, asked.chunks, asked.give_up_at, fresh=fresh)
        except TimeoutError:
            raise errors.DeadlineExpired("the deadline passed before there was an answer") from None


# -- after ------------------------------------------------------------------------------------------------------------


def _error(answer: Answer, asked: Asked, choice: Choice) -> errors.RequestError:
    """What a status other than 200 stands for, with a text of ours."""
    name = asked.route.name
    text = _error_text(answer.body, choice.name, name)
    if answer.status >= 500 and asked.header_length != 0:
        mistake = v2.explain(asked.head, binary=asked.header_length is not None)
        if mistake is not None:
            return mistake
    if answer.status == 404 and asked.route.versioned:
        return errors.NotFound(f"'{name}' has no such version")
    if answer.status in (404, 503):
        return errors.NotReady(f"'{name}' is not ready: {text}", retry_after_s=RETRY_AFTER_S)
    if answer.status == 501:
        return errors.Unsupported(text)
    if answer.status < 500:
        return errors.BadRequest(text)
    return errors.Internal(f"the model failed on this request: {text}")


def _renamed(body: bytes, length: int | None, old: bytes, new: bytes) -> tuple[bytes, int | None]:
    """The answer with the name that was asked for, and the new length of its JSON part.

    The bytes `"model_name":"…"` cannot stand inside a JSON string (its quotes would be escaped), and the JSON part comes first.
    """
    at = body.find(old, 0, len(body) if length is None else length)
    if at < 0:
        return body, length
    return body[:at] + new + body[at + len(old) :], None if length is None else length + len(new) - len(old)


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


def _came_twice(headers: Headers) -> bool:
    return sum(name == b"inference-header-content-length" for name, _ in headers) > 1


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


def _error_text(body: bytes, served: str, asked: str) -> str:
    """Triton's message without what is internal: the variant's name, request ids, paths."""
    try:
        text = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "Triton gave no reason"
    if not isinstance(text, str):
        return "Triton gave no reason"
    text = re.sub(r"\[request id: [^\]]*\]\s*", "", text).replace(served, asked)
    text = re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*", "…", text)
    return text[:500]


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
