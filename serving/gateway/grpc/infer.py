"""Inference over gRPC: ModelInfer, and each request of a ModelStreamInfer, are exchanges like those over HTTP.

They go to Triton over the same pooled HTTP/1.1 connections, in the binary tensor extension, whose tensors are the very bytes of
`raw_input_contents`. `serving/protocol/grpc_v2.py` reads the messages. Rule: an RPC that is cancelled leaves the queue; work that a server
has begun is waited for all the same.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from math import inf

from serving import errors
from serving.gateway.fleet.upstream import JOIN_BELOW_BYTES
from serving.gateway.grpc.rpc import Rpc
from serving.gateway.grpc.status import Code, as_text, code_of, error_metadata
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import Body
from serving.gateway.request.route import Route
from serving.gateway.request.traces import Entry
from serving.gateway.threads import Threads
from serving.protocol import grpc_v2, v2
from serving.protocol.grpc_v2 import Chunk, Envelope
from serving.protocol.http2 import (
    WINDOW_BYTES as SMALL_BYTES,  # what is not counted, as a body that comes over HTTP in one read
)
from serving.protocol.http2 import Piece
from serving.protocol.memory import Claims

# A request with so much besides raw tensors has typed contents, which take about 30 ns a byte to pack (measured: 5 ms for 150,000 numbers).
THREAD_ABOVE_BYTES = 32 * 1024
UNARY, STREAM = (f"inference.GRPCInferenceService/{it}" for it in ("ModelInfer", "ModelStreamInfer"))


class GrpcExchange(Exchange):
    __slots__ = ("method",)

    method: str

    def _entry(self, error: BaseException | None, _: str = "") -> Entry:
        code = Code.OK if error is None else Code.CANCELLED
        if error is not None and not isinstance(error, (ClientLeft, CancelledError)):
            code = code_of(error) if isinstance(error, errors.RequestError) else Code.INTERNAL
        attributes = {"rpc.system.name": "grpc", "rpc.method": self.method, "rpc.response.status_code": code.name}
        return Entry(self.method, attributes)


class GrpcInfer:
    def __init__(self, inference: Inference, threads: Threads) -> None:
        self._inference = inference
        self._threads = threads

    def require_quota(self, tenant: str, rpc: Rpc) -> None:
        """Before the one message of an RPC has come, and by its length before it is whole. Raises QuotaExceeded, TooLarge or NotReady."""
        usage = self._inference.usage
        if usage is None or tenant not in usage.ledger.quotas:
            return
        most = rpc.max_bytes

        def most_in_quota(size: int) -> float:
            try:
                usage.require(tenant, size)
            except errors.QuotaExceeded:
                if self._inference.access.table is not None:  # or else `refused` knows whose it is
                    usage.ledger.refused(tenant, "rate_limited")
                raise
            return most(size)

        most_in_quota(0)
        rpc.max_bytes = most_in_quota

    def refused(self, error: errors.RequestError) -> None:
        """Counts one whose message nobody has read."""
        exchange = GrpcExchange(self._inference)
        exchange.method = UNARY
        with suppress(errors.RequestError), exchange:
            raise error

    async def unary(self, message: bytes, rpc: Rpc) -> Sequence[Piece]:
        """ModelInfer. Raises RequestError, ClientLeft, or CancelledError."""
        exchange, pieces = await self._infer(message, rpc, is_streamed=False)
        rpc.trailing = exchange.receipt
        return pieces

    async def stream(self, rpc: Rpc) -> AsyncIterator[Sequence[Piece]]:
        """ModelStreamInfer: one after the other. What is wrong with one is told in its answer, and the next is taken."""
        async for message in rpc.messages():
            try:
                exchange, pieces = await self._infer(message, rpc, is_streamed=True)
                pieces.append(grpc_v2.with_parameters(as_text(exchange.receipt)))
                yield grpc_v2.streamed(pieces)
            except errors.RequestError as error:
                yield (_stream_error(message, self._inference.worded(errors.without_frames(error))),)

    async def _infer(self, message: bytes, rpc: Rpc, *, is_streamed: bool) -> tuple[Exchange, list[bytes]]:
        """The answer in pieces, and the exchange that is over. Raises RequestError, ClientLeft, or CancelledError."""
        exchange = GrpcExchange(self._inference)
        exchange.method = STREAM if is_streamed else UNARY
        rpc.on_left = exchange.leave
        try:
            with exchange:
                exchange.authenticate(rpc.metadata)
                exchange.require_quota(len(message))
                if rpc.claim.held and not is_streamed:
                    exchange.claim().take_over(rpc.claim)
                elif len(message) > SMALL_BYTES:
                    exchange.claim().take(len(message))
                envelope = grpc_v2.opened(message)
                route = exchange.route = self._route(envelope, exchange)
                asked_s = rpc.deadline - exchange.arrived
                if envelope.size <= route.max_body_bytes:
                    exchange.require_room(route, Body("grpc", envelope.size, sum(map(len, envelope.raw))), asked_s)
                head, blobs, timeout_us = await self._read(envelope, route, exchange.claim, is_streamed=is_streamed)
                longest_s = min(asked_s, inf if timeout_us is None else timeout_us / 1e6)
                reply = await exchange.infer(route, head, _chunks(head, blobs), len(head), longest_s)
                _, length, start, rest = reply.answer
                return exchange, grpc_v2.answer((start, *rest), length, route.name, is_streamed=is_streamed)
        finally:
            rpc.on_left = None

    def _route(self, envelope: Envelope, exchange: Exchange) -> Route:
        model, version = envelope.model, envelope.version
        if not model or "/" in model:
            raise errors.NotFound(f"'{model[:200]}' is no model's name")
        if version and not (version.isascii() and version.isdigit() and len(version) <= 9):
            raise errors.NotFound(f"'{version[:200]}' is not a version number")
        return self._inference.routes.of(model, version, exchange.headers, exchange.caller)

    async def _read(
        self, envelope: Envelope, route: Route, claim: Claims, *, is_streamed: bool
    ) -> tuple[bytes, list[Chunk], int | None]:
        """The JSON part, the tensors behind it, and `timeout` in microseconds. Raises RequestError."""
        if envelope.size > route.max_body_bytes:
            raise errors.TooLarge(
                f"the message has {envelope.size} bytes; '{route.name}' takes at most {route.max_body_bytes:.0f}"
            )
        if envelope.described > THREAD_ABOVE_BYTES:
            claim().take(envelope.described)  # once more, as tensors
            head, blobs = await self._threads.run(lambda: grpc_v2.translated(envelope, is_streamed=is_streamed))
        else:
            head, blobs = grpc_v2.translated(envelope, is_streamed=is_streamed)
        checked = v2.check_head(head, envelope.size)
        checked.require_known(route.name, takes_parameters=route.takes_parameters)
        return head, blobs, checked.timeout_us


def _chunks(head: bytes, blobs: list[Chunk]) -> list[Chunk]:
    chunks = [head, *(blob for blob in blobs if len(blob))]
    return [b"".join(chunks)] if sum(map(len, chunks)) < JOIN_BELOW_BYTES else chunks


def _stream_error(message: bytes, error: errors.RequestError) -> bytes:
    """With the id of the request, where it can be read."""
    try:
        envelope = grpc_v2.opened(message)
        request_id, model = str(envelope.description.id), envelope.model
    except errors.RequestError:
        request_id = model = ""
    return grpc_v2.stream_error(str(error), request_id, model, as_text(error_metadata(error)))
