"""KEDA's external scaler over gRPC: whether a pool is wanted at all, and how many servers of it.

While no number is known the answer is UNAVAILABLE, and KEDA leaves the pool as it is or takes its `fallback`; a stream stays open and
silent. A stream sends the state when it is opened, and again as soon as it changes: 0 -> 1 does not wait for a poll. It ends without an
error when the scaler stops, because KEDA then asks again after 2 s; after an error it waits twice as long each time, up to a minute, and
for good. KEDA cannot send a key, so none is asked for: nothing can be changed here. Rule: the error for a wrong trigger names the pools.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from serving.cluster.scaler.state import ScalerState
from serving.documents.nearest import nearest
from serving.errors import UserError
from serving.protocol import external_scaler as wire

POOL = "pool"  # the trigger's metadata that names it
MAX_MESSAGE_BYTES = 2**20  # a trigger's metadata are a few hundred bytes
MAX_NAME = 100  # characters of a pool's name in the error, which travels in a header
GOODBYE_S = 1.0  # for calls in progress when it stops, which take milliseconds; a guess
OPTIONS = {
    "grpc.so_reuseport": 0,  # by default a second scaler would share the port in silence
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    # A client that vanishes is noticed within 80 s; by default within two hours.
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    # A client may ping as often, also between two calls; by default it would be disconnected for that.
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
    "grpc.keepalive_permit_without_calls": 1,
}


class ExternalScaler:
    """Made inside a running event loop."""

    def __init__(self, state: ScalerState, host: str, port: int) -> None:
        """Raises UserError where the port is taken."""
        self._state = state
        self._server = grpc.aio.server(options=list(OPTIONS.items()))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            _try(host, port)
            self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except (OSError, RuntimeError):
            raise UserError(
                f"port {port} on {host} is taken or cannot be listened on; choose another with --grpc-port"
            ) from None

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        """Nothing is lost, because KEDA asks again."""
        self._state.end()
        await self._server.stop(GOODBYE_S)

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            wire.SERVICE,
            {
                "IsActive": unary(self._is_active, None, wire.IsActiveResponse.SerializeToString),
                "StreamIsActive": stream(self._stream, None, wire.IsActiveResponse.SerializeToString),
                "GetMetricSpec": unary(self._spec, None, wire.GetMetricSpecResponse.SerializeToString),
                "GetMetrics": unary(self._metrics, None, wire.GetMetricsResponse.SerializeToString),
            },
        )

    async def _is_active(self, sent: bytes, context: Any) -> Any:
        return wire.active(await self._replicas(await _ref(sent, context), context) > 0)

    async def _metrics(self, sent: bytes, context: Any) -> Any:
        request = await _read(wire.GetMetricsRequest, sent, context)
        return wire.value(request.metricName, await self._replicas(request.scaledObjectRef, context))

    async def _spec(self, sent: bytes, context: Any) -> Any:
        await self._pool(await _ref(sent, context), context)
        return wire.spec()

    async def _stream(self, sent: bytes, context: Any) -> AsyncIterator[Any]:
        pool = await self._pool(await _ref(sent, context), context)
        last: bool | None = None
        while not self._state.is_over:
            replicas = self._state.replicas(pool)
            if replicas is not None and (replicas > 0) is not last:
                last = replicas > 0
                yield wire.active(last)
            else:
                await self._state.next()

    async def _pool(self, ref: Any, context: Any) -> str:
        pool = str(ref.scalerMetadata.get(POOL, ""))
        if pool not in self._state.pools:
            quoted = pool[:MAX_NAME]
            named = f"no pool '{quoted}'" if pool else f"the trigger's metadata name no '{POOL}'"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, named + _known(quoted, self._state.pools))
        return pool

    async def _replicas(self, ref: Any, context: Any) -> int:
        replicas = self._state.replicas(await self._pool(ref, context))
        if replicas is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not known now: {self._state.result.scaling.holds}")
        assert replicas is not None
        return replicas


async def _ref(sent: bytes, context: Any) -> Any:
    return await _read(wire.ScaledObjectRef, sent, context)


async def _read(kind: Any, sent: bytes, context: Any) -> Any:
    """Ends the call where it is no such message; by default gRPC answers in its own words and logs a traceback."""
    try:
        return kind.FromString(sent)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"this is no {wire.PACKAGE}.{kind.DESCRIPTOR.name}")


def _try(host: str, port: int) -> None:
    """Raises OSError where the port cannot be listened on; gRPC would log a line of its own."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)


def _known(pool: str, pools: tuple[str, ...]) -> str:
    near = nearest(pool, pools)
    known = f"known are {', '.join(sorted(pools))}"
    return f"; {known}" if known in near else f"{near} {known}"
