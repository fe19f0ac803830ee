"""A request that asks a model over HTTP, whatever its surface: who asks, what is answered, what is said of an error.

`/v2/…/infer`, `/v1/embeddings` and `/v1/classify/…` are each a `Surface`, which makes a `Response` of an `HttpExchange`. Counting, times
and the receipt are `request/exchange.py`'s. Rule: whatever a surface raises is answered here, in the form of its path.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from serving import errors
from serving.gateway.http.connection import respond, tell_when_gone
from serving.gateway.http.endpoint import ENDPOINT
from serving.gateway.http.responses import Receive, Scope, Send, error_head
from serving.gateway.request.dispatch import RETRY_AFTER_S, ClientLeft
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import require_once

CLOSING = (errors.TooLarge, errors.Unauthenticated)  # a body may follow that is not worth reading, or from a stranger
WRITE_BYTES = 256 * 1024  # of a long answer, before others have their turn; what asyncio reads at once, too
OK = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b"


class Response(NamedTuple):
    """`more`: header lines beside the usual ones. `status_line` where it is no 200. `rest`: of the body, in pieces, behind `body`."""

    body: bytes
    media_type: bytes = b"application/json"
    more: bytes = b""
    status_line: bytes = b""
    rest: Sequence[bytes] = ()


class HttpExchange(Exchange):
    """The client leaves by closing the connection. `receive` has given the whole request before anybody listens for that."""

    __slots__ = ("_watching", "receive", "scope")

    scope: Scope
    receive: Receive
    _watching: asyncio.Future[None] | None

    def _watch(self) -> None:
        self._watching = None
        if not tell_when_gone(self.receive, self.leave):
            self._watching = asyncio.ensure_future(self._until_gone())

    def _unwatch(self) -> None:
        if self._watching is None:
            tell_when_gone(self.receive, None)
        else:
            self._watching.cancel()

    async def _until_gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.leave()


class Surface(ABC):
    """Raw ASGI, because it is hot. Subclasses say what a request means."""

    def __init__(self, inference: Inference) -> None:
        self.inference = inference

    @abstractmethod
    async def handle(self, exchange: HttpExchange) -> Response:
        """Raises RequestError or ClientLeft."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inference = self.inference
        exchange = HttpExchange(inference)
        exchange.scope, exchange.receive = scope, receive
        try:
            with exchange:
                headers = dict(scope["headers"])
                if len(headers) < len(scope["headers"]):
                    require_once(scope["headers"])
                exchange.authenticate(headers, scope[ENDPOINT].scope)
                body, media_type, more, status_line, rest = await self.handle(exchange)
        except ClientLeft:
            return
        except errors.RequestError as error:
            await self._refuse(scope, send, error)
            return
        except (
            asyncio.CancelledError
        ):  # servers cancel what is in flight when the time to stop is over, and would say nothing
            if not inference.closing:
                raise
            stopping = errors.NotReady("the gateway is stopping; try again", retry_after_s=RETRY_AFTER_S)
            await self._refuse(scope, send, stopping)
            return
        size = len(body) + sum(map(len, rest)) if rest else len(body)
        head = OK % (media_type, size, exchange.receipt_lines, more)
        if status_line:
            head = status_line + head.partition(b"\r\n")[2]
        if rest or not respond(send, head, body, close=inference.closing):
            await respond_asgi(send, head, body, rest, close=inference.closing)

    async def _refuse(self, scope: Scope, send: Send, error: errors.RequestError) -> None:
        path = scope["path"]
        if path.startswith("/v2/"):
            error = self.inference.worded(error)
        close = self.inference.closing or isinstance(error, CLOSING)
        head, body = error_head(error, list(error.receipt), path)
        if not respond(send, head, body, close=close):
            await respond_asgi(send, head, body, close=close)


async def respond_asgi(send: Send, head: bytes, body: bytes, rest: Sequence[bytes] = (), *, close: bool) -> None:
    """`respond`, where the connection is none that it knows, or what is to be written is long: then as fast as the client reads."""
    first, *lines = head.split(b"\r\n")[:-1]
    headers = [tuple(line.split(b": ", 1)) for line in lines]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(first.split(b" ")[1]), "headers": headers})
    for part in (body, *rest) if rest or len(body) > WRITE_BYTES else ():
        for start in range(0, len(part), WRITE_BYTES):
            await send({"type": "http.response.body", "body": part[start : start + WRITE_BYTES], "more_body": True})
            await asyncio.sleep(0)
        body = b""
    await send({"type": "http.response.body", "body": body})
