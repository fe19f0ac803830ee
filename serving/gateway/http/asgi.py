"""The bridge to ASGI: a request that is not answered directly becomes a scope, and what the app sends an answer.

For control, documents and pages, whose app is FastAPI's. Rules: what an app says goes out in one write where it is short; an app that fails
never leaves a client without an answer, or with half of one that looks whole.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving import errors
from serving.gateway.eager import own_task
from serving.gateway.http.connection import CLOSE, HIGH_WATER_BYTES, Request
from serving.gateway.http.responses import STATUS_LINE, error_head
from serving.gateway.request.dispatch import stopping
from serving.gateway.request.request_headers import Headers

log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
WITHOUT_BODY = frozenset({204, 304})
NO_HEADER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # what no value may have


async def answer(app: App, request: Request) -> None:
    """Raises nothing."""
    exchange = _Exchange(request)
    try:
        await own_task()
        await app(exchange.scope(), exchange.receive, exchange.send)
    except asyncio.CancelledError:  # what is in flight when the time to stop is over
        exchange.give_up(stopping())
    except errors.RequestError as error:  # of the body that the app waited for
        exchange.give_up(errors.without_frames(error))
    except Exception as error:
        log.exception("a request at %s failed", request.head.path)
        errors.without_frames(error)
        exchange.give_up(errors.Internal("the gateway failed on this request; its log says why"))
    else:
        if not request.is_answered and not request.has_left:
            log.error("a request at %s was left without its answer", request.head.path)
            exchange.give_up(errors.Internal("the gateway failed on this request; its log says why"))


class _Exchange:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._has_given = False  # the whole body to the app
        self._start = b""  # of the answer, until its first bytes go out
        self._has_started = False
        self._is_chunked = False
        self._is_last = False
        self._left = 0  # bytes of the answer that are to come

    def scope(self) -> Scope:
        request = self._request
        head, connection = request.head, request.connection
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": connection.server_address,
            "client": connection.client,
            "scheme": "http",
            "root_path": "",
            "headers": head.headers,
            "state": {},
            "method": head.method.decode(),
            "path": head.path,
            "raw_path": head.target.partition(b"?")[0],
            "query_string": head.query,
        }

    async def receive(self) -> Message:
        """Raises RequestError."""
        request = self._request
        if not self._has_given:
            if not request.chunks and not request.is_whole:
                await request.more()
            if request.error is not None:
                raise request.error
            if not request.has_left:
                body, request.chunks = b"".join(request.chunks), []
                self._has_given = request.is_whole
                return {"type": "http.request", "body": body, "more_body": not request.is_whole}
        if not request.is_answered and not request.has_left:
            left = asyncio.Event()
            request.listen(left.set)
            await left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        request = self._request
        if request.has_left:
            return
        if message["type"] == "http.response.start":
            self._begin(int(message["status"]), list(message.get("headers", [])))
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        if request.head.method == b"HEAD":
            body, self._left = b"", 0
        elif self._is_chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_last else b"")
        else:
            self._left -= len(body)
            if self._left < 0 or (is_last and self._left):
                raise RuntimeError("an answer is not as long as its Content-Length says")
        if not await request.connection.drain(request):
            return
        if len(self._start) + len(body) <= HIGH_WATER_BYTES:
            body = self._start + body
        else:
            request.connection.write(self._start)
        self._start = b""
        if body:
            self._has_started = True
            request.connection.write(body)
        if is_last:
            request.connection.finish(request, close=self._is_last)

    def _begin(self, status: int, headers: Headers) -> None:
        request = self._request
        names = {name.lower() for name, _ in headers}
        self._is_last = request.connection.is_last(request)
        lines = []
        for name, value in headers:
            if NO_HEADER.search(value):
                raise RuntimeError("a header's value has a control character")
            if name.lower() == b"connection":
                self._is_last = self._is_last or value.lower() == b"close"
            else:
                lines.append(b"%b: %b\r\n" % (name.lower(), value))
            if name.lower() == b"content-length":
                self._left = int(value)
        if b"content-length" not in names and request.head.method != b"HEAD" and status not in WITHOUT_BODY:
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        end = CLOSE if self._is_last else b"\r\n"
        self._start = b"".join((STATUS_LINE[status], *lines, request.lines, request.connection.date_line, end))

    def give_up(self, error: errors.RequestError) -> None:
        """Says so where nothing has been said yet."""
        request = self._request
        if request.is_answered or request.has_left:
            return
        if self._has_started:
            request.connection.abort()
            return
        lines, body = error_head(error, list(error.receipt), request.head.path)
        if not request.respond(lines, b"" if request.head.method == b"HEAD" else body, close=True):
            request.connection.abort()
