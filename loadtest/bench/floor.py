"""The floor of `make bench`: the least that a proxy in Python can cost, one `asyncio.Protocol` on each side and no task between them.

It checks nothing, refuses nothing and counts nothing: what the gateway costs beyond it is what the gateway does. Run as
`python -m loadtest.bench.floor PORT` with UPSTREAM=HOST:PORT.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import cast

import httptools
import uvloop

HOST, _, PORT = os.environ.get("UPSTREAM", "127.0.0.1:8000").rpartition(":")
LENGTH_HEADER = b"inference-header-content-length"
kept: list[Link] = []
connecting: set[asyncio.Task[None]] = set()


class Link(asyncio.Protocol):
    """One connection to Triton, used for one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.client: Client | None = None

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        client, body, self.body = self.client, self.body, b""
        kept.append(self)
        if client is not None and not client.transport.is_closing():
            head = b"HTTP/1.1 %d \r\ncontent-length: %d\r\n\r\n" % (self.parser.get_status_code(), len(body))
            client.transport.write(head + body)


class Client(asyncio.Protocol):
    """Sends its requests one after the other, so that none waits here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url = self.length = self.body = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == LENGTH_HEADER:
            self.length = b"%b: %b\r\n" % (name, value)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        head = b"POST %b HTTP/1.1\r\nHost: triton\r\n%bContent-Length: %d\r\n\r\n"
        request = head % (self.url, self.length, len(self.body)) + self.body
        if kept:
            self.send(kept.pop(), request)
        else:
            task = asyncio.create_task(self.connect(request))
            connecting.add(task)
            task.add_done_callback(connecting.discard)

    def send(self, link: Link, request: bytes) -> None:
        link.client = self
        link.transport.write(request)

    async def connect(self, request: bytes) -> None:
        _, link = await asyncio.get_running_loop().create_connection(Link, HOST, int(PORT))
        self.send(link, request)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
