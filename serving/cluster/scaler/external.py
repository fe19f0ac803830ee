"""KEDA's external scaler over gRPC: is a pool wanted at all, and how many servers of it?

While no number may be told the answer is UNAVAILABLE, and KEDA leaves the pool as it is or takes its `fallback`; a stream stays open and is
silent. A stream tells what is so when it is opened, and at once when it changes: 0 -> 1 does not wait for a poll. KEDA cannot send a
key here, so nobody is asked for one: nothing can be changed by asking. Rule: a wrong trigger is told the pools there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from serving.cluster.scaler.told import Told
from serving.errors import UserError
from serving.protocol import external_scaler as wire
from serving.settings import nearest

POOL = "pool"  # the trigger's metadata that names it
MAX_MESSAGE_BYTES = 2**20  # a trigger's metadata are a few hundred bytes
OPTIONS = {
    "grpc.so_reuseport": 0,  # by default a second scaler would share the port in silence
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    # A client that is gone without a word is noticed within 80 s; by default within two hours.
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.http2.min_recv_ping_interval_without_data_ms": 10_000,
}


class ExternalScaler:
    """Made inside a running event loop."""

    def __init__(self, told: Told, host: str, port: int) -> None:
        """Raises UserError where the port is taken."""
        self._told = told
        self._server = grpc.aio.server(options=list(OPTIONS.items()))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            raise UserError(
                f"port {port} on {host} is taken or cannot be listened on; choose another with --grpc-port"
            ) from None

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)  # nothing is lost: whoever asked asks again

    def _handlers(self) -> grpc.GenericRpcHandler:
        ref, asked = wire.ScaledObjectRef.FromString, wire.GetMetricsRequest.FromString
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            wire.SERVICE,
            {
                "IsActive": unary(self._is_active, ref, wire.IsActiveResponse.SerializeToString),
                "StreamIsActive": stream(self._stream, ref, wire.IsActiveResponse.SerializeToString),
                "GetMetricSpec": unary(self._spec, ref, wire.GetMetricSpecResponse.SerializeToString),
                "GetMetrics": unary(self._metrics, asked, wire.GetMetricsResponse.SerializeToString),
            },
        )

    async def _is_active(self, ref: Any, context: Any) -> Any:
        return wire.active(await self._replicas(ref, context) > 0)

    async def _metrics(self, asked: Any, context: Any) -> Any:
        return wire.value(asked.metricName, await self._replicas(asked.scaledObjectRef, context))

    async def _spec(self, ref: Any, context: Any) -> Any:
        await self._pool(ref, context)
        return wire.spec()

    async def _stream(self, ref: Any, context: Any) -> AsyncIterator[Any]:
        pool = await self._pool(ref, context)
        last: bool | None = None
        while True:
            replicas = self._told.replicas(pool)
            if replicas is not None and (replicas > 0) is not last:
                last = replicas > 0
                yield wire.active(last)
            else:
                await self._told.next()

    async def _pool(self, ref: Any, context: Any) -> str:
        pool = str(ref.scalerMetadata.get(POOL, ""))
        if pool not in self._told.pools:
            named = f"no pool '{pool}'" if pool else f"the trigger's metadata name no '{POOL}'"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, named + _known(pool, self._told.pools))
        return pool

    async def _replicas(self, ref: Any, context: Any) -> int:
        replicas = self._told.replicas(await self._pool(ref, context))
        if replicas is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not known now: {self._told.answer.scaling.holds}")
        assert replicas is not None
        return replicas


def _known(pool: str, pools: tuple[str, ...]) -> str:
    near = nearest(pool, pools)
    known = f"known are: {', '.join(sorted(pools))}"
    return f"; {known}" if known in near else f"{near} {known}"
