"""The gRPC listener of a gateway: its limits, and how it begins and ends with the gateway.

What it answers is in `service.py` and `infer.py`. Rule: every limit that gRPC has by default is either right for strangers or set here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from serving.errors import UserError
from serving.gateway.app import Gateway
from serving.gateway.grpc.infer import GrpcInfer
from serving.gateway.grpc.partial_messages import PartialMessages
from serving.gateway.grpc.service import Service
from serving.gateway.grpc.streams import Streams
from serving.gateway.listeners import held, ipv4_alone, let_nobody_in, stop_listening
from serving.settings import GatewaySettings

OPTION = "--grpc-port"
LOOK_S = 0.1  # between two looks at whether anybody is connected
# Without an RPC, before who is still connected is told to go: what comes just then is lost, so only when hardly anything comes. A guess.
QUIET_S = 1.0
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
    # What comes before somebody asks for it: 64 KiB of each stream. By default as much as comes in a round trip, which was 8 MB on loopback
    # (measured); a message that is asked for comes as fast with this.
    "grpc.http2.bdp_probe": 0,
    # A message that was compressed is unpacked here, within the budget of memory; gRPC would do so whatever all of them take.
    "grpc.per_message_decompression": 0,
    # RPCs that gRPC has not handed over yet: of sixteen full connections, 10 kB each (measured). By default some of more than 1000 are
    # cancelled without a word, by chance.
    "grpc.server.max_pending_requests": 16 * 1024,
    "grpc.server.max_pending_requests_hard_limit": 16 * 1024,
    # A machine that is gone without a word is noticed within 80 s where a request of its is open; by default within two hours.
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    # Clients are asked to connect anew so often (give or take a tenth), so that they spread over new gateways, and have gone elsewhere when
    # this one stops. It costs a round trip, and with gRPC's retries loses nothing. A guess: shorter costs more, longer makes a stop longer.
    "grpc.max_connection_age_ms": 10_000,
    # Clients behind load balancers ping idle connections once or twice a minute, for which gRPC's default of five minutes disconnects them.
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    "grpc.keepalive_permit_without_calls": 1,
}


class _LastCall(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers nothing, but notes when an RPC came last."""

    def __init__(self) -> None:
        self.last_at = -inf  # of the event loop's clock

    def service(self, _: object) -> None:
        self.last_at = asyncio.get_running_loop().time()


class GrpcServer:
    """Made inside a running event loop."""

    def __init__(
        self, gateway: Gateway, settings: GatewaySettings, addresses: list[str], port: int, *, admin_here: bool
    ) -> None:
        """`addresses` are those that HTTP listens on. Raises UserError where the port is taken."""
        self._partial = PartialMessages(
            port,
            gateway.memory,
            settings.limits,
            gateway.grpc_connections,
            gateway.threads,
            gateway.candidates.max_body_bytes,
        )
        self._streams = Streams(self._partial)
        infer = GrpcInfer(gateway.inference, gateway.threads, self._streams)
        service = Service(
            infer,
            gateway.access,
            gateway.catalogue,
            gateway.state,
            gateway.loading,
            list(settings.models),
            self._streams,
            self._partial,
            admin_here=admin_here,
        )
        self._port = port
        self._hurry = asyncio.Event()
        limits = {
            **OPTIONS,
            "grpc.max_receive_message_length": settings.limits.max_body_bytes,
            "grpc.max_allowed_incoming_connections": settings.limits.max_connections,
        }
        self._server = grpc.aio.server(options=list(limits.items()))
        self._last_call = _LastCall()
        self._server.add_generic_rpc_handlers((self._last_call, *service.handlers()))
        for address in addresses:
            try:
                with ipv4_alone(address, port):
                    self._server.add_insecure_port(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
            except RuntimeError:
                raise UserError(
                    f"port {port} on {address} is taken or cannot be listened on; choose another with {OPTION}"
                ) from None

    async def start(self) -> None:
        await self._server.start()
        self._watch = asyncio.create_task(self._partial.watch())

    def let_nobody_in(self) -> None:
        """New connections are dropped, those that are there go on."""
        for it in held(self._port):
            if it.is_listening:
                let_nobody_in(it.copy)

    async def stop(self, grace_s: float) -> None:
        """Refuses new connections, and waits as long for clients to go and for what is in flight; less, if that is asked for meanwhile.

        gRPC cancels what reaches a server that stops before the client has heard of it; so it stops when nobody is connected any more, or
        nothing comes.
        """
        stop_listening(self._port)
        self._streams.end()
        if grace_s <= 0:
            self._hurry.set()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        while (
            loop.time() < min(end, self._last_call.last_at + QUIET_S)
            and not self._hurry.is_set()
            and any(held(self._port))
        ):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), LOOK_S)
        self._watch.cancel()
        await self._server.stop(0 if self._hurry.is_set() else max(0.0, end - loop.time()))
