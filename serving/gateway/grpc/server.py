"""The gRPC listener of a gateway: its limits, and how it begins and ends with the gateway.

What it answers is in `service.py` and `infer.py`. Rule: every limit that gRPC has by default is either right for strangers or set here.
"""

from __future__ import annotations

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from serving.errors import UserError
from serving.gateway.app import Gateway
from serving.gateway.grpc.infer import GrpcInfer
from serving.gateway.grpc.service import Service
from serving.settings import GatewaySettings, is_loopback

OPTION = "--grpc-port"
OPTIONS = {
    "grpc.so_reuseport": 0,  # by default a second gateway would share the port in silence
    "grpc.max_send_message_length": -1,  # an answer is as large as the model makes it
    # The sum of an RPC's metadata. By default some of those between 8 and 16 KiB are refused, by chance.
    "grpc.max_metadata_size": 16 * 1024,
    "grpc.absolute_max_metadata_size": 16 * 1024,
    "grpc.server_handshake_timeout_ms": 10_000,  # who connects and says nothing; by default two minutes. A guess, not measured
    "grpc.max_concurrent_streams": 1024,  # on one connection; more wait at the client. A guess, not measured
    # Otherwise a stream that has just ended still counts, and a client that opens the next one at once is refused with RST_STREAM.
    "grpc.http.overload_protection": 0,
    # RPCs that gRPC has not handed over yet: of sixteen full connections, 10 kB each (measured). By default some of more than 1000 are
    # cancelled without a word, by chance.
    "grpc.server.max_pending_requests": 16 * 1024,
    "grpc.server.max_pending_requests_hard_limit": 16 * 1024,
    # A machine that is gone without a word is noticed within 80 s where a request of its is open; by default within two hours.
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    # Clients behind load balancers ping idle connections once or twice a minute, for which gRPC's default of five minutes disconnects them.
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    "grpc.keepalive_permit_without_calls": 1,
}


class GrpcServer:
    """Made inside a running event loop."""

    def __init__(self, gateway: Gateway, settings: GatewaySettings, host: str, port: int) -> None:
        """Raises UserError where the port is taken."""
        self._infer = GrpcInfer(
            gateway.inference, gateway.catalogue, gateway.access, gateway.preparing, settings.limits
        )
        service = Service(
            self._infer,
            gateway.access,
            gateway.catalogue,
            gateway.state,
            gateway.loading,
            list(settings.models),
            admin_here=is_loopback(host),
        )
        limits = {**OPTIONS, "grpc.max_receive_message_length": settings.limits.max_body_bytes}
        self._server = grpc.aio.server(options=list(limits.items()))
        self._server.add_generic_rpc_handlers(service.handlers())
        try:
            self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            raise UserError(
                f"port {port} on {host} is taken or cannot be listened on; choose another with {OPTION}"
            ) from None

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes nothing new, and waits as long for what is in flight. A shorter wait may be asked for meanwhile."""
        self._infer.end_idle_streams()
        await self._server.stop(grace_s)
