"""The inference path, `POST /v2/models/{model}[/versions/{v}]/infer`: Triton's own protocol, small JSON forwarded as it came.

Each await and each object here is paid for by every request: measure with `make bench` before adding one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf

from serving import errors
from serving.gateway.http.body import V2Body, read_body
from serving.gateway.http.compression import MIN_BYTES, coding_of, compressed
from serving.gateway.http.exchange import HttpExchange, Response, Surface
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import declared_size, v2_body
from serving.gateway.request.triton_response import IN_ONE_GO_BYTES, client_body, long_client_body
from serving.gateway.threads import Threads
from serving.settings import LimitSettings

OCTETS = b"application/octet-stream"


class Infer(Surface):
    def __init__(self, inference: Inference, limits: LimitSettings, threads: Threads) -> None:
        super().__init__(inference)
        self._max_body_bytes = limits.max_body_bytes
        self._threads = threads
        self._body = V2Body(threads, limits.max_body_bytes)

    async def handle(self, exchange: HttpExchange) -> Response:
        headers = exchange.headers
        route = exchange.route = self.inference.routes.find(exchange.request.head.path, headers, exchange.caller)
        limit = self._max_body_bytes
        if route.max_body_bytes < limit:
            limit = int(route.max_body_bytes)
        if self.inference.usage is not None:
            exchange.require_quota(declared_size(headers), is_whole=exchange.request.is_whole)
        if exchange.arrived < route.congestion.until and declared_size(headers) <= limit:
            exchange.require_room(route, v2_body(headers))
        chunks = await read_body(exchange.request, limit, self._threads, exchange.claim)
        head, content, header_length, known = await self._body.check(
            chunks, headers.get(b"inference-header-content-length"), route, exchange.claim
        )
        longest_s = inf if known.timeout_us is None else known.timeout_us / 1e6
        try:
            destination, _, answer, _, _, _ = await exchange.infer(route, head, content, header_length, longest_s)
        except errors.Overloaded:
            exchange.guess_by(v2_body(headers))
            raise
        rest: Sequence[bytes] = ()
        if answer.rest or len(answer.start) > IN_ONE_GO_BYTES:
            (body, *rest), length = await long_client_body(answer, destination.rename)
        else:
            body, length = client_body(answer, destination.rename)
        more = b"" if length is None else b"inference-header-content-length: %d\r\n" % length
        if (rest or len(body) >= MIN_BYTES) and b"accept-encoding" in headers:
            coding = coding_of(headers[b"accept-encoding"])
            if coding is not None and (small := await self._compressed((body, *rest), coding)) is not None:
                body, rest = small, ()
                more += b"content-encoding: %b\r\nvary: accept-encoding\r\n" % coding
        return Response(body, b"application/json" if length is None else OCTETS, more, b"", rest)

    async def _compressed(self, parts: Sequence[bytes], coding: bytes) -> bytes | None:
        """None where the answer stays as it is."""
        try:
            return await self._threads.run(partial(compressed, parts, coding))
        except errors.Overloaded:
            return None
