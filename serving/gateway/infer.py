"""The inference path, `POST /v2/models/{model}[/versions/{v}]/infer`, as raw ASGI.

Everything that is the same for every request of a kind (decisions, upstream request lines, receipt headers, counters) is made
once and kept in a Route until the fleet changes. JSON is forwarded as it came; Triton's mistakes about whose fault it was are put
right afterwards. What a request may look like is in `serving/protocol/v2.py`, where it goes in `serving/scheduling/routing.py`.
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
from serving.gateway.metrics import Metrics, Series
from serving.gateway.responses import Headers, error_response, outcome_of
from serving.gateway.upstream import Answer, Lost
from serving.protocol import v2
from serving.scheduling.routing import Decision, Pins, decide
from serving.settings import LimitSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/infer")
MAX_ROUTES = 4096  # names and pins come from clients: past this many the kept routes are dropped and made again
RETRY_AFTER_S = 1.0  # an embedded Triton or a dead stub is back in about a second
DIED = re.compile(rb"Stub process|is not healthy|[Ff]ailed to (?:get|receive) .*stub")
JSON_CONTENT = (b"content-type", b"application/json")
BINARY_CONTENT = (b"content-type", b"application/octet-stream")


@dataclass(frozen=True, slots=True)
class Choice:
    """One place a request may go, with all that can be said before it comes."""

    decision: Decision
    start: bytes  # of the upstream request, up to the host header
    receipt: Headers
    series: Series
    rename: tuple[bytes, bytes] | None  # Triton's model name in its answer -> the name that was asked for


@dataclass(slots=True)
class Asked:
    """A request as it came."""

    name: str
    body: bytes
    chunks: list[bytes]
    header_length: int | None
    deadline: float | None  # loop time


class Infer:
    def __init__(self, catalogue: Catalogue, metrics: Metrics, limits: LimitSettings) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._routes: dict[tuple[str, bytes | None, bytes | None], tuple[str, list[Choice]]] = {}
        self.closing = False  # told to stop: every answer closes its connection

    def forget_routes(self) -> None:
        self._routes.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = perf_counter()
        series = self._metrics.unresolved
        receipt: Headers = []  # filled once a model has worked on it
        try:
            headers = dict(scope["headers"])
            name, choices = self._route(scope["path"], headers)
            series = choices[0].series
            asked = await self._read(name, scope, headers, receive)
            if asked is None:
                series.outcomes["cancelled"] += 1
                return
            sent = perf_counter()
            choice, answer = await self._ask(asked, choices)
            answered = perf_counter()
            series, receipt = choice.series, choice.receipt
            self._check(answer, asked, choice)
        except errors.RequestError as error:
            series.outcomes[outcome_of(error)] += 1
            timing = b"total;dur=%.3f" % ((perf_counter() - arrived) * 1000)
            extra = [*receipt, (b"server-timing", timing)] if receipt else []
            await error_response(send, error, extra, close=self.closing or isinstance(error, errors.TooLarge))
            return
        parts, length = _renamed(answer, choice.rename)
        done = perf_counter()
        out: Headers = [
            JSON_CONTENT if length is None else BINARY_CONTENT,
            (b"content-length", b"%d" % sum(map(len, parts))),
            *receipt,
            (
                b"server-timing",
                b"queue;dur=%.3f, backend;dur=%.3f, total;dur=%.3f"
                % ((sent - arrived) * 1000, (answered - sent) * 1000, (done - arrived) * 1000),
            ),
        ]
        if length is not None:
            out.append((b"inference-header-content-length", b"%d" % length))
        if self.closing:
            out.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": out})
        for part in parts[:-1]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": parts[-1]})
        series.outcomes["ok"] += 1
        series.request.observe(done - arrived)
        series.queue.observe(sent - arrived)
        series.backend.observe(answered - sent)

    # -- before -------------------------------------------------------------------------------------------------------

    def _route(self, path: str, headers: dict[bytes, bytes]) -> tuple[str, list[Choice]]:
        key = (path, headers.get(b"tandem-pool"), headers.get(b"tandem-variant"))
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            route = self._routes[key] = self._make_route(*key)
        return route

    def _make_route(self, path: str, pool: bytes | None, variant: bytes | None) -> tuple[str, list[Choice]]:
        match = PATH.fullmatch(path)
        if match is None:
            raise errors.NotFound("the path is not /v2/models/MODEL[/versions/NUMBER]/infer")
        name, version = match.groups()
        pins = Pins(pool.decode("latin-1") if pool else None, variant.decode("latin-1") if variant else None)
        return name, [self._choice(name, version, d) for d in decide(self._catalogue.fleet, name, pins)]

    def _choice(self, name: str, version: str | None, decision: Decision) -> Choice:
        variant = decision.variant
        path = f"/v2/models/{variant.name}" + (f"/versions/{version}" if version else "") + "/infer"
        receipt = {
            "tandem-pool": decision.pool,
            "tandem-device": variant.device,
            "tandem-variant": variant.variant,
            "tandem-engine": variant.engine,
            "tandem-model-digest": f"sha256:{variant.digest}",
            "tandem-reason": decision.reason,
        }
        return Choice(
            decision,
            f"POST {path} HTTP/1.1\r\n".encode(),
            [(key.encode(), value.encode("latin-1")) for key, value in receipt.items()],
            self._metrics.series(name, variant.variant, decision.pool),
            None
            if variant.name == name
            else (b'"model_name":"%b"' % variant.name.encode(), b'"model_name":"%b"' % name.encode()),
        )

    async def _read(self, name: str, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Asked | None:
        """The whole request, checked; None if the client left."""
        limit = self._limits.max_body_bytes
        declared = headers.get(b"content-length")
        if declared is not None and int(declared) > limit:
            raise errors.TooLarge(f"the body has {int(declared)} bytes; at most {limit} are taken here")
        message = await receive()
        chunks, size = [], 0
        while message["type"] == "http.request":
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise errors.TooLarge(f"the body has more than {limit} bytes, the most that is taken here")
            if not message.get("more_body", False):
                break
            message = await receive()
        else:
            return None
        encoding = headers.get(b"content-encoding")
        if encoding not in (None, b"identity"):
            chunks = [decompress(b"".join(chunks), encoding, limit)]
            size = len(chunks[0])
        if len(chunks) > 1:
            chunks = [chunk for chunk in chunks if chunk]
        length = v2.inference_header_length(headers.get(b"inference-header-content-length"), size)
        if length is not None and sum(k == b"inference-header-content-length" for k, _ in scope["headers"]) > 1:
            raise errors.BadRequest("Inference-Header-Content-Length came more than once")
        head = _head(chunks, size if length is None else length)
        if size == 0:
            raise errors.BadRequest("the request has no body; send a v2 inference request in JSON")
        timeout_us = v2.check_head(head).timeout_us
        return Asked(name, head, chunks, length, self._deadline(headers.get(b"tandem-deadline-ms"), timeout_us))

    def _deadline(self, header: bytes | None, timeout_us: int | None) -> float | None:
        """The earlier of the header's and the body's, in loop time."""
        waits_s = []
        if header is not None:
            try:
                waits_s.append(float(header) / 1000)
            except ValueError:
                raise errors.BadRequest("Tandem-Deadline-Ms must be a number of milliseconds") from None
            if not 0 < waits_s[0] < float("inf"):
                raise errors.BadRequest("Tandem-Deadline-Ms must be more than 0 milliseconds")
        if timeout_us is not None:
            waits_s.append(timeout_us / 1e6)
        return self._loop.time() + min(waits_s) if waits_s else None

    # -- at Triton ----------------------------------------------------------------------------------------------------

    async def _ask(self, asked: Asked, choices: list[Choice]) -> tuple[Choice, Answer]:
        """The first answer that a living process gave; a second try, elsewhere if there is an elsewhere, where one died.

        Inference has no side effect here (sequences are refused), so a second try is safe. A third is not made: what kills
        two servers is likely the request.
        """
        tried: list[Server] = []
        died = ""
        while len(tried) < 2 and (place := self._place(choices, tried)) is not None:
            choice, server = place
            try:
                answer = await self._send(asked, choice, server, fresh=bool(tried))
            except Lost as lost:
                if lost.timed_out:
                    raise errors.UpstreamLost("Triton did not answer in time", retry_after_s=RETRY_AFTER_S) from None
                if lost.refused:
                    self._catalogue.lost(server)
                died = str(lost)
            else:
                if answer.status != 500 or not DIED.search(answer.body):
                    return choice, answer
                self._catalogue.suspend(server, choice.decision.variant.name)
                died = "the model's process died"
            tried.append(server)
        if not died:
            raise errors.NotReady(f"'{asked.name}' is not ready; try again", retry_after_s=RETRY_AFTER_S)
        raise errors.UpstreamLost(f"the server that worked on this was lost ({died})", retry_after_s=RETRY_AFTER_S)

    def _place(self, choices: list[Choice], tried: list[Server]) -> tuple[Choice, Server] | None:
        """The best decision that a server can carry out, on one that was not tried where there is one."""
        again = None
        for choice in choices:
            server = self._catalogue.pick(choice.decision.pool, choice.decision.variant.name, tried)
            if server is not None and server not in tried:
                return choice, server
            if server is not None and again is None:
                again = choice, server
        return again

    async def _send(self, asked: Asked, choice: Choice, server: Server, *, fresh: bool) -> Answer:
        target = server.target
        size = sum(map(len, asked.chunks))
        if asked.header_length is None:
            rest = b"Content-Length: %d\r\n\r\n" % size
        else:
            rest = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (size, asked.header_length)
        head = choice.start + target.host_header + rest
        limit = self._loop.time() + self._limits.upstream_timeout_s
        if asked.deadline is None:
            return await target.ask(head, asked.chunks, limit, fresh=fresh)
        try:
            async with asyncio.timeout_at(asked.deadline):
                return await target.ask(head, asked.chunks, limit, fresh=fresh)
        except TimeoutError:
            raise errors.DeadlineExpired("the deadline passed before there was an answer") from None

    # -- after --------------------------------------------------------------------------------------------------------

    def _check(self, answer: Answer, asked: Asked, choice: Choice) -> None:
        """Raises the error that a status other than 200 stands for, with a text of ours."""
        if answer.status == 200:
            return
        text = _error_text(answer.body, choice.decision.variant.name, asked.name)
        if answer.status >= 500:
            mistake = (
                v2.explain(asked.body, binary=asked.header_length is not None) if asked.header_length != 0 else None
            )
            if mistake is not None:
                raise mistake
        if answer.status in (404, 503):
            raise errors.NotReady(f"'{asked.name}' is not ready: {text}", retry_after_s=RETRY_AFTER_S)
        if answer.status == 501:
            raise errors.Unsupported(text)
        if answer.status < 500:
            raise errors.BadRequest(text)
        raise errors.Internal(f"the model failed on this request: {text}")


def _renamed(answer: Answer, rename: tuple[bytes, bytes] | None) -> tuple[list[bytes | memoryview], int | None]:
    """The answer with the name that was asked for, in parts so that tensors are not copied, and its JSON part's length.

    The bytes `"model_name":"…"` cannot stand inside a JSON string (its quotes would be escaped), and the JSON part comes first.
    """
    body, length = answer.body, answer.header_length
    if rename is None:
        return [body], length
    old, new = rename
    at = body.find(old, 0, len(body) if length is None else length)
    if at < 0:
        return [body], length
    start = body[:at] + new
    rest = memoryview(body)[at + len(old) :]
    if len(rest) < 4096:  # one more write costs more than this copy; a guess, not measured
        return [start + rest], None if length is None else length + len(new) - len(old)
    return [start, rest], None if length is None else length + len(new) - len(old)


def _head(chunks: list[bytes], length: int) -> bytes:
    """The first `length` bytes."""
    if len(chunks) == 1 and len(chunks[0]) == length:
        return chunks[0]
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
