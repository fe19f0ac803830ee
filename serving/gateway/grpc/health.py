"""The gRPC health checking protocol (`grpc.health.v1.Health`), which Kubernetes' gRPC probes and load balancers ask.

Rule: it says what `/health/ready` says, and needs no key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from serving import errors
from serving.gateway.grpc.rpc import Rpc
from serving.protocol.grpc_descriptors import HEALTH, SERVING_STATUS, message
from serving.protocol.grpc_v2 import parsed
from serving.protocol.http2 import Piece

REQUEST, RESPONSE = message(HEALTH, "HealthCheckRequest"), message(HEALTH, "HealthCheckResponse")
LOOK_S = 0.1  # between two looks for a change, of who watches; clients look at it within seconds. A guess, not measured
MAX_WATCHERS = 256  # each looks ten times a second, which takes it 10 us. A guess at what nobody needs


class Health:
    """`is_ready`: whether the gateway is now; `service`: the one that is told of beside the whole server."""

    def __init__(self, service: str, is_ready: Callable[[], bool]) -> None:
        self._known = ("", service, HEALTH)
        self._is_ready = is_ready
        self._num_watchers = 0

    async def check(self, message: bytes, _: Rpc) -> Sequence[Piece]:
        """Raises NotFound for a service that is not here, or BadRequest."""
        status = self._status(service := parsed(REQUEST, message).service)
        if status == "SERVICE_UNKNOWN":
            raise errors.NotFound(f"there is no service '{service[:100]}' here")
        return _response(status)

    async def watch(self, rpc: Rpc) -> AsyncIterator[Sequence[Piece]]:
        """What it is, and then each change, until the client leaves or the gateway stops. Raises RequestError."""
        self._num_watchers += 1
        try:
            if self._num_watchers > MAX_WATCHERS:
                raise errors.Overloaded(f"{MAX_WATCHERS} watch already; ask Check, or try again", retry_after_s=1.0)
            service, last = parsed(REQUEST, await rpc.message()).service, ""
            while True:
                if (status := self._status(service)) != last:
                    yield _response(status)
                    last = status
                await rpc.pause(LOOK_S)
        finally:
            self._num_watchers -= 1

    def _status(self, service: str) -> str:
        if service not in self._known:
            return "SERVICE_UNKNOWN"
        return "SERVING" if self._is_ready() else "NOT_SERVING"


def _response(status: str) -> Sequence[Piece]:
    return (RESPONSE(status=SERVING_STATUS.index(status)).SerializeToString(),)
