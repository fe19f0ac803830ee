"""The gRPC listener of a gateway: how it begins and ends with the gateway, and who is waited for.

What it answers is in `service.py` and `infer.py`, what a connection does in `connection.py`.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from serving.gateway.app import Gateway
from serving.gateway.background import forever
from serving.gateway.grpc.connection import Connection, Listener
from serving.gateway.grpc.infer import GrpcInfer
from serving.gateway.grpc.service import Service
from serving.gateway.listeners import let_nobody_in
from serving.settings import GatewaySettings

LOOK_S = 0.25  # between two looks at messages that are not whole, and at whether anybody is connected
LAST_WORDS_S = 1.0  # for what is written at the end


class GrpcServer:
    """Made inside a running event loop. `listeners` are sockets that listen already."""

    def __init__(
        self, gateway: Gateway, settings: GatewaySettings, listeners: list[socket.socket], *, admin_here: bool
    ) -> None:
        infer = GrpcInfer(gateway.inference, gateway.threads)
        service = Service(
            infer,
            gateway.access,
            gateway.catalogue,
            gateway.state,
            gateway.loading,
            list(settings.models),
            admin_here=admin_here,
        )
        self._listeners = listeners
        self._listener = Listener(
            service.methods(),
            service.guard,
            infer.refused,
            service.worded,
            settings.limits,
            gateway.memory,
            gateway.grpc_connections,
            gateway.threads,
            gateway.candidates.max_body_bytes,
            {},
            set(),
        )
        self._servers: list[asyncio.Server] = []
        self._hurry = asyncio.Event()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            self._servers.append(await loop.create_server(lambda: Connection(self._listener), sock=listener))
        self._watch = asyncio.create_task(forever("looking at the time of gRPC messages", self._check_times))

    def let_nobody_in(self) -> None:
        """New connections are dropped, those that are there go on."""
        for listener in self._listeners:
            let_nobody_in(listener)

    async def stop(self, grace_s: float) -> None:
        """Refuses new connections, asks clients to go, and waits as long for what they have begun; less, if that is asked for meanwhile."""
        if grace_s <= 0:
            self._hurry.set()
        for server in self._servers:
            server.close()
        for connection in list(self._listener.open):
            connection.end_streams()
            connection.leave()
        loop = asyncio.get_running_loop()
        await self._wait(loop.time() + grace_s, self._hurry)
        for connection in list(self._listener.open):
            connection.cancel()
        await self._wait(loop.time() + (LAST_WORDS_S if self._listener.open else 0), None)
        for connection in list(self._listener.open):
            connection.close()
        self._watch.cancel()

    async def _wait(self, end: float, hurry: asyncio.Event | None) -> None:
        """Until all have gone, or so long."""
        loop = asyncio.get_running_loop()
        while self._listener.open and loop.time() < end and not (hurry is not None and hurry.is_set()):
            if hurry is None:
                await asyncio.sleep(LOOK_S / 10)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(hurry.wait(), LOOK_S / 10)

    async def _check_times(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            for rpc, connection in list(self._listener.partial.items()):
                connection.check_time(rpc, loop.time())
