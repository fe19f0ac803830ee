"""Serves one listener: who answers which request, and a stop that waits for those that were taken."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from email.utils import formatdate

from serving.gateway.eager import EagerTask
from serving.gateway.http import asgi
from serving.gateway.http.asgi import App
from serving.gateway.http.connection import ClientConnection, Intake, Request
from serving.gateway.http.endpoint import Endpoint, Endpoints
from serving.gateway.http.framing import Head
from serving.gateway.listeners import BACKLOG

log = logging.getLogger(__name__)
LAST_S = 0.1  # for who has been taken and not yet said anything, and for what is cancelled to say so


class Server:
    """`endpoints`: those of them that are raw are called directly, all else is the app's."""

    def __init__(self, app: App, endpoints: Endpoints | None, intake: Intake, drain_s: float) -> None:
        self.intake = intake
        self.connections: set[ClientConnection] = set()
        self.running: set[EagerTask] = set()
        self.date_line = b""
        self.listening = asyncio.Event()
        self._app = app
        self._endpoints = endpoints
        self._drain_s = drain_s
        self._is_stopping = asyncio.Event()
        self._is_forced = asyncio.Event()

    async def serve(self, listeners: list[socket.socket]) -> None:
        """Until `stop`; closes the listeners."""
        loop = asyncio.get_running_loop()
        self._tell_time(loop)
        servers = [
            await loop.create_server(lambda: ClientConnection(self), sock=one, backlog=BACKLOG) for one in listeners
        ]
        self.listening.set()
        await self._is_stopping.wait()
        for server in servers:
            server.close()
        for listener in listeners:
            listener.close()
        for connection in list(self.connections):
            connection.shutdown()
        await asyncio.sleep(LAST_S)
        draining = asyncio.ensure_future(self._drain())
        forced = asyncio.ensure_future(self._is_forced.wait())
        await asyncio.wait([draining, forced], timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            if self.running and not forced.done():
                text = "%d requests were not answered within %g seconds, and are told to come again"
                log.warning(text, len(self.running), self._drain_s)
            self.cancel()
            await asyncio.sleep(LAST_S)
        draining.cancel()
        forced.cancel()
        self._timer.cancel()

    def stop(self) -> None:
        """Nobody new is taken, and what was taken is answered."""
        self._is_stopping.set()

    def force(self) -> None:
        """Nothing is waited for any more."""
        self.cancel()
        self._is_stopping.set()
        self._is_forced.set()

    def cancel(self) -> None:
        """Whatever is in flight is told that the gateway is stopping."""
        for task in list(self.running):
            task.cancel()

    async def _drain(self) -> None:
        while self.connections or self.running:  # noqa: ASYNC110 - two sets that hot code fills, once in the life of a process
            await asyncio.sleep(LAST_S)

    def _tell_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self.date_line = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        self._timer = loop.call_later(1 - time.time() % 1, self._tell_time, loop)

    # -- connections ask these ----------------------------------------------------------------------------------------

    def endpoint_of(self, head: Head) -> Endpoint | None:
        """Who answers such a request directly; None: the app does."""
        if self._endpoints is None:
            return None
        endpoint, _ = self._endpoints.find(head.path)
        return (
            endpoint if endpoint is not None and endpoint.is_raw and head.method.decode() in endpoint.methods else None
        )

    def bridge(self, request: Request) -> None:
        """Has the app answer it. Nothing is raised."""
        EagerTask(asgi.answer(self._app, request), self.running, request.abandon)
