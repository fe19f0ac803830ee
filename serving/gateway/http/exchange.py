"""A request that asks a model over HTTP, whatever its surface: who asks, what is answered, what is said of an error.

`/v2/…/infer`, `/v1/embeddings` and `/v1/classify/…` are each a `Surface`, which makes a `Response` of an `HttpExchange`. Counting, times
and the receipt are `request/exchange.py`'s. Rule: whatever a surface raises is answered here, in the form of its path.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from serving import errors
from serving.gateway.http.connection import Request
from serving.gateway.http.endpoint import Endpoint
from serving.gateway.http.responses import error_head
from serving.gateway.request.dispatch import ClientLeft, stopping
from serving.gateway.request.exchange import Exchange
from serving.gateway.request.inference import Inference
from serving.gateway.request.request_headers import require_once
from serving.gateway.request.traces import Entry, http_entry

log = logging.getLogger(__name__)
CLOSING = (errors.TooLarge, errors.Unauthenticated)  # a body may follow that is not worth reading, or from a stranger
OK = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b"


class Response(NamedTuple):
    """`more`: header lines beside the usual ones. `status_line` where it is no 200. `rest`: of the body, in pieces, behind `body`."""

    body: bytes
    media_type: bytes = b"application/json"
    more: bytes = b""
    status_line: bytes = b""
    rest: Sequence[bytes] = ()


class HttpExchange(Exchange):
    """The client leaves by closing the connection. The whole request has been read before anybody listens for that."""

    __slots__ = ("request",)

    request: Request

    def _watch(self) -> None:
        self.request.listen(self.leave)

    def _unwatch(self) -> None:
        self.request.ignore()

    def _entry(self, error: BaseException | None, path: str = "") -> Entry:
        return http_entry(path or self.request.head.path, error)


class Surface(ABC):
    """Called by the connection itself, because it is hot. Subclasses say what a request means."""

    def __init__(self, inference: Inference) -> None:
        self.inference = inference

    @abstractmethod
    async def handle(self, exchange: HttpExchange) -> Response:
        """Raises RequestError or ClientLeft."""

    async def answer(self, request: Request, endpoint: Endpoint) -> None:
        """Raises nothing but CancelledError."""
        inference, head = self.inference, request.head
        exchange = HttpExchange(inference)
        exchange.request = request
        try:
            with exchange:
                if head.has_doubles:
                    require_once(head.headers)
                exchange.authenticate(head.by_name, endpoint.scope)
                body, media_type, more, status_line, rest = await self.handle(exchange)
        except ClientLeft as left:
            errors.without_frames(left)
            return
        except errors.RequestError as error:
            await self._refuse(request, errors.without_frames(error))
            return
        except (
            asyncio.CancelledError
        ):  # servers cancel what is in flight when the time to stop is over, and would say nothing
            if not inference.closing:
                raise
            await self._refuse(request, stopping())
            return
        except Exception as error:
            log.exception("a request at %s failed", head.path)
            errors.without_frames(error)
            internal = errors.Internal("the gateway failed on this request; its log says why")
            await self._refuse(request, internal, close=True)
            return
        size = len(body) + sum(map(len, rest)) if rest else len(body)
        lines = OK % (media_type, size, exchange.receipt_lines, more)
        if status_line:
            lines = status_line + lines.partition(b"\r\n")[2]
        if rest or not request.respond(lines, body, close=inference.closing):
            await request.respond_slowly(lines, (body, *rest), close=inference.closing)

    async def _refuse(self, request: Request, error: errors.RequestError, *, close: bool = False) -> None:
        path = request.head.path
        if path.startswith("/v2/"):
            error = self.inference.worded(error)
        close = close or self.inference.closing or isinstance(error, CLOSING)
        lines, body = error_head(error, list(error.receipt), path)
        if not request.respond(lines, body, close=close):
            await request.respond_slowly(lines, (body,), close=close)
