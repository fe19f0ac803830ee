"""Inference over gRPC: ModelInfer, and each request of a ModelStreamInfer, are exchanges like those over HTTP.

They go to Triton over the same pooled HTTP/1.1 connections, in the binary tensor extension, whose tensors are the very bytes of
`raw_input_contents`. `serving/protocol/grpc_v2.py` reads the messages. Rule: an RPC that is cancelled leaves the queue; work that a server
has begun is waited for all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Any

from serving import errors
from serving.gateway.grpc.partial_messages import SMALL_BYTES
from serving.gateway.grpc.status import as_metadata, error_metadata, metadata_in
from serving.gateway.grpc.streams import Streams
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference, Reply
from serving.gateway.request.request_headers import Body
from serving.gateway.request.route import Route
from serving.gateway.threads import Threads
from serving.protocol import grpc_v2, v2
from serving.protocol.grpc_v2 import Chunk, Envelope
from serving.protocol.memory import Claims

# A request with so much besides raw tensors has typed contents, which take about 30 ns a byte to pack (measured: 5 ms for 150,000 numbers).
THREAD_ABOVE_BYTES = 32 * 1024
JOIN_BELOW_BYTES = 64 * 1024  # up to here one copied write is cheaper than a gathered one, as in `upstream.py`
JOIN_HERE_BYTES = 2**20  # of an answer, in 0.02 ms; for so many and more CPython gives up its lock
log = logging.getLogger(__name__)


class GrpcInfer:
    def __init__(
        self,
        inference: Inference,
        threads: Threads,
        streams: Streams,
    ) -> None:
        self._inference = inference
        self._threads = threads
        self._streams = streams

    def refused(self, error: errors.RequestError) -> None:
        """Counts one whose message nobody has read."""
        with suppress(errors.RequestError), Exchange(self._inference):
            raise error

    async def unary(self, message: bytes, context: Any) -> bytes:
        """ModelInfer. Raises RequestError, or CancelledError."""
        exchange, pieces = await self._infer(message, context, is_streamed=False)
        context.set_trailing_metadata(as_metadata(exchange.receipt))
        return await _joined(pieces)

    async def stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """ModelStreamInfer: one after the other. What is wrong with one is told in its answer, and the next is taken."""
        async for message in self._streams.coming(messages, context):
            try:
                exchange, pieces = await self._infer(message, context, is_streamed=True)
                pieces.append(grpc_v2.with_parameters(dict(as_metadata(exchange.receipt))))
                yield await _joined(grpc_v2.streamed(pieces))
            except errors.RequestError as error:
                yield _stream_error(message, self._inference.worded(error))

    async def _infer(self, message: bytes, context: Any, *, is_streamed: bool) -> tuple[Exchange, list[bytes]]:
        """The answer in pieces, and the exchange that is over. Raises RequestError, or CancelledError."""
        exchange = Exchange(self._inference)
        with exchange:
            exchange.authenticate(metadata_in(context.invocation_metadata()))
            if len(message) > SMALL_BYTES:
                exchange.claim().take(len(message))
            envelope = grpc_v2.opened(message)
            route = exchange.route = self._route(envelope, exchange)
            left_s = context.time_remaining()
            asked_s = inf if left_s is None else perf_counter() - exchange.arrived + left_s
            if envelope.size <= route.max_body_bytes:
                exchange.require_room(route, Body("grpc", envelope.size, sum(map(len, envelope.raw))), asked_s)
            head, blobs, timeout_us = await self._read(envelope, route, exchange.claim, is_streamed=is_streamed)
            longest_s = min(asked_s, inf if timeout_us is None else timeout_us / 1e6)
            inferring = exchange.infer(route, head, _chunks(head, blobs), len(head), longest_s)
            reply = await _shielded(inferring, exchange, context)
            _, length, start, rest = reply.answer
            return exchange, grpc_v2.answer((start, *rest), length, route.name, is_streamed=is_streamed)

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


async def _shielded(inferring: Coroutine[Any, Any, Reply], exchange: Exchange, context: Any) -> Reply:
    """In a task of its own: gRPC cancels whoever waits here, and what a server works on keeps its place there until it is done."""
    task = asyncio.ensure_future(inferring)
    try:
        return await asyncio.shield(task)
    except ClientLeft:
        raise asyncio.CancelledError from None
    except asyncio.CancelledError:
        task.add_done_callback(_nobody_waits)
        if context.time_remaining() != 0:  # else it is over by its own deadline, and counted so
            exchange.leave()
        raise


def _nobody_waits(task: asyncio.Task[Reply]) -> None:
    """How it ended is counted; asyncio logs what nobody asks for, and a client that cancels must not fill the log."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (ClientLeft, errors.RequestError)):
        log.error("an RPC whose client had left failed", exc_info=error)


async def _joined(pieces: list[bytes]) -> bytes:
    """A long message is put together on a thread, where Python does that without its lock."""
    if sum(map(len, pieces)) < JOIN_HERE_BYTES:
        return b"".join(pieces)
    return await asyncio.to_thread(b"".join, pieces)


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
    return grpc_v2.stream_error(str(error), request_id, model, dict(as_metadata(error_metadata(error))))
