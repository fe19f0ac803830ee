"""The inference path over gRPC: ModelInfer, and each request of a ModelStreamInfer, through the same admission as HTTP's.

They go to Triton over the pooled HTTP/1.1 connections in the binary tensor extension, whose tensors are the very bytes of
`raw_input_contents`: one path has one admission, one second try and one way to deal with faults. What is in the messages is read in
`serving/protocol/grpc_v2.py`. Rule: an RPC that is cancelled leaves the queue, and work that has begun is waited for all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

from serving import errors
from serving.gateway.access import INFER, Access, Caller, require_name
from serving.gateway.fleet.catalogue import Catalogue
from serving.gateway.grpc.status import Metadata, as_metadata, metadata_in, metadata_of
from serving.gateway.grpc.streams import Streams
from serving.gateway.request.dispatch import ClientLeft, InferRequest
from serving.gateway.request.headers import priority, wait_s
from serving.gateway.request.inference import Inference, Reply
from serving.gateway.request.route import Route
from serving.gateway.responses import outcome_of
from serving.gateway.threads import Threads
from serving.protocol import grpc_v2, v2
from serving.protocol.grpc_v2 import Chunk, Envelope
from serving.settings import LimitSettings


class GrpcClient:
    __slots__ = ("_has_left", "_tell")

    def __init__(self) -> None:
        self._tell: Callable[[], None] | None = None
        self._has_left = False

    def listen(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        if self._has_left:
            tell()

    def ignore(self) -> None:
        self._tell = None

    def leave(self) -> None:
        """Called by whoever hears of it."""
        self._has_left = True
        if self._tell is not None:
            self._tell()


# A request with so much besides raw tensors has typed contents, which take about 30 ns a byte to pack (measured: 5 ms for 150,000 numbers).
THREAD_ABOVE_BYTES = 32 * 1024
RETRY_AFTER_S = 1.0  # until others have theirs, as over HTTP; a guess, not measured
JOIN_BELOW_BYTES = 64 * 1024  # up to here one copied write is cheaper than a gathered one, as in `upstream.py`
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Said:
    """What is known of a request before its message is looked into."""

    caller: Caller
    metadata: Metadata
    left_s: float  # of the RPC's own deadline, infinite where it has none
    arrived: float  # perf_counter


class GrpcInfer:
    def __init__(
        self,
        inference: Inference,
        catalogue: Catalogue,
        access: Access,
        preparing: Threads,
        limits: LimitSettings,
        streams: Streams,
    ) -> None:
        self._inference = inference
        self._catalogue = catalogue
        self._access = access
        self._preparing = preparing
        self._limits = limits
        self._streams = streams
        self._held = 0  # bytes, of all messages that are not answered yet

    def refused(self, error: errors.RequestError) -> None:
        """Counts one whose message nobody has read."""
        self._inference.unresolved.outcomes[outcome_of(error)] += 1

    async def unary(self, message: bytes, context: Any) -> bytes:
        """ModelInfer. Raises RequestError, or CancelledError."""
        asked, reply = await self._infer(message, context, is_streamed=False)
        pieces = grpc_v2.answer(reply.answer.body, reply.answer.header_length, asked.route.name)
        context.set_trailing_metadata(as_metadata([*reply.receipt, _timing(asked, reply)]))
        return b"".join(pieces)

    async def stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """ModelStreamInfer: one after the other. What is wrong with one is told in its answer, and the next is taken."""
        async for message in self._streams.coming(messages, context):
            try:
                asked, reply = await self._infer(message, context, is_streamed=True)
                answer = reply.answer
                pieces = grpc_v2.answer(answer.body, answer.header_length, asked.route.name, is_streamed=True)
                pieces.append(grpc_v2.with_parameters(dict(as_metadata([*reply.receipt, _timing(asked, reply)]))))
                yield b"".join(grpc_v2.streamed(pieces))
            except errors.RequestError as error:
                yield _told_in_stream(message, self._inference.worded(error))

    async def _infer(self, message: bytes, context: Any, *, is_streamed: bool) -> tuple[InferRequest, Reply]:
        """Raises RequestError, counted, or CancelledError."""
        self._held += len(message)
        try:
            asked = await self._asked(message, context, is_streamed=is_streamed)
            return asked, await self._answered(asked, context)
        finally:
            self._held -= len(message)

    async def _asked(self, message: bytes, context: Any, *, is_streamed: bool) -> InferRequest:
        """The request, checked. Raises RequestError, counted, or CancelledError."""
        arrived = perf_counter()
        series = self._inference.unresolved
        try:
            metadata = metadata_in(context.invocation_metadata())
            caller = self._access.caller_of(metadata)
            caller.require(INFER)
            if self._held > self._limits.max_buffered_bytes:
                raise errors.Overloaded("too much is held in memory here; try again", retry_after_s=RETRY_AFTER_S)
            left_s = context.time_remaining()
            said = Said(caller, metadata, inf if left_s is None else left_s, arrived)
            envelope = grpc_v2.opened(message)
            route = self._route(envelope, said)
            series = route.choices[0].series
            if envelope.size > route.max_body_bytes:
                raise errors.TooLarge(
                    f"the message has {envelope.size} bytes; '{route.name}' takes at most {route.max_body_bytes:.0f}"
                )
            return await self._read(envelope, route, said, is_streamed=is_streamed)
        except errors.RequestError as error:
            series.outcomes[outcome_of(error)] += 1
            raise
        except asyncio.CancelledError:
            series.outcomes["cancelled"] += 1
            raise

    def _route(self, envelope: Envelope, said: Said) -> Route:
        model, version, metadata = envelope.model, envelope.version, said.metadata
        if not model or "/" in model:
            raise errors.NotFound(f"'{model[:200]}' is no model's name")
        if version and not (version.isascii() and version.isdigit() and len(version) <= 9):
            raise errors.NotFound(f"'{version[:200]}' is not a version number")
        require_name(said.caller, model, self._catalogue.fleet)
        return self._inference.routes.of(model, version, metadata.get(b"tandem-pool"), metadata.get(b"tandem-variant"))

    async def _read(self, envelope: Envelope, route: Route, said: Said, *, is_streamed: bool) -> InferRequest:
        if envelope.described > THREAD_ABOVE_BYTES:
            head, blobs = await self._preparing.run(lambda: grpc_v2.translated(envelope, is_streamed=is_streamed))
        else:
            head, blobs = grpc_v2.translated(envelope, is_streamed=is_streamed)
        checked = v2.check_head(head, envelope.size)
        if checked.rewritten is not None:
            head = checked.rewritten
        timeout_us, metadata = checked.timeout_us, said.metadata
        return self._inference.asked(
            route,
            head,
            _chunks(head, blobs),
            len(head),
            wait_s=min(
                said.left_s,
                wait_s(metadata.get(b"tandem-deadline-ms")),
                inf if timeout_us is None else timeout_us / 1e6,
            ),
            priority=priority(metadata.get(b"tandem-priority"), said.caller.highest_priority),
            arrived=said.arrived,
        )

    async def _answered(self, asked: InferRequest, context: Any) -> Reply:
        """In a task of its own: gRPC cancels whoever waits here, and what a server works on keeps its place there until it is done."""
        client = GrpcClient()
        task = asyncio.ensure_future(self._inference.infer(asked, client))
        try:
            return await asyncio.shield(task)
        except ClientLeft:
            raise asyncio.CancelledError from None
        except asyncio.CancelledError:
            task.add_done_callback(_nobody_waits)
            if context.time_remaining() != 0:  # else it is over by its own deadline, and counted so
                client.leave()
            raise


def _nobody_waits(task: asyncio.Task[Reply]) -> None:
    """How it ended is counted; asyncio logs what nobody asks for, and a client that cancels must not fill the log."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (ClientLeft, errors.RequestError)):
        log.error("an RPC whose client had left failed", exc_info=error)


def _chunks(head: bytes, blobs: list[Chunk]) -> list[Chunk]:
    chunks = [head, *(blob for blob in blobs if len(blob))]
    return [b"".join(chunks)] if sum(map(len, chunks)) < JOIN_BELOW_BYTES else chunks


def _timing(asked: InferRequest, reply: Reply) -> tuple[bytes, bytes]:
    """The receipt's last line, as HTTP's."""
    queue_s, backend_s = reply.began - asked.arrived, reply.answered - reply.began
    total_s = perf_counter() - asked.arrived
    return b"server-timing", b"queue;dur=%.3f, backend;dur=%.3f, total;dur=%.3f" % (
        queue_s * 1000,
        backend_s * 1000,
        total_s * 1000,
    )


def _told_in_stream(message: bytes, error: errors.RequestError) -> bytes:
    """With the id of the request, where it can be read."""
    try:
        envelope = grpc_v2.opened(message)
        request_id, model = str(envelope.description.id), envelope.model
    except errors.RequestError:
        request_id = model = ""
    return grpc_v2.stream_error(str(error), request_id, model, dict(as_metadata(metadata_of(error))))
